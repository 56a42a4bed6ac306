"""A progress bar for builds that take over two seconds. Short builds print nothing and do not import `rich`."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

SHOW_AFTER_SECONDS = 2.0


class BuildProgress:
    """Counts units of work and shows a bar on stderr once the build has run for `SHOW_AFTER_SECONDS`.

    Args:
        label (`str`): what is being built.
        total (`int`): units of work in all.
        show (`bool`, *optional*): True or False decide; None shows the bar if stderr is a terminal.

    >>> with BuildProgress("table", total=2, show=False) as progress:
    ...     progress.advance(2)
    """

    def __init__(self, label: str, total: int, show: bool | None = None) -> None:
        self._label = label
        self._total = max(1, total)
        self._show = sys.stderr.isatty() if show is None else show
        self._done = 0
        self._mutex = threading.Lock()
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        """Marks `amount` more units as done; may be called from several threads."""
        with self._mutex:
            self._done += amount
            if self._bar is None and self._show and time.monotonic() - self._started > SHOW_AFTER_SECONDS:
                self._open()
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self._label, total=self._total)
