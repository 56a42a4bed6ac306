"""What all ways to play have in common: the batches, and what is believed of their prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Played: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Successes and rollouts at the end of each batch, both of shape (batches, prompts)."""


@dataclass(frozen=True)
class Batches:
    """Batches of prompts to spend a budget on.

    Attributes:
        outcomes (int8 array of shape (batches, prompts, maximum)): result of each prompt's j-th rollout.
        budget, rounds (`int`): rollouts of a batch, and rounds to spend them in.
        alpha, beta (float arrays of shape (batches, prompts), or (1, prompts)): beliefs on the prompts before a batch.
        minimum, maximum (`int`): rollouts of a prompt.
        first (`int`): number of the first batch; prompts are named by the numbers of batch and prompt.
    """

    outcomes: NDArray[np.int8]
    budget: int
    rounds: int
    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]
    minimum: int
    maximum: int
    first: int = 0

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def prompts(self) -> int:
        return int(self.outcomes.shape[1])

    @property
    def alike(self) -> bool:
        """Whether the beliefs are the same in all batches."""
        return len(self.alpha) == 1

    def beliefs(self, which: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`alpha` and `beta` of some batches."""
        return (self.alpha, self.beta) if self.alike else (self.alpha[which], self.beta[which])

    def beliefs_of(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`alpha` and `beta` of the prompts of one batch, each of shape (prompts,)."""
        alpha, beta = self.beliefs(slice(number, number + 1))
        return alpha[0], beta[0]

    def names_of(self, number: int) -> list[str]:
        """Those of the prompts of one batch."""
        return [f"{self.first + number}-{prompt}" for prompt in range(self.prompts)]

    def part(self, which: NDArray[np.int64]) -> Batches:
        """Some of the batches."""
        alpha, beta = self.beliefs(which)
        return replace(self, outcomes=self.outcomes[which], alpha=alpha, beta=beta)

    def nothing_played(self) -> Played:
        """Zeros to be filled."""
        shape = self.outcomes.shape[:2]
        return np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
