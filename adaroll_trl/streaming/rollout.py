"""One rollout of a stream, from its request to its reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rollout:
    """Args:
    prompt (`int`): its prompt's number among those of the batch.
    sample (`int`): how many requests of that prompt were started before it.
    belief_mean (`float`): the prompt's expected success probability when it was started.
    output (any): what the engine returned, in the engine's own form.
    completion_ids (list of `int`): its tokens.
    completion (`str` or list of messages): its text, as reward functions get it.
    rewards (list of `float`): one from each reward function, nan for none.
    outcome (`float`): 1 for a success, 0 for a failure, nan without reward.
    extras (`dict`): what reward functions gave to `log_extra` for it, by column.
    """

    prompt: int
    sample: int
    belief_mean: float
    output: Any = None
    completion_ids: list[int] = field(default_factory=list)
    completion: Any = None
    rewards: list[float] = field(default_factory=list)
    outcome: float = float("nan")
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names its request, and stays the same whatever is decided around it."""
        return f"{self.prompt}-{self.sample}"
