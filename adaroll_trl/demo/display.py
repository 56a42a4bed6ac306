"""The live view of a demo: a bar for each phase, and what each arm's last batches looked like.

Where the output is not a terminal, the same figures come as a line now and then.
"""

from __future__ import annotations

from types import TracebackType

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .record import Groups, RolloutRecord
from .settings import ARMS, Settings

RECENT_STEPS = 20
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """The values as bars of eight heights, the lowest for 0 and the highest for the largest value.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    top = max(values, default=0.0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1)) if top else 0] for value in values)


class Display:
    """Observer of both arms; use it as a context manager."""

    def __init__(self, console: Console, settings: Settings):
        self.console, self.settings = console, settings
        self.progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}
        self.recent: dict[str, Groups] = {}
        self.held_out: dict[str, list[float]] = {arm: [] for arm in settings.arms}
        self.live = Live(self._view(), console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.update(self._view(), refresh=True)
            self.live.stop()

    def start(self, phase: str, total: int) -> None:
        """A new bar; the one before is done."""
        self.tasks[phase] = self.progress.add_task(phase, total=total, note="")
        if self.live is None:
            self.console.print(f"{phase} ...")

    def advance(self, phase: str, completed: int, note: str = "") -> None:
        """Move a bar, or print a line at every tenth of its way."""
        task = self.tasks[phase]
        self.progress.update(task, completed=completed, note=note)
        if self.live is not None:
            self.live.update(self._view())
            return
        total = int(self.progress.tasks[task].total or 1)
        if completed == total or completed % max(1, total // 10) == 0:
            self.console.print(f"  {phase} {completed}/{total}  {note}", highlight=False)

    def finish(self, phase: str, note: str) -> None:
        task = self.progress.tasks[self.tasks[phase]]
        if not task.finished or self.live is not None:
            self.advance(phase, int(task.total or 1), note)
        self.progress.stop_task(task.id)

    def on_step(self, arm: str, step: int, record: RolloutRecord) -> None:
        # Only the tail is grouped: grouping everything at every step would make a long run slower and slower.
        tail = RolloutRecord(record.rows[-RECENT_STEPS * self.settings.rollouts_per_step :])
        self.recent[arm] = groups = tail.groups()
        self.advance(ARMS[arm], step, f"{groups.mixed.mean():.0%} of prompts with signal")
        if step == self.settings.steps:
            self.progress.stop_task(self.tasks[ARMS[arm]])

    def on_held_out(self, arm: str, step: int, accuracy: float) -> None:
        self.held_out[arm].append(accuracy)
        if self.live is not None:
            self.live.update(self._view())

    def _view(self) -> Group:
        return Group(self.progress, self._table()) if self.recent else Group(self.progress)

    def _table(self) -> Table:
        table = Table(title=f"last {RECENT_STEPS} steps", title_justify="left", title_style="dim", box=box.SIMPLE_HEAD)
        for heading in ("arm", "signal", "all wrong", "all right", "rollouts", "held-out accuracy"):
            table.add_column(heading, justify="left" if heading == "arm" else "right")
        for arm, groups in self.recent.items():
            share = groups.success_share
            held_out = self.held_out[arm]
            table.add_row(
                ARMS[arm],
                f"{groups.mixed.mean():.0%}",
                f"{np.mean(share == 0):.0%}",
                f"{np.mean(share == 1):.0%}",
                f"{groups.rollouts.min()} to {groups.rollouts.max()}",
                f"{sparkline(held_out)} {held_out[-1]:.3f}" if held_out else "",
            )
        return table
