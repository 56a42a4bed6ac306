"""A generation batch and its rounds: which prompts, what is known of them, what is left to spend, what came back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .weights import StoppingPlan

__all__ = ["GenerationBatch", "Round"]


@dataclass
class Round:
    """One round: what was asked for, and what came back.

    Args:
        group_ids (int array of shape (rows over all ranks,)): the prompt of each gathered row.
        belief_means (float array, same shape): the prompt's expected success probability when the row was asked for.
        local (`slice`): this rank's part of the gathered rows.
        successes, failures (float arrays of shape (n,)): each prompt's scored outcomes.
        outcomes (float array of shape (rows over all ranks,)): 1 for a success, 0 for a failure, nan without reward.
        rewards (`torch.Tensor` of shape (rows over all ranks, reward functions)): gathered rewards.
        output (`dict`): what TRL's method returned on this rank.
        metrics, logs (`dict`): what TRL added to the trainer's `_metrics["train"]` and `_logs`.
        samples (int array of shape (rows over all ranks,), *optional*): of a stream, how many rollouts of its prompt
            were started before each row.
    """

    group_ids: NDArray[np.int64]
    belief_means: NDArray[np.float64]
    local: slice
    successes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    failures: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    outcomes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    rewards: Any = None
    output: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[str, Any] = field(default_factory=dict)
    samples: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """Rollouts of the round, over all ranks."""
        return len(self.group_ids)

    @property
    def own_group_ids(self) -> NDArray[np.int64]:
        """The prompts of this rank's rows."""
        return self.group_ids[self.local]


TABLE_COLUMNS = ("group", "group_size", "round", "belief_mean")  # that TRL's table of completions gains
_TOKENS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")


@dataclass(frozen=True)
class OwnRollouts:
    """This rank's rollouts of a finished batch.

    Args:
        output (`dict`): their tokens and masks, as the trainer returned them.
        text_only (`bool`): whether the tokens are all that the model sees.
        group_ids (int array of shape (rows,)): their prompts, numbered over all ranks.
        outcomes (float array of shape (rows,)): 1 for a success, 0 for a failure, nan without reward.
        mixed_groups (int array): the prompts that have both, over all ranks.
    """

    output: dict[str, Any]
    text_only: bool
    group_ids: NDArray[np.int64]
    outcomes: NDArray[np.float64]
    mixed_groups: NDArray[np.int64]


def deal(counts: NDArray[np.int64], lengths: NDArray[np.int64], loads: NDArray[np.float64]) -> NDArray[np.int64]:
    """Deal a round's rows to the ranks like cards, so that no rank gets all rows of a long prompt.

    The rows are sorted by prompt length and dealt in turn. Each rank gets as many as the others, two ranks' rows of
    one prompt differ in number by at most one, and the hands' lengths by at most the longest prompt less the shortest.
    The rank with the greatest load so far gets the lightest hand, which keeps the sums over all rounds as close.

    Args:
        counts (int array of shape (prompts,)): rollouts of each prompt; their sum is a multiple of the ranks.
        lengths (int array of shape (prompts,)): of each prompt, in any unit.
        loads (float array of shape (ranks,)): length that each rank had in earlier rounds.

    Returns:
        int array of shape (rows,): the prompt of each row, the first rank's rows first.
    """
    order = np.argsort(lengths, kind="stable")
    hands = np.repeat(order, counts[order]).reshape(-1, len(loads)).T  # from the lightest to the heaviest
    by_load = np.argsort(-loads, kind="stable")
    dealt = np.empty_like(hands)
    dealt[by_load] = hands
    return dealt.ravel()


