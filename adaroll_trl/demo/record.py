"""What is kept of a training run: every rollout's reward, and the held-out evaluations on the way.

Both arms are recorded at the same place, their reward function, so nothing that is shown of one is measured otherwise
in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problems import Grader

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """The groups of a run, one entry a prompt and step; int64 arrays of equal length, in the order of the steps."""

    step: IntArray
    prompt: IntArray
    level: IntArray  # -1 where unknown
    rollouts: IntArray
    successes: IntArray

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """Whether a group has both kinds of outcome, and with that a gradient."""
        return (self.successes > 0) & (self.successes < self.rollouts)

    @property
    def success_share(self) -> NDArray[np.float64]:
        return self.successes / self.rollouts

    def where(self, chosen: NDArray[np.bool_]) -> Groups:
        return Groups(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[IntArray, ...]:
        return self.step, self.prompt, self.level, self.rollouts, self.successes


@dataclass
class RolloutRecord:
    """Rewards as they come in; `groups` puts the rollouts of one prompt and step together, whatever the round."""

    rows: list[tuple[int, int, int, float]] = field(default_factory=list)  # step, prompt, level, reward
    tokens: int = 0

    def groups(self) -> Groups:
        if not self.rows:
            return Groups(*(np.zeros(0, dtype=np.int64) for _ in range(5)))
        table = np.array(self.rows)
        keys, which = np.unique(table[:, :3].astype(np.int64), axis=0, return_inverse=True)
        which = which.reshape(-1)
        rollouts = np.bincount(which)
        successes = np.bincount(which, weights=table[:, 3] >= 0.5).astype(np.int64)
        return Groups(keys[:, 0], keys[:, 1], keys[:, 2], rollouts, successes)

    def reward_function(self, grade: Grader) -> Callable[..., list[float]]:
        """A TRL reward function that grades each completion against the `answer` column, and records it."""

        def correct(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
            rewards = [grade(_text(completion), gold) for completion, gold in zip(completions, answer, strict=True)]
            step = columns["trainer_state"].global_step
            for prompt, level, reward in zip(columns["prompt_id"], columns["level"], rewards, strict=True):
                self.rows.append((step, int(prompt), -1 if level is None else int(level), reward))
            self.tokens += sum(len(ids) for ids in columns["completion_ids"])
            return rewards

        return correct


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


@dataclass
class ArmResult:
    """One training run.

    Args:
        arm (`str`): a key of `settings.ARMS`.
        groups (`Groups`): every group that it trained on.
        tokens (`int`): completion tokens generated in training.
        step_seconds (list of `float`): wall clock of each step. The first one includes what is compiled on the way.
        held_out (list of (step, float array of shape (prompts,))): accuracy of each held-out prompt after that step.
    """

    arm: str
    groups: Groups
    tokens: int
    step_seconds: list[float]
    held_out: list[tuple[int, NDArray[np.float64]]]
