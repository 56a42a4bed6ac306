"""Streams in which each prompt has a rank of its own, and the prompt of the smallest rank gets the next rollout."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from typing import TypeAlias

from .base import AllocationState, RolloutStream
from .integers import bounds

Rank: TypeAlias = tuple[float, ...]


class RankedStream(RolloutStream):
    """Decides by ranks that depend on a prompt's own rollouts only: those started, and outcomes of those that ended.

    A rollout in flight is a rollout and not yet an outcome. Prompts below their minimum come first, since what they
    get is spent in any case, and those at their maximum not at all. Between equal ranks the prompt with fewer rollouts
    comes first, then the one with the lower number. A decision and the record of an outcome take O(log n) besides what
    `rank` takes: ranks lie in a heap, and one that has changed stays in it until it comes to the top.

    Args:
        state (`AllocationState`): the n prompts before the stream.
        budget (`int`): rollouts to start.

    Attributes:
        successes, failures (lists of n `float`), spent (list of n `int`): of each prompt so far.

    Raises:
        ValueError: if no counts within the bounds add up to the budget.
    """

    def __init__(self, state: AllocationState, budget: int) -> None:
        low, high = bounds(state, max(budget, state.max_rollouts or 0))
        high = high.clip(0)
        if not low.sum() <= budget <= high.sum():
            raise ValueError(
                f"budget={budget} cannot be spent: with min_rollouts={state.min_rollouts} and "
                f"max_rollouts={state.max_rollouts} the {state.num_prompts} prompts still need {low.sum()} rollouts "
                f"and have room for {high.sum()}."
            )
        self.successes: list[float] = state.successes.tolist()
        self.failures: list[float] = state.failures.tolist()
        self.spent: list[int] = state.rollouts.tolist()  # type: ignore[union-attr]
        self._least = [spent + more for spent, more in zip(self.spent, low.tolist(), strict=True)]
        self._most = [spent + more for spent, more in zip(self.spent, high.tolist(), strict=True)]
        self.rank_all()

    @abstractmethod
    def rank(self, prompt: int) -> Rank:
        """Of a prompt, from its own rollouts; the smallest comes first."""

    def rank_all(self) -> None:
        """Rank every prompt anew. Call it where ranks have changed for another reason than a rollout."""
        self._ranks = [self._whole_rank(prompt) for prompt in range(len(self.spent))]
        self._heap = [(rank, i) for i, rank in enumerate(self._ranks) if self.spent[i] < self._most[i]]
        heapq.heapify(self._heap)

    def next_prompt(self) -> int:
        while True:
            rank, prompt = heapq.heappop(self._heap)
            if rank == self._ranks[prompt]:
                break
        self.spent[prompt] += 1
        self._rank_again(prompt)
        return prompt

    def record(self, prompt: int, success: bool | None) -> None:
        if success is None:
            return
        (self.successes if success else self.failures)[prompt] += 1
        self._rank_again(prompt)

    def _rank_again(self, prompt: int) -> None:
        rank = self._whole_rank(prompt)
        if rank != self._ranks[prompt]:
            self._ranks[prompt] = rank
            if self.spent[prompt] < self._most[prompt]:
                heapq.heappush(self._heap, (rank, prompt))

    def _whole_rank(self, prompt: int) -> Rank:
        """With the rollouts in it no rank comes again once its prompt was chosen."""
        spent = self.spent[prompt]
        return (spent >= self._least[prompt], *self.rank(prompt), spent)
