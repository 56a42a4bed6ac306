"""VIGOR: round by round, the groups with the most variance so far are expanded."""

from __future__ import annotations

import numpy as np

from ..values import number
from .base import AllocationState, Allocator
from .integers import IntArray, bounds, round_total, share_evenly


class VigorAllocator(Allocator):
    """VIGOR (arXiv 2607.22002), reconstructed from a one-line description of its rule.

    After a first round of equal groups, each round expands the fraction `alpha` of the prompts with the largest
    observed reward variance r (1 - r) by a factor `gamma`: it gives them gamma times as many rollouts as a round has
    per prompt. alpha gamma = 1, so all rounds cost the same.

    Ours: the budget is spent in equal rounds; the fraction is of all prompts, rounded up; equal variances go first to
    the smaller group; and a group that is all alike is never expanded, so where fewer prompts than the fraction have
    any variance the round is theirs alone, and what they have no room for goes to the others.

    Takes any number of rounds (the user's `rounds`). Needs no beliefs and reads none. It never looks again at prompts
    that were all alike in the first round. It does not stream: which fraction is expanded is one decision a round, on
    the variances of groups of one size.

    Args:
        alpha (`float`): fraction of the prompts to expand, in (0, 1].
        gamma (`float`, *optional*): 1 / alpha, and may be given to say so.
    """

    name = "vigor"
    waits_for = "all outcomes of a round, by whose variances it ranks all prompts for the next"

    def __init__(self, alpha: float = 0.5, gamma: float | None = None) -> None:
        self.alpha = number("alpha", alpha, 0.0, 1.0, open_low=True)
        if gamma is not None and abs(number("gamma", gamma, 1.0) * self.alpha - 1) > 1e-6:
            raise ValueError(
                f"alpha={alpha!r} and gamma={gamma!r}: their product must be 1, so that all rounds cost the same. "
                f"Leave gamma out, which makes it {1 / self.alpha:g}."
            )

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        total = round_total(rollouts_left / rounds_left, low, state, rollouts_left, rounds_left)
        scored = np.maximum(state.successes + state.failures, 1)
        variance = state.successes * state.failures / scored**2
        order = np.lexsort((np.asarray(state.rollouts), -variance))
        expanded = np.zeros(state.num_prompts, dtype=bool)
        expanded[order[: int(np.ceil(self.alpha * state.num_prompts))]] = True
        return share_evenly(total, low, high, [expanded & (variance > 0)])
