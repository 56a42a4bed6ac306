"""Whole batches played as streams: `adaroll` in compiled code, every other allocator that streams by asking it.

The engine is that of `streaming`: it holds `in_flight` rollouts, each grows by a token in a step, and all that end in
a step are scored before any is replaced.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..allocators import AllocationState, Allocator, allocator_class, cannot_stream
from ..allocators.adaroll import AdaRollAllocator
from ..streaming.loop import Ledger
from ..streaming.rollout import Rollout
from .batches import Batches, Played
from .streaming import LENGTHS, DrawnBatches, stream_batches


def check_streams(allocator: str | Allocator, in_flight: int) -> None:
    """Refuse an allocator that decides in rounds only.

    Raises:
        ValueError: naming it, what it waits for, and those that stream.
    """
    known = allocator_class(allocator) if isinstance(allocator, str) else allocator
    if known is not None and not known.streams:
        raise ValueError(f"in_flight={in_flight}: {cannot_stream(known)}")


def draw_lengths(
    rng: np.random.Generator, name: str, rates: NDArray[np.float64], outcomes: NDArray[np.int8]
) -> NDArray[np.int64]:
    """Tokens of each rollout, in the shape of `outcomes`; batch by batch, so that it does not matter how many."""
    batches = (slice(number, number + 1) for number in range(len(outcomes)))
    return np.concatenate([LENGTHS[name](rng, rates[one], outcomes[one].astype(np.int64)) for one in batches])


def play_streams(
    allocator: Allocator, batches: Batches, rates: NDArray[np.float64], lengths: NDArray[np.int64], in_flight: int
) -> Played:
    """Play each batch as a stream, one after the other, so that the allocator may keep a state.

    Args:
        allocator (`Allocator`): one that streams. `AdaRollAllocator` itself is played in compiled code, a class of
            its kind by asking; both decide alike.
        batches (`Batches`): its `rounds` play no part.
        rates (float array of shape (batches, prompts)): pass rates.
        lengths (int array of the shape of the outcomes): tokens of each prompt's j-th rollout.
        in_flight (`int`): the most that are pending at once.
    """
    successes, rollouts = batches.nothing_played()
    if type(allocator) is not AdaRollAllocator:
        for number in range(len(batches)):
            successes[number], rollouts[number] = _play(allocator, batches, number, lengths[number], in_flight)
        return successes, rollouts
    step = len(batches) if batches.alike else 1
    for first in range(0, len(batches), step):
        part = slice(first, first + step)
        result = stream_batches(
            DrawnBatches(rates[part], batches.outcomes[part].astype(np.int64), lengths[part]),
            allocator.utility,
            batches.budget,
            in_flight,
            batches.minimum,
            prior=batches.beliefs_of(first),
        )
        successes[part], rollouts[part] = result.successes, result.rollouts
    return successes, rollouts


def _play(
    allocator: Allocator, batches: Batches, number: int, lengths: NDArray[np.int64], in_flight: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One batch, held to its bounds as the trainer does."""
    outcomes, zeros = batches.outcomes[number], np.zeros(batches.prompts, dtype=np.int64)
    state = AllocationState(
        zeros,
        zeros,
        *batches.beliefs_of(number),
        prompt_ids=batches.names_of(number),
        min_rollouts=batches.minimum,
        max_rollouts=batches.maximum,
    )
    ledger = Ledger(allocator.stream(state, batches.budget, in_flight), allocator.name, state)
    running: list[tuple[int, int, Rollout]] = []
    now = started = 0
    while started < batches.budget or running:
        while started < batches.budget and len(running) < in_flight:
            rollout = ledger.next_rollout()
            place = rollout.prompt, rollout.sample
            rollout.outcome = float(outcomes[place])
            heapq.heappush(running, (now + int(lengths[place]), started, rollout))
            started += 1
        now = running[0][0]
        while running and running[0][0] == now:
            ledger.record(heapq.heappop(running)[2])
    ledger.check_end()
    successes = ledger.successes.astype(np.int64)
    ended = replace(state, successes=successes, failures=ledger.rollouts - successes, rollouts=ledger.rollouts)
    allocator.observe(ended)
    return successes, ledger.rollouts
