"""The baseline: every prompt gets the same number of rollouts, as in GRPO."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import AllocationState
from .integers import bounds, level
from .planned import PlannedStreams


class UniformAllocator(PlannedStreams):
    """Plain GRPO (Shao et al., arXiv 2402.03300): n_i = B / prompts, all of it in one round. Needs no beliefs.

    Where the rollouts left do not divide evenly, prompts with the fewest rollouts so far come first.
    """

    name = "uniform"
    reads_rounds = False

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        low, high = bounds(state, rollouts_left)
        spent = np.asarray(state.rollouts, dtype=np.int64)
        return level(spent + low, rollouts_left + int(spent.sum()), spent + high) - spent
