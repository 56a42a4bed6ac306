"""Scores rollouts while the engine goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from .rollout import Rollout


class Scorer:
    """One thread that scores what has ended, all that is there at a time, so that slow rewards never stop the engine.

    One thread, because reward functions need not be safe to call from several. While it waits for a reward (a judge,
    a sandbox, an async function) the engine runs, and what ends meanwhile is scored in the next call together.

    Args:
        score (callable): takes a list of rollouts and fills in their rewards and outcomes.
    """

    def __init__(self, score: Callable[[list[Rollout]], None]) -> None:
        self._score = score
        self._todo: SimpleQueue[Rollout | None] = SimpleQueue()
        self._done: SimpleQueue[list[Rollout] | BaseException] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name="adaroll-scorer", daemon=True)
        self._thread.start()
        self.open = 0  # rollouts that are not scored yet
        self.calls = 0
        self.seconds = 0.0  # that the last call took

    def submit(self, rollouts: list[Rollout]) -> None:
        self.open += len(rollouts)
        for rollout in rollouts:
            self._todo.put(rollout)

    def collect(self, seconds: float | None) -> list[Rollout]:
        """Rollouts that were scored: at once if none is open, else after at most this long (None: until there are).

        Raises:
            Exception: what a reward function raised.
        """
        scored: list[Rollout] = []
        end = None if seconds is None else time.monotonic() + seconds
        while self.open:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                answer = self._done.get(timeout=left) if left != 0 else self._done.get_nowait()
            except Empty:
                break
            if isinstance(answer, BaseException):
                raise answer
            self.open -= len(answer)
            scored += answer
            if end is None:
                end = time.monotonic()  # something is there: take what else is, and do not wait for more
        return scored

    def close(self) -> None:
        """End the thread after the call that it is at; what is not scored by then never is. Waits for nothing."""
        self._closed = True
        self._todo.put(None)

    def join(self) -> None:
        """After `close`: wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch = [self._todo.get()]
            while not self._todo.empty():
                batch.append(self._todo.get())
            if self._closed:
                return
            rollouts = [rollout for rollout in batch if rollout is not None]
            try:
                start = time.monotonic()
                self._score(rollouts)
                self.calls, self.seconds = self.calls + 1, time.monotonic() - start
            except BaseException as error:  # the loop raises it
                self._done.put(error)
                return
            self._done.put(rollouts)
