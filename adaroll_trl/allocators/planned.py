"""Streams whose counts are settled before the first rollout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .base import AllocationState, Allocator, RolloutStream
from .integers import IntArray


class PlannedStream(RolloutStream):
    """Hands out `counts` (int array of shape (n,)) prompt by prompt; no outcome changes it.

    Prompt by prompt, as in GRPO, and not one pass over the prompts after another: counts are the same, and an engine
    that keeps prefixes has to hold each prompt only while its group runs.
    """

    def __init__(self, counts: IntArray) -> None:
        self._prompts = iter(np.repeat(np.arange(counts.size), counts).tolist())

    def next_prompt(self) -> int:
        return next(self._prompts)

    def record(self, prompt: int, success: bool | None) -> None:
        pass


class PlannedStreams(Allocator):
    """What allocators share that decide once, before the first rollout."""

    streams = True

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        return PlannedStream(self.allocate(replace(state, multiple_of=1), budget, 1))
