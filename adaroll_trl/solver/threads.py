"""Runs a compiled kernel over a range on several threads.

The kernels release the interpreter's lock (`nogil`) and are run on plain threads. Numba's own `parallel=True` is not
used: its OpenMP layer sets the number of threads of the whole process, and with it that of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numba

_PIECES_A_THREAD = 4  # pieces differ in cost


@lru_cache(maxsize=1)
def _pool() -> tuple[ThreadPoolExecutor, int]:
    threads = max(1, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    return ThreadPoolExecutor(threads, thread_name_prefix="adaroll-solver"), threads


if hasattr(os, "register_at_fork"):  # a forked process (a data loader's worker) has the pool, but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run_ranges(kernel: Callable[[int, int], object], total: int, smallest: int = 1) -> None:
    """Call `kernel(first, end)` on pieces that cover range(total), each of at least `smallest`; a single piece runs in
    the calling thread. Results do not depend on the pieces as long as the kernel's do not."""
    pool, threads = _pool()
    pieces = 1 if threads == 1 else min(threads * _PIECES_A_THREAD, total // max(smallest, 1))
    if pieces <= 1:
        kernel(0, total)
        return
    edges = [total * k // pieces for k in range(pieces + 1)]
    for future in [pool.submit(kernel, first, end) for first, end in pairwise(edges)]:
        future.result()
