"""What a stream needs of a generation engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

WAIT, GLANCE = 0.1, 0.01  # seconds that a poll takes at most, with `wait` and without


class Engine(ABC):
    """An engine that takes requests while others run. One process, and one thread, talks to it.

    Attributes:
        steps (`int`, *optional*): forward passes since the stream began; None where the engine does not tell.
    """

    steps: int | None = None

    @abstractmethod
    def submit(self, name: str, prompt: int) -> None:
        """Start a completion of the prompt with this number. The name is not in use."""

    @abstractmethod
    def poll(self, wait: bool) -> list[tuple[str, list[int], Any]]:
        """What has ended: names, tokens and the engine's own outputs; may be empty.

        An engine that runs in the caller's thread goes on by a step. Any other returns when something has ended, or
        after a short time: a very short one without `wait`, where the caller has scores to look after.

        Raises:
            RuntimeError: if requests were lost, or the engine is dead.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop all requests, so that the engine is empty for the next call. It may be dead: then do what is left."""

    def close(self) -> None:  # noqa: B027 (most have nothing to let go)
        """Let go of what the stream held; after `abort`, or when nothing runs."""
