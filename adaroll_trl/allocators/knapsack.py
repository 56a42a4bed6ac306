"""Knapsack RL: the chance of a gradient, times what it is worth, from what earlier epochs say."""

from __future__ import annotations

import numpy as np

from ..values import integer
from .base import AllocationState
from .integers import FloatArray, IntArray, bounds, greedy, raise_minimum
from .planned import PlannedStreams


class KnapsackAllocator(PlannedStreams):
    """Knapsack RL (Li et al., arXiv 2509.25849): a prompt of pass rate p with N rollouts is worth

        V(N) = (1 - p^N - (1 - p)^N)  p (1 - p)^2,        N from 2 to `largest`

    the chance that the group has a gradient, times how much a step on it can raise p. The sum over the batch is
    maximised under the budget. The differences

        V(N + 1) - V(N) = (p^N (1 - p) + (1 - p)^N p)  p (1 - p)^2

    never rise from N = 1 on, and those from 0 to 1 and from 1 to 2 are 0 and 2 p (1 - p) times the worth. With the
    two averaged V is concave, and as nobody ends with a single rollout where the budget has two for everybody, taking
    the largest difference first is exact.

    From the paper: V, its range of N, and p from the epoch before. Ours: p is the mean of the belief, so that p = 0
    and p = 1 do not occur and no prompt is written off for good; the budget is that of one batch; where all prompts
    have reached `largest`, it gives way to the budget.

    Needs carried beliefs (`belief_decay` above 0): without them all prompts have the prior's p, and this is plain
    GRPO. One round.

    Args:
        largest (`int`): the most rollouts that a prompt can want; 128 in the paper. `max_rollouts` holds as well.
    """

    name = "knapsack"
    reads_rounds = False
    needs_beliefs = True

    def __init__(self, largest: int = 128) -> None:
        self.largest = integer("largest", largest, 2)

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        spent = np.asarray(state.rollouts, dtype=np.int64)
        wanted = np.clip(self.largest - spent, low, high)
        high = wanted if wanted.sum() >= rollouts_left else high
        p = state.belief_means
        worth = p * (1 - p) ** 2
        low = raise_minimum(low, high, np.maximum(2 - spent, 0), rollouts_left, worth * p * (1 - p))

        def gains(depth: int) -> FloatArray:
            have = (spent[:, None] + np.arange(depth)).clip(min=2)  # the two averaged differences equal the third
            rate = p[:, None]
            return (rate**have * (1 - rate) + (1 - rate) ** have * rate) * worth[:, None]

        return greedy(gains, rollouts_left, low, high)
