"""HORA: rollouts where the next success is likeliest, given the beliefs."""

from __future__ import annotations

import numpy as np

from .base import AllocationState
from .integers import FloatArray, IntArray, greedy
from .two_stage import TwoStageAllocator


class HoraAllocator(TwoStageAllocator):
    """HORA (Wang et al., arXiv 2605.07114): the most expected hits among the rollouts still to come.

    A prompt with the belief Beta(a, b) that gets m more rollouts has a hit, at least one success, with probability
    1 - E[(1 - p)^m]. The rollout after l others adds

        E[p (1 - p)^l] = B(a + 1, b + l) / B(a, b) = a / (a + b + l)  prod_{j < l} (b + j) / (a + b + j)

    which falls with l, so that taking the largest first is exact.

    From the paper: hit utility, its greedy maximisation, the uniform prior (`prior_alpha` and `prior_beta` here).
    Ours: the first round is half of the budget, and a carried belief takes the prior's place.

    What it looks at is hits to come: a prompt that has had successes already, and is likely to have more, is worth as
    much as one that has had none. Two rounds; carried beliefs help and are not needed.

    Args:
        first_share (`float`): share of the budget that the first round spends, in (0, 1].
    """

    name = "hora"

    def commit(self, state: AllocationState, total: int, low: IntArray, high: IntArray) -> IntArray:
        alpha, beta = (array[:, None] for array in state.posterior)

        def gains(depth: int) -> FloatArray:
            others = np.arange(depth, dtype=np.float64)
            misses = np.cumprod((beta + others) / (alpha + beta + others), axis=1)  # E[(1 - p)^(l + 1)]
            return alpha / (alpha + beta + others) * np.hstack([np.ones_like(alpha), misses[:, :-1]])

        return greedy(gains, total, low, high)
