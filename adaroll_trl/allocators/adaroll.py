"""The default: the rounds planner of `adaroll_trl.solver.rounds`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..solver.round_batch import LARGEST_GROUP
from ..solver.rounds import plan_round, round_value
from ..solver.streaming import StreamPlanner
from ..utilities import Utility, UtilityFunction, as_utility
from .base import AllocationState, Allocator, RolloutStream


class AdaRollAllocator(Allocator):
    """AdaRoll-GRPO's problem solved for generation in rounds: each round looks ahead to the rounds that follow it.

    Source of the problem: "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training" (October 2026). The
    planner is this project's own (`adaroll_trl.solver.plan_round`; for streams `adaroll_trl.solver.StreamPlanner`).

    It maximises E[sum of U(s, f) over the prompts] at the whole budget. With a price on a rollout the prompts come
    apart, and one with r rounds to come has the value

        V_0(s, f) = U(s, f),    V_r(s, f) = max over m of E[V_{r-1}(s + X, f + m - X)] - price * m

    with X Beta-binomial, m rollouts under its belief. The price is the one at which the expected rollouts of all
    prompts and rounds add up to what is left; the round's counts are then made whole.

    Any number of rounds. Carried beliefs are not needed; with one round and without them all prompts are alike, and
    it gives them equal groups (or nearly, for a utility that is not concave in the group's size).

    Args:
        utility (`str`, callable or `Utility`): what a group's outcomes are worth.
    """

    name = "adaroll"
    largest_group = LARGEST_GROUP
    streams = True

    def __init__(self, utility: str | UtilityFunction | Utility = "mixed") -> None:
        self.utility = as_utility(utility)

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        return plan_round(
            **self._question(state),
            rollouts_left=rollouts_left,
            rounds_left=rounds_left,
            multiple_of=state.multiple_of,
        )

    def expected_utility(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> float:
        return round_value(**self._question(state), rollouts_left=rollouts_left, rounds_left=rounds_left)

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        return _AdaRollStream(StreamPlanner(**self._question(state), budget=budget, in_flight=in_flight))

    def _question(self, state: AllocationState) -> dict[str, Any]:
        """The arguments that the planners share."""
        return {
            "successes": state.successes,
            "failures": state.failures,
            "utility": self.utility,
            "prior_alpha": state.prior_alpha,
            "prior_beta": state.prior_beta,
            "min_rollouts": state.min_rollouts,
            "max_rollouts": state.max_rollouts,
            "rollouts": state.rollouts,
        }


class _AdaRollStream(RolloutStream):
    def __init__(self, planner: StreamPlanner) -> None:
        self._planner = planner

    def next_prompt(self) -> int:
        return self._planner.next_prompt()

    def record(self, prompt: int, success: bool | None) -> None:
        self._planner.record(prompt, success)
