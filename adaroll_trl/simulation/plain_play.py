"""Any allocator on whole batches, asked round by round as the trainer asks it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..allocators import ALLOCATOR_NAMES, AllocationState, Allocator
from ..allocators.contract import check_counts, check_rounds, name_of
from .batches import Batches, Played


def play_allocator(allocator: Allocator, batches: Batches) -> Played:
    """`allocator` is asked batch by batch, so that it may keep a state."""
    successes, spent = batches.nothing_played()
    known = _Decisions(allocator)
    for number in range(len(batches)):
        successes[number], spent[number], _ = play_batch(known, batches, number, batches.names_of(number))
    return successes, spent


def play_batch(
    decisions: Decisions, batches: Batches, number: int, names: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All rounds of one batch, whose prompts have these names.

    Returns:
        Successes and rollouts at the end, and rollouts of the first round: int64 of shape (prompts,).

    Raises:
        ValueError: if the allocator returns counts that the trainer would refuse.
    """
    outcomes, budget = batches.outcomes[number], batches.budget
    prompts = len(names)
    alpha, beta = batches.beliefs_of(number)
    cumulative = np.concatenate([np.zeros((prompts, 1), dtype=np.int64), outcomes.cumsum(axis=1)], axis=1)
    everyone = np.arange(prompts)
    spent = first = np.zeros(prompts, dtype=np.int64)

    def state() -> AllocationState:
        wins = cumulative[everyone, spent]
        return AllocationState(
            wins,
            spent - wins,
            alpha,
            beta,
            rollouts=spent.copy(),
            prompt_ids=names,
            min_rollouts=batches.minimum,
            max_rollouts=batches.maximum,
        )

    name = name_of(decisions)
    planned = min(check_rounds(decisions.num_rounds(prompts, budget, batches.rounds, batches.minimum), name), budget)
    left = budget
    for rounds_left in range(planned, 0, -1):
        counts = check_counts(decisions.allocate(state(), left, rounds_left), state(), left, rounds_left, name)
        spent = spent + counts
        left -= int(counts.sum())
        first = spent if rounds_left == planned else first
        if left == 0:
            break
    decisions.observe(state())
    return cumulative[everyone, spent], spent, first


class Decisions(Protocol):
    """Of an `Allocator`, what play asks."""

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int: ...

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]: ...

    def observe(self, state: AllocationState) -> None: ...


class _Decisions:
    """What an allocator decided before, for the states that come again: the first round of prompts all alike.

    One that keeps a state, and one that is not this package's, is asked every time.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.ours = type(allocator).__module__.startswith("adaroll_trl.") and allocator.name in ALLOCATOR_NAMES
        self.name = name_of(allocator)
        self.made: dict[bytes, NDArray[np.int64]] = {}
        self.num_rounds, self.observe = allocator.num_rounds, allocator.observe

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        opening = self.ours and not np.any(state.rollouts)
        priors = np.stack([state.prior_alpha, state.prior_beta])
        key = priors.tobytes() if opening and (priors == priors[:, :1]).all() else None
        if key is not None and key in self.made:
            return self.made[key]
        counts = self.allocator.allocate(state, rollouts_left, rounds_left)
        if key is not None and not self.allocator.state_dict():
            self.made[key] = counts
        return counts
