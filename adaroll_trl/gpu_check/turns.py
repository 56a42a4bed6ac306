"""Trainers that take turns in one process, one optimizer step each, so that other work falls on all alike."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback


class Turns:
    """Lets threads run one at a time, in a fixed order."""

    def __init__(self, members: int) -> None:
        self._members, self._turn, self._changed = members, 0, threading.Condition()
        self.ready = threading.Barrier(members)

    def wait_for(self, member: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == member)

    def pass_on(self, member: int) -> None:
        with self._changed:
            self._turn = (member + 1) % self._members
            self._changed.notify_all()

    def give_up(self) -> None:
        """After a failure nobody has a turn again."""
        self.ready.abort()
        with self._changed:
            self._turn = -1
            self._changed.notify_all()


class Stopwatch(TrainerCallback):
    """Waits for its trainer's turn before each optimizer step, and measures the step.

    Args:
        member (`int`): place in the order.
        turns (`Turns`): shared by all.
        gauges (mapping): by name a function whose growth over the step is wanted.

    Attributes:
        steps (list of `dict`): for each step "step" and the names given to `around`, in seconds, and each gauge's
            growth.
    """

    def __init__(self, member: int, turns: Turns, gauges: Mapping[str, Callable[[], float]]) -> None:
        self.member, self.turns = member, turns
        self.steps: list[dict[str, float]] = []
        self._gauges = gauges
        self._spent: dict[str, float] = defaultdict(float)

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with the seconds that it takes counted under this name."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent[phase] += time.perf_counter() - start

        return timed

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.ready.wait()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.wait_for(self.member)
        self._spent.clear()
        self._before = {name: gauge() for name, gauge in self._gauges.items()}
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._start
        grown = {name: gauge() - self._before[name] for name, gauge in self._gauges.items()}
        self.steps.append({"step": seconds, **self._spent, **grown})
        if state.global_step < args.max_steps:
            self.turns.pass_on(self.member)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.turns.pass_on(self.member)


def stopwatches(names: Sequence[str], gauges: Mapping[str, Callable[[], float]] | None = None) -> dict[str, Stopwatch]:
    """One for each trainer, to be among its callbacks; they take turns in this order."""
    turns = Turns(len(names))
    return {name: Stopwatch(member, turns, gauges or {}) for member, name in enumerate(names)}


def train_in_turns(trainers: Mapping[str, Any], watches: Mapping[str, Stopwatch]) -> None:
    """Train all of them, each with its stopwatch among its callbacks and the same `max_steps`.

    Raises:
        RuntimeError: naming the trainer that failed first; the threads of the others stay where they are.
    """
    failures: list[tuple[str, BaseException]] = []

    def train(name: str) -> None:
        try:
            trainers[name].train()
        except BaseException as error:
            failures.append((name, error))
            watches[name].turns.give_up()

    threads = [threading.Thread(target=train, args=(name,), daemon=True) for name in trainers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failures:
        time.sleep(0.05)
    if failures:
        name, error = failures[0]
        raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error
