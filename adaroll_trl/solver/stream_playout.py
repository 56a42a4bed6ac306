"""Kernel: whole batches under the stream's rule, against drawn outcomes and lengths.

The engine holds `in_flight` rollouts. In a step every running one grows by a token; those that are done are scored at
once, all of a step before any is replaced, and their places are taken from the next step on. In order of start
(`play_in_order`) a rollout starts when the one that started `in_flight` before it has ended, and not before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .stream_kernels import IN_FLIGHT, LEFT, MAXIMUM, MINIMUM, PLACE, SCORED, SUCCESSES, Stream, end_one, start_next


@kernel()
def _begin(stream: Stream, budget: int, in_flight: int, minimum: int, maximum: int) -> None:
    stream.prompts[:, :4] = 0
    stream.numbers[LEFT], stream.numbers[IN_FLIGHT] = budget, in_flight
    stream.numbers[MINIMUM], stream.numbers[MAXIMUM] = minimum, maximum
    stream.numbers[PLACE:] = -1
    stream.stamp[:] = -2


@kernel(nogil=True)
def play_stream(
    stream: Stream,
    outcomes: NDArray,
    lengths: NDArray,
    budget: int,
    in_flight: int,
    minimum: int,
    maximum: int,
    begin: int,
    end: int,
    s_end: NDArray,
    n_end: NDArray,
    steps: NDArray,
) -> None:
    """Play the batches begin .. end - 1, all of `stream`'s prompts and priors.

    Args:
        outcomes, lengths: of each prompt's j-th rollout in the order in which they start, shape (batches, prompts,
            maximum); lengths in tokens, at least 1.
        s_end, n_end: filled with successes and rollouts at the end, shape (batches, prompts).
        steps: filled with the engine's steps, shape (batches,).
    """
    places = min(in_flight, budget)
    owner, slot_ends, won = np.empty(places, np.int64), np.empty(places, np.int64), np.empty(places, np.int64)
    started = np.empty(outcomes.shape[1], np.int64)
    for batch in range(begin, end):
        _begin(stream, budget, in_flight, minimum, maximum)
        started[:] = 0
        owner[:] = -1
        now, running = 0, True
        while running:
            for c in range(places):
                if owner[c] < 0 and stream.numbers[LEFT] > 0:
                    i = start_next(stream)
                    owner[c], won[c] = i, outcomes[batch, i, started[i]]
                    slot_ends[c] = now + lengths[batch, i, started[i]]
                    started[i] += 1
            running = False
            upto = np.iinfo(np.int64).max
            for c in range(places):
                if owner[c] >= 0:
                    running = True
                    upto = min(upto, slot_ends[c])
            if running:
                now = upto
            for c in range(places):
                if owner[c] >= 0 and slot_ends[c] == now:
                    end_one(stream, owner[c], won[c])
                    owner[c] = -1
        s_end[batch], n_end[batch], steps[batch] = stream.prompts[:, SUCCESSES], stream.prompts[:, SCORED], now


@kernel(nogil=True)
def play_in_order(
    stream: Stream,
    outcomes: NDArray,
    lengths: NDArray,
    budget: int,
    in_flight: int,
    minimum: int,
    maximum: int,
    begin: int,
    end: int,
    s_end: NDArray,
    n_end: NDArray,
    steps: NDArray,
) -> None:
    """As `play_stream`, with outcomes that become known in the order in which rollouts started."""
    owner, won, ends = np.empty(budget, np.int64), np.empty(budget, np.int64), np.empty(budget, np.int64)
    started = np.empty(outcomes.shape[1], np.int64)
    for batch in range(begin, end):
        _begin(stream, budget, in_flight, minimum, maximum)
        started[:] = 0
        now = 0
        for k in range(budget):
            if k >= in_flight:
                now = max(now, ends[k - in_flight])
                end_one(stream, owner[k - in_flight], won[k - in_flight])
            i = start_next(stream)
            owner[k], won[k] = i, outcomes[batch, i, started[i]]
            ends[k] = now + lengths[batch, i, started[i]]
            started[i] += 1
        for k in range(max(budget - in_flight, 0), budget):
            end_one(stream, owner[k], won[k])
        s_end[batch], n_end[batch], steps[batch] = stream.prompts[:, SUCCESSES], stream.prompts[:, SCORED], ends.max()
