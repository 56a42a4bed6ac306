"""The contract of an allocator's decisions, which the trainer and the simulator check each time."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import AllocationState


def name_of(allocator: Any) -> str:
    """For messages and the log: a class of the user's own need not have a name."""
    return str(getattr(allocator, "name", type(allocator).__name__))


def check_rounds(rounds: Any, allocator: str) -> int:
    """The rounds that an allocator wants; what is below 1 counts as 1.

    Raises:
        ValueError: if it is no whole number.
    """
    if not isinstance(rounds, numbers.Integral) or isinstance(rounds, bool):
        raise ValueError(f"allocator {allocator!r} returned num_rounds {rounds!r}: an integer was expected.")
    return max(1, int(rounds))


def check_counts(
    counts: Any, state: AllocationState, left: int, rounds_left: int, allocator: str
) -> NDArray[np.int64]:
    """The counts that an allocator returned, if they keep its contract.

    Args:
        counts (int array of shape (n,)): what `allocate` returned.
        state (`AllocationState`): what it was given.
        left, rounds_left (`int`): likewise.
        allocator (`str`): its name, for the error.

    Returns:
        int64 array of shape (n,).

    Raises:
        ValueError: saying what is wrong with them.
    """
    try:
        counts = np.asarray(counts)
    except ValueError:  # ragged
        counts = np.asarray(counts, dtype=object)
    n, spent = state.num_prompts, np.asarray(state.rollouts)
    problem = None
    if counts.shape != (n,) or not np.issubdtype(counts.dtype, np.integer):
        problem = f"an integer array of shape ({n},) was expected"
    elif (counts < 0).any():
        problem = "counts cannot be negative"
    elif not 0 < counts.sum() <= left:
        problem = f"their sum must be between 1 and the {left} rollouts left"
    elif counts.sum() % state.multiple_of:
        problem = f"their sum must be a multiple of the {state.multiple_of} processes"
    elif rounds_left == 1 and counts.sum() != left:
        problem = f"the last round must spend all {left} rollouts left"
    elif state.max_rollouts is not None and (spent + counts > state.max_rollouts).any():
        problem = f"a prompt exceeds max_rollouts={state.max_rollouts}"
    else:
        still_needed = np.maximum(state.min_rollouts - spent - counts, 0).sum()
        if still_needed > left - counts.sum():
            problem = f"too few rollouts are left to give every prompt min_rollouts={state.min_rollouts}"
    if problem:
        raise ValueError(
            f"allocator {allocator!r} returned counts {counts.tolist()} for {n} prompts that "
            f"have {spent.tolist()}, with {left} rollouts and {rounds_left} rounds left: {problem}."
        )
    return counts.astype(np.int64)
