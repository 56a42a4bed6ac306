"""What the methods share that look once: an equal first round, and one that spends the rest on what it showed."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ..values import number
from .base import AllocationState, Allocator
from .integers import IntArray, bounds, round_total, share_evenly


class TwoStageAllocator(Allocator):
    """An equal first round of `first_share` of the budget, then `commit`. Always two rounds; `rounds` is not used.

    A batch that starts with one round left has nothing to look at: all prompts are alike to `commit`, or differ by
    their beliefs where the rule reads these. It does not stream: the second phase is one decision on all outcomes of
    the first.

    Args:
        first_share (`float`): share of the budget that the first round spends, in (0, 1]; 1 leaves nothing to commit.
    """

    reads_rounds = False
    waits_for = "all outcomes of its first phase, equal groups, before it shares out the second phase at once"

    def __init__(self, first_share: float = 0.5) -> None:
        self.first_share = number("first_share", first_share, 0.0, 1.0, open_low=True)

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 2

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        if rounds_left > 1 and not np.any(state.rollouts):
            total = round_total(self.first_share * rollouts_left, low, state, rollouts_left, rounds_left)
            return share_evenly(total, low, high)
        return self.commit(state, rollouts_left, low, high)

    @abstractmethod
    def commit(self, state: AllocationState, total: int, low: IntArray, high: IntArray) -> IntArray:
        """Counts of the second round, which add up to `total`."""
