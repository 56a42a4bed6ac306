"""VIP: the allocation of least gradient variance, from predicted pass rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..values import choice, integer, number
from .base import AllocationState
from .integers import FloatArray, IntArray, bounds, greedy, raise_minimum, water_level
from .pass_rates import PassRateProcess
from .planned import PlannedStreams

_LARGEST_MEMORY = 10_000  # a decision then takes matrices of 0.8 GB, and minutes
_DIGITS = (-12.0, 24.0)  # powers of ten between which 1 / x is looked for, for a_i of at most 1


class VIPAllocator(PlannedStreams):
    """VIP (Nguyen et al., arXiv 2602.01601): minimise the variance of the batch's gradient estimate.

    With a_i = p_i (1 - p_i), a batch of groups of n_i rollouts has variance proportional to

        "rloo"     sum_i a_i / (n_i - 1)            n_i from 2,    optimum n_i = 1 + sqrt(a_i / x)
        "dr_grpo"  sum_i a_i (n_i - 1) / n_i^2      n_i from 3,    optimum x n_i^3 = a_i (n_i - 2)

    where the price x of a rollout is such that the n_i, clipped to their bounds, add up to the budget: bisection. From
    n = 3 on the second is convex; its cubic, with r = a / x, has its largest root at

        n = 2 sqrt(r / 3) cos(arccos(-sqrt(27 / r)) / 3),        n = 3 where r <= 27

    The real numbers are rounded down, and what is left goes one by one to the largest fall of the objective.

    From the paper: the objectives, the optimum and the bisection; p_i predicted before the batch. Ours: p_i is the
    mean of the belief. With `embeddings`, a Gaussian process over them shares what is known between prompts
    (`PassRateProcess`, ours in its details). The released code leaves out prompts that would get fewer than 4 rollouts
    and adds a term in log p that the paper does not have; neither is done here. Where the budget has not 2 (or 3) for
    everybody, prompts of large a_i get them first.

    Needs carried beliefs (`belief_decay` above 0): without them all prompts have the prior's p, and this is plain
    GRPO. One round.

    Args:
        objective (`str`): "rloo" or "dr_grpo".
        embeddings (mapping from prompt id to vector, or the path of an .npz file of such arrays, *optional*): all
            vectors of one length. None: every prompt stands on its own.
        length_scale (`float`, *optional*): of the Gaussian process; None is the median distance of a batch's prompts.
        memory (`int`): prompts of earlier batches that the Gaussian process keeps in mind, at most 10,000. A decision
            costs (prompts of the batch + memory)^3.
    """

    name = "vip"
    reads_rounds = False
    needs_beliefs = True

    def __init__(
        self,
        objective: str = "rloo",
        embeddings: Mapping[str, ArrayLike] | str | None = None,
        length_scale: float | None = None,
        memory: int = 256,
    ) -> None:
        self.objective = choice("objective", objective, ("rloo", "dr_grpo"))
        if length_scale is not None:
            number("length_scale", length_scale, 0.0, open_low=True)
        integer("memory", memory, 0, _LARGEST_MEMORY)
        self.process = None if embeddings is None else PassRateProcess(embeddings, length_scale, memory)

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        p = state.belief_means if self.process is None else self.process.predict(state)
        a = p * (1 - p)
        spent = np.asarray(state.rollouts, dtype=np.int64)
        least = 2 if self.objective == "rloo" else 3
        low = raise_minimum(low, high, np.maximum(least - spent, 0), rollouts_left, a)
        total = rollouts_left + int(spent.sum())
        sizes = self.continuous(a, total, spent + low, spent + high)
        floor = np.clip(np.floor(sizes + 1e-9).astype(np.int64) - spent, low, high)
        floor = floor if floor.sum() <= rollouts_left else low
        return greedy(lambda depth: self._gains(a, spent[:, None] + np.arange(depth)), rollouts_left, floor, high)

    def observe(self, state: AllocationState) -> None:
        if self.process is not None:
            self.process.remember(state)

    def continuous(self, a: FloatArray, total: int, low: IntArray, high: IntArray) -> FloatArray:
        """The optimum in real numbers: sizes of shape (n,) in [low, high] that add up to `total`.

        For "dr_grpo", as if no size were below 3.
        """
        a = a / max(float(a.max()), 1e-300)
        if self.objective == "rloo":
            return water_level(lambda c: 1 + np.sqrt(10.0**c * a), _DIGITS, total, low, high)

        def wish(c: float) -> FloatArray:
            r = np.maximum(10.0**c * a, 27.0)
            return 2 * np.sqrt(r / 3) * np.cos(np.arccos(-np.sqrt(27.0 / r)) / 3)

        return water_level(wish, _DIGITS, total, low, high)

    def _gains(self, a: FloatArray, sizes: IntArray) -> FloatArray:
        """The fall of the objective from `sizes` (n, d) to one more, flat below the least size it is defined for."""
        if self.objective == "rloo":
            m = np.maximum(sizes, 2).astype(np.float64)
            return a[:, None] / (m * (m - 1))
        m = np.maximum(sizes, 3).astype(np.float64)
        return a[:, None] * ((m - 1) / m**2 - m / (m + 1) ** 2)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.process is None else self.process.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.process is None:
            super().load_state_dict(state)
        else:
            self.process.load_state_dict(self.known_state(state, ("seen",)))