def tally(
    outcomes: NDArray[np.float64], group_ids: NDArray[np.int64], num_prompts: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Successes and failures of each prompt; rollouts without reward count as neither."""
    successes = np.bincount(group_ids[outcomes == 1], minlength=num_prompts)
    failures = np.bincount(group_ids[outcomes == 0], minlength=num_prompts)
    return successes.astype(np.float64), failures.astype(np.float64)


def _prompt_length(row: Mapping[str, Any]) -> int:
    """Characters of a row's prompt, which stand for its tokens."""
    prompt = row["prompt"]
    return len(prompt) if isinstance(prompt, str) else sum(len(str(message.get("content"))) for message in prompt)


@dataclass
class GenerationBatch:
    """The prompts of a generation batch, what is known of them, and what is left to spend.

    Callbacks get it as `batch` (`AllocationCallback`), to read: the trainer goes on with it, and checks nothing that a
    callback writes into it. Every rank holds the outcomes of all ranks.

    Args:
        rows (list of `dict`): one dataset row per prompt.
        keys (list of `str`): their names, see `prompt_key`.
        prior_alpha, prior_beta (float arrays of shape (n,)): beliefs before the batch.
        left (`int`): rollouts left to spend, over all processes.
        rounds_left (`int`): rounds left to spend them in.
        pass_rates (float array of shape (n,), *optional*): those that the data set gives, nan for none.
        rounds (list of `Round`): those that are over, the oldest first; a stream is one.
        plans (list of `StoppingPlan`, *optional*): one a prompt, on the main process, see `Allocator.stopping_plan`.
        estimates (`dict`): more to log, by name: what the planner expected, how beliefs fared, a stream's own figures.
        seconds (`float`): spent on allocation decisions.

    Attributes:
        successes, failures (float arrays of shape (n,)): outcomes of each prompt so far, in this batch.
        rollouts (int array of shape (n,)): rollouts of each prompt so far, those without a reward included.
    """

    rows: list[dict[str, Any]]
    keys: list[str]
    prior_alpha: NDArray[np.float64]
    prior_beta: NDArray[np.float64]
    left: int
    rounds_left: int
    pass_rates: NDArray[np.float64] | None = None
    rounds: list[Round] = field(default_factory=list)
    plans: Sequence[StoppingPlan] | None = None
    estimates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.successes = np.zeros(self.num_prompts)
        self.failures = np.zeros(self.num_prompts)
        self.rollouts = np.zeros(self.num_prompts, dtype=np.int64)

    @property
    def num_prompts(self) -> int:
        """Prompts of the batch, n, over all ranks."""
        return len(self.rows)

    @property
    def group_ids(self) -> NDArray[np.int64]:
        """The prompt of each row of the batch, in the order of the rounds' gathered rows."""
        return np.concatenate([round_.group_ids for round_ in self.rounds])

    @property
    def belief_means(self) -> NDArray[np.float64]:
        """Each prompt's expected success probability, given all that is known."""
        alpha, beta = self.prior_alpha + self.successes, self.prior_beta + self.failures
        return np.asarray(alpha / (alpha + beta))

    def plan_round(self, counts: NDArray[np.int64], rank: int, world_size: int) -> Round:
        """The round that gives prompt i `counts[i]` rollouts, and each rank as many rows as the others.

        On several ranks the rows are dealt, see `deal`. Only a batch of equal groups in a single round, which is plain
        GRPO, keeps TRL's order, in which rank r has the r-th stretch of the rows.
        """
        plain = not self.rounds and counts.sum() == self.left and (counts == counts[0]).all()
        if world_size == 1 or plain:
            group_ids = np.repeat(np.arange(self.num_prompts), counts)
        else:
            lengths = np.array([_prompt_length(row) for row in self.rows])
            loads = [lengths[round_.group_ids].reshape(world_size, -1).sum(axis=1) for round_ in self.rounds]
            group_ids = deal(counts, lengths, np.sum([np.zeros(world_size), *loads], axis=0))
        share = len(group_ids) // world_size
        return Round(group_ids, self.belief_means[group_ids], slice(rank * share, (rank + 1) * share))

    def rows_of(self, round_: Round) -> list[dict[str, Any]]:
        """This rank's rows of a round."""
        return self.copies(round_.own_group_ids)

    def copies(self, prompts: Iterable[int]) -> list[dict[str, Any]]:
        """A row for each rollout of these prompts: TRL and environments write into them."""
        rows = [deepcopy(self.rows[index]) for index in prompts]
        if not any(row.get("images") or row.get("image") is not None for row in rows):
            for row in rows:
                if "image" in row or "images" in row:
                    row["images"] = []  # so that TRL takes a round of text prompts for one
        return rows

    def record(self, round_: Round, successes: NDArray[np.float64], failures: NDArray[np.float64]) -> None:
        """Take a finished round into account."""
        self.rounds.append(round_)
        round_.successes, round_.failures = successes, failures
        self.successes += successes
        self.failures += failures
        self.rollouts += np.bincount(round_.group_ids, minlength=self.num_prompts)
        self.left -= round_.rows
        self.rounds_left -= 1

    def first_outcomes(self, min_rollouts: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Successes and failures of each prompt among rollouts that were asked for whatever its outcomes: (n,) each.

        Those of the first round; of a stream, each prompt's first `min_rollouts`, or its first.
        """
        first = self.rounds[0]
        if first.samples is None:
            return first.successes, first.failures
        early = first.samples < max(1, min_rollouts)
        return tally(first.outcomes[early], first.group_ids[early], self.num_prompts)

    def own_rollouts(self, output: dict[str, Any]) -> OwnRollouts:
        """This rank's rollouts, with what the trainer returns for them."""
        group_ids = np.concatenate([round_.own_group_ids for round_ in self.rounds])
        outcomes = np.concatenate([round_.outcomes[round_.local] for round_ in self.rounds])
        mixed = np.flatnonzero((self.successes > 0) & (self.failures > 0))
        tokens = {key: output[key] for key in _TOKENS if key in output}
        return OwnRollouts(tokens, "pixel_values" not in output, group_ids, outcomes, mixed)

    def table_columns(self) -> dict[str, list[Any]]:
        """The columns that the completions table gains, `TABLE_COLUMNS`, row by row."""
        sizes = self.rollouts[self.group_ids].tolist()
        numbers = [index + 1 for index, round_ in enumerate(self.rounds) for _ in range(round_.rows)]
        means = np.concatenate([round_.belief_means for round_ in self.rounds]).tolist()
        return dict(zip(TABLE_COLUMNS, (self.group_ids.tolist(), sizes, numbers, means), strict=True))
