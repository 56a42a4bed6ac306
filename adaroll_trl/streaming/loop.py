"""The loop of a stream: an engine kept full, scores that come in, and a policy that is asked for the next prompt."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..allocators import AllocationState, RolloutStream
from .engine import Engine
from .rollout import Rollout
from .scoring import Scorer

PATIENCE = 0.05  # seconds that the engine waits for the scores of what has just ended before the next is decided


@dataclass
class Streamed:
    """What one engine's stream brought.

    Args:
        rollouts (list of `Rollout`): prompt by prompt, in the order in which they were started.
        deciding, waiting (`float`): seconds that the policy took, and that the engine stood still for scores.
        scorings (`int`): calls of the reward functions.
        engine_steps (`int`, *optional*): forward passes, where the engine tells.
        in_flight (`int`): requests in the engine at once.
    """

    rollouts: list[Rollout]
    deciding: float
    waiting: float
    scorings: int
    engine_steps: int | None
    in_flight: int


class Ledger:
    """What is known of the prompts while they stream: it asks the policy, and holds it to the bounds.

    Args:
        policy (`RolloutStream`): who decides.
        name (`str`): the allocator's, for errors.
        state (`AllocationState`): these prompts before their first rollout.
        first (`int`): the number of their first in the batch; the policy counts from 0.
    """

    def __init__(self, policy: RolloutStream, name: str, state: AllocationState, first: int = 0) -> None:
        self._policy, self._name, self._state, self._first = policy, name, state, first
        n = state.num_prompts
        self.successes: NDArray[np.float64] = np.zeros(n)
        self.failures: NDArray[np.float64] = np.zeros(n)
        self.rollouts: NDArray[np.int64] = np.zeros(n, dtype=np.int64)
        self.seconds = 0.0

    def next_rollout(self) -> Rollout:
        start = time.perf_counter()
        prompt = int(self._policy.next_prompt())
        self.seconds += time.perf_counter() - start
        n, most = len(self.rollouts), self._state.max_rollouts
        if not 0 <= prompt < n:
            raise ValueError(f"allocator {self._name!r} streamed prompt {prompt}: it must be in 0 to {n - 1}.")
        if most is not None and self.rollouts[prompt] >= most:
            raise ValueError(
                f"allocator {self._name!r} streamed prompt {prompt} once more than max_rollouts={most} allows."
            )
        alpha = self._state.prior_alpha[prompt] + self.successes[prompt]  # type: ignore[index]
        beta = self._state.prior_beta[prompt] + self.failures[prompt]  # type: ignore[index]
        rollout = Rollout(self._first + prompt, int(self.rollouts[prompt]), float(alpha / (alpha + beta)))
        self.rollouts[prompt] += 1
        return rollout

    def record(self, rollout: Rollout) -> None:
        start = time.perf_counter()
        known = not math.isnan(rollout.outcome)
        prompt = rollout.prompt - self._first
        self._policy.record(prompt, bool(rollout.outcome) if known else None)
        self.seconds += time.perf_counter() - start
        if known:
            self.successes[prompt] += rollout.outcome
            self.failures[prompt] += 1 - rollout.outcome

    def check_end(self) -> None:
        least = self._state.min_rollouts
        if (self.rollouts < least).any():
            short = np.flatnonzero(self.rollouts < least)
            raise ValueError(
                f"allocator {self._name!r} ended its stream with {self.rollouts[short[0]]} rollouts of prompt "
                f"{short[0]}: min_rollouts={least}."
            )


def stream_rollouts(
    engine: Engine, scorer: Scorer, ledger: Ledger, budget: int, in_flight: int, in_order: bool = False
) -> Streamed:
    """Generate and score exactly `budget` rollouts, `in_flight` at a time. On any error the engine is emptied.

    The next prompt is decided once what has just ended is scored, if that takes no longer than `PATIENCE`. Scores that
    take longer come in while the engine goes on, and their rollouts count as in flight for the policy till then. No
    more than 2 `in_flight` rollouts are ever without a score: beyond, none is started, for what is decided blindly
    would be decided badly.

    With `in_order`, the k-th decision knows the outcomes of the first k - `in_flight` rollouts and of no other. Then
    no decision depends on how long a completion is, or on time; but a long one holds up those behind it.

    Raises:
        Exception: what the engine or a reward function raised.
    """
    queue = _InOrder(ledger, in_flight) if in_order else _AsTheyEnd(ledger, in_flight)
    rollouts: list[Rollout] = []
    running: dict[str, Rollout] = {}
    open_, waiting = 0, 0.0
    try:
        while len(rollouts) < budget or open_:
            while len(rollouts) < budget and len(running) < in_flight and queue.lets_start(open_):
                rollout = ledger.next_rollout()
                queue.started(rollout)
                rollouts.append(rollout)
                running[rollout.name] = rollout
                open_ += 1
                engine.submit(rollout.name, rollout.prompt)
            ended = []
            if running:
                for name, completion_ids, output in engine.poll(wait=scorer.open == 0):
                    rollout = running.pop(name)
                    rollout.completion_ids, rollout.output = completion_ids, output
                    ended.append(rollout)
            scorer.submit(ended)
            start = time.perf_counter()
            patience = PATIENCE if ended and scorer.seconds <= PATIENCE else 0.0
            for rollout in scorer.collect(patience if running else None):
                queue.scored(rollout)
                open_ -= 1
            waiting += time.perf_counter() - start
        queue.end()
        ledger.check_end()
    except BaseException:
        engine.abort()
        raise
    finally:
        scorer.close()
        engine.close()
    rollouts.sort(key=lambda rollout: (rollout.prompt, rollout.sample))
    return Streamed(rollouts, ledger.seconds, waiting, scorer.calls, engine.steps, in_flight)


class _AsTheyEnd:
    """Every score is known to the next decision."""

    def __init__(self, ledger: Ledger, in_flight: int) -> None:
        self._ledger, self._in_flight = ledger, in_flight

    def lets_start(self, unscored: int) -> bool:
        return unscored < 2 * self._in_flight

    def started(self, rollout: Rollout) -> None:
        pass

    def scored(self, rollout: Rollout) -> None:
        self._ledger.record(rollout)

    def end(self) -> None:
        """All are scored; the policy hears of those that it has not heard of."""


class _InOrder(_AsTheyEnd):
    """Once `in_flight` rollouts were started, each decision learns one more score: the oldest not yet known."""

    def __init__(self, ledger: Ledger, in_flight: int) -> None:
        super().__init__(ledger, in_flight)
        self._unknown: deque[Rollout] = deque()  # in the order of their start
        self._scored: set[str] = set()

    def lets_start(self, unscored: int) -> bool:
        if len(self._unknown) < self._in_flight:
            return True
        if self._unknown[0].name not in self._scored:
            return False
        self._ledger.record(self._unknown.popleft())
        return True

    def started(self, rollout: Rollout) -> None:
        self._unknown.append(rollout)

    def scored(self, rollout: Rollout) -> None:
        self._scored.add(rollout.name)

    def end(self) -> None:
        while self._unknown:
            self._ledger.record(self._unknown.popleft())
