"""Any allocator on whole batches, asked round by round as the trainer asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..allocators import ALLOCATOR_NAMES, AllocationState, Allocator


def play_allocator(
    allocator: Allocator,
    outcomes: NDArray[np.int8],
    budget: int,
    rounds: int,
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    minimum: int,
    maximum: int,
    first_batch: int = 0,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Successes and rollouts at the end of each batch, int64 of shape (batches, prompts).

    Args:
        allocator (`Allocator`): asked batch by batch, so that it may keep a state.
        outcomes (int8 array of shape (batches, prompts, maximum)): result of each prompt's j-th rollout.
        budget, rounds (`int`): of a batch.
        alpha, beta (float arrays of shape (batches, prompts), or (1, prompts)): beliefs on the prompts before a batch.
        minimum, maximum (`int`): rollouts of a prompt.
        first_batch (`int`): number of the first batch; prompts are named by the numbers of batch and prompt.
    """
    batches, prompts, _ = outcomes.shape
    successes, spent = (np.zeros((batches, prompts), dtype=np.int64) for _ in range(2))
    known = _Decisions(allocator)
    for batch in range(batches):
        own = batch if len(alpha) > 1 else 0
        names = [f"{first_batch + batch}-{prompt}" for prompt in range(prompts)]
        limits = (minimum, maximum)
        played = play_batch(known, outcomes[batch], budget, rounds, alpha[own], beta[own], names, *limits)
        successes[batch], spent[batch] = played.successes, played.rollouts
    return successes, spent


@dataclass(frozen=True)
class PlayedBatch:
    """Successes and rollouts of the prompts at the end, and rollouts of the first round: int64 of shape (prompts,)."""

    successes: NDArray[np.int64]
    rollouts: NDArray[np.int64]
    first_round: NDArray[np.int64]


def play_batch(
    decisions: Decisions,
    outcomes: NDArray[Any],
    budget: int,
    rounds: int,
    alpha: NDArray[np.float64],
    beta: NDArray[np.float64],
    names: list[str],
    minimum: int,
    maximum: int,
) -> PlayedBatch:
    """One batch, all rounds. `outcomes` has shape (prompts, maximum), the beliefs (prompts,)."""
    prompts = len(names)
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
            min_rollouts=minimum,
            max_rollouts=maximum,
        )

    planned = max(1, min(decisions.num_rounds(prompts, budget, rounds, minimum), budget))
    left = budget
    for rounds_left in range(planned, 0, -1):
        counts = decisions.allocate(state(), left, rounds_left)
        spent = spent + counts
        left -= int(counts.sum())
        first = spent if rounds_left == planned else first
        if left == 0:
            break
    decisions.observe(state())
    return PlayedBatch(cumulative[everyone, spent], spent, first)


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
