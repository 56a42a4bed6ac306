"""The baseline: every prompt gets the same number of rollouts, as in GRPO."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import AllocationState, Allocator


class UniformAllocator(Allocator):
    """Plain GRPO: all of the budget in one round, the same for each prompt.

    Where the rollouts left do not divide evenly, prompts with the fewest rollouts so far come first.
    """

    name = "uniform"

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        counts = np.zeros(state.num_prompts, dtype=np.int64)
        spent = np.asarray(state.rollouts, dtype=np.int64)
        low, high = int(spent.min()), int(spent.max()) + rollouts_left + 1
        while low + 1 < high:  # the largest level that the budget can lift everybody to
            level = (low + high) // 2
            if np.maximum(level - spent, 0).sum() <= rollouts_left:
                low = level
            else:
                high = level
        counts = np.maximum(low - spent, 0)
        rest = rollouts_left - int(counts.sum())
        lowest = np.flatnonzero(spent + counts == low)[:rest]
        counts[lowest] += 1
        return counts
