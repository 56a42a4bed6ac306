"""Pilot-Commit: a look at every prompt, then the rest to those that are neither solved nor out of reach."""

from __future__ import annotations

import numpy as np

from ..values import number
from .base import AllocationState
from .integers import IntArray, share_evenly
from .two_stage import TwoStageAllocator


class PilotCommitAllocator(TwoStageAllocator):
    """Pilot-Commit (Kim et al., arXiv 2605.26606).

    After a pilot of equal groups with pass rates r_i, prompts with r_i > `upper` are skipped as solved, those with
    r_i < `lower` deferred as out of reach, and the rest of the budget is shared equally by those between.

    From the paper: the two stages and the thresholds. Ours: the pilot is half of the budget; a prompt without a scored
    rollout counts as between; and as the budget of a batch is spent whatever happens, what the chosen ones have no
    room for goes to the deferred and then to the skipped ones. (There, prompts also leave the data for good or for a
    while; here they stay.)

    Two rounds. Needs no beliefs and reads none.

    Args:
        first_share (`float`): share of the budget that the pilot spends, in (0, 1].
        upper, lower (`float`): thresholds on the pilot's pass rate, 0 <= lower <= upper <= 1.
    """

    name = "pilot_commit"

    def __init__(self, first_share: float = 0.5, upper: float = 0.75, lower: float = 0.125) -> None:
        super().__init__(first_share)
        self.upper, self.lower = number("upper", upper, 0.0, 1.0), number("lower", lower, 0.0, 1.0)
        if self.lower > self.upper:
            raise ValueError(f"lower={lower!r} must not be above upper={upper!r}.")

    def commit(self, state: AllocationState, total: int, low: IntArray, high: IntArray) -> IntArray:
        scored = state.successes + state.failures
        rate = np.where(scored > 0, state.successes / np.maximum(scored, 1), self.upper)
        skipped, deferred = rate > self.upper, rate < self.lower
        return share_evenly(total, low, high, [~(skipped | deferred), deferred])
