"""DARS: hard prompts get rollouts until their summed advantage matches that of a prompt of middle difficulty."""

from __future__ import annotations

import numpy as np

from ..values import number
from .base import AllocationState
from .integers import IntArray, in_proportion
from .two_stage import TwoStageAllocator


class DarsAllocator(TwoStageAllocator):
    """DARS, equal-treatment schedule (Yang et al., arXiv 2508.13755).

    A group of N rollouts with pass rate r has the summed absolute advantage N S, S = 2 r (1 - r). After N rollouts
    each, a prompt with r < 1/2 gets as many more as bring it to that of r = 1/2, which is N / 2:

        ceil((N / 2 - N S) / S),   at most `cap` N,   and `cap` N where r = 0

    From the paper: the schedule; N = 8 there, and a cap of 32 rollouts in all. Ours: N is what the first round gave,
    half of the budget, and as the second round spends what is left, no more and no less, its rollouts are shared in
    proportion to these numbers; what such prompts have no room for, and all where there is none, goes to the others.
    A prompt without a scored rollout counts as r = 0.

    Two rounds. Needs no beliefs and reads none. Prompts that can never succeed take the most.

    Args:
        first_share (`float`): share of the budget that the first round spends, in (0, 1].
        cap (`float`): the most additional rollouts, as a multiple of N.
    """

    name = "dars"

    def __init__(self, first_share: float = 0.5, cap: float = 3.0) -> None:
        super().__init__(first_share)
        self.cap = number("cap", cap, 0.0, open_low=True)

    def commit(self, state: AllocationState, total: int, low: IntArray, high: IntArray) -> IntArray:
        return in_proportion(self.wishes(state), total, low, high)

    def wishes(self, state: AllocationState) -> np.ndarray:
        """Additional rollouts that the schedule asks for, float array of shape (n,)."""
        size = np.maximum(np.asarray(state.rollouts, dtype=np.float64), 1.0)
        scored = state.successes + state.failures
        rate = state.successes / np.maximum(scored, 1)
        spread = 2 * rate * (1 - rate)
        more = np.ceil((0.5 - spread) * size / np.maximum(spread, 1e-12) - 1e-9)
        return np.where(rate < 0.5, np.clip(more, 0.0, np.floor(self.cap * size)), 0.0)
