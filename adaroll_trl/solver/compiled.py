"""Compiles the kernels of index, rounds and bound once per machine, safely.

Numba keeps compiled code on disk, but its cache is not safe when several processes compile the same function at once.
So at the first use in a process the kernels are run on a tiny problem while a lock is held: the first process compiles
and stores, the others then load. On a file system without locks the worst case is that each compiles for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

from .store import default_directory, hold_lock

logger = logging.getLogger(__name__)

NOTICE_AFTER_SECONDS = 3.0

_mutex = threading.RLock()
_done: set[Callable[[], None]] = set()
_told = False  # once per process is enough
_holding = False  # `run_all` of one module may call into another: the lock is taken once


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` whose code is kept on disk for as long as no kernel of the solver changes.

    Numba itself looks at the file of a function only, and would go on with code that has an older version of another
    file's functions compiled into it. The cost: a change to any kernel compiles all of them again.
    """

    def compile_lazily(function: Callable[..., Any]) -> Any:
        dispatcher = njit(cache=True, **options)(function)
        index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)  # not with NUMBA_DISABLE_JIT
        if index is not None:
            index._source_stamp = _stamp()  # numba has no public name for it
        return dispatcher

    return compile_lazily


@cache
def _stamp() -> str:
    """Stands for the source of all kernels."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(source for source in sources if b"@kernel" in source)).hexdigest()


def compile_once(run_all: Callable[[], None]) -> None:
    """Run `run_all`, which must call every kernel of its caller once, under the lock; nothing after the first time."""
    global _holding
    if run_all in _done:
        return
    with _mutex:
        if run_all in _done:
            return
        _done.add(run_all)  # before the run: `run_all` itself calls the functions that call this
        if _holding:
            run_all()
            return
        _holding = True
        notice = threading.Timer(NOTICE_AFTER_SECONDS, _say)
        notice.daemon = True
        notice.start()
        try:
            with _lock_if_possible():
                run_all()
        finally:
            notice.cancel()
            _holding = False


def _say() -> None:
    global _told
    if _told:
        return
    _told = True
    logger.warning(
        "adaroll_trl compiles its solver (about a minute of processor time, once per machine), or waits for another "
        "process that does."
    )


@contextlib.contextmanager
def _lock_if_possible() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no folder to lock in: go on without
            default_directory().mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(default_directory() / "kernels.lock"))
        yield
