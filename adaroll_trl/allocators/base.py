"""The contract of an allocator: from what is known of each prompt to the number of rollouts it gets in this round.

An allocator is plain numpy: it knows nothing of torch, TRL or processes. The trainer asks it once a round on rank 0
and broadcasts the counts; the simulator asks it in a loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..weights import StoppingPlan


@dataclass
class AllocationState:
    """What is known of the n prompts of a generation batch before a round.

    Args:
        successes, failures (float arrays of shape (n,)): scored outcomes in this batch so far.
        prior_alpha, prior_beta (float arrays of shape (n,), or numbers): each prompt's Beta belief before this batch.
        rollouts (int array of shape (n,), *optional*): rollouts spent in this batch so far. It exceeds successes +
            failures by the rollouts that got no reward. Defaults to successes + failures.
        prompt_ids (sequence of n `str`, *optional*): names that stay the same over epochs.
        min_rollouts (`int`): every prompt ends the batch with at least this many rollouts.
        max_rollouts (`int`, *optional*): and with at most this many.
        multiple_of (`int`): every round's total must be a multiple of it (the number of processes).
    """

    successes: NDArray[Any]
    failures: NDArray[Any]
    prior_alpha: NDArray[Any] | float = 1.0
    prior_beta: NDArray[Any] | float = 1.0
    rollouts: NDArray[Any] | None = None
    prompt_ids: Sequence[str] | None = None
    min_rollouts: int = 0
    max_rollouts: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        self.successes = np.asarray(self.successes)
        self.failures = np.asarray(self.failures)
        n = self.successes.shape[0]
        self.prior_alpha = np.broadcast_to(np.asarray(self.prior_alpha, dtype=np.float64), (n,))
        self.prior_beta = np.broadcast_to(np.asarray(self.prior_beta, dtype=np.float64), (n,))
        if self.rollouts is None:
            self.rollouts = (self.successes + self.failures).astype(np.int64)

    @property
    def num_prompts(self) -> int:
        """n, the prompts of the batch."""
        return int(self.successes.shape[0])

    @property
    def posterior(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both parameters of each prompt's Beta belief, with this batch's outcomes: arrays of shape (n,)."""
        return self.prior_alpha + self.successes, self.prior_beta + self.failures

    @property
    def belief_means(self) -> NDArray[np.float64]:
        """Each prompt's expected success probability, with this batch's outcomes: shape (n,)."""
        alpha, beta = self.posterior
        return np.asarray(alpha / (alpha + beta))

    @property
    def keys(self) -> list[str]:
        """A name for each prompt: its id, or its place in the batch where there are no ids."""
        return [str(key) for key in (range(self.num_prompts) if self.prompt_ids is None else self.prompt_ids)]


class RolloutStream(ABC):
    """Decides a batch rollout by rollout while others are in flight.

    The engine asks for the next request whenever it has room, and reports every rollout when it has ended and was
    scored. Rollouts end in any order. After `budget` calls of `next_prompt` every prompt has its minimum and none more
    than its maximum.
    """

    @abstractmethod
    def next_prompt(self) -> int:
        """The prompt of the next request, which is in flight from now on. Called exactly `budget` times."""

    @abstractmethod
    def record(self, prompt: int, success: bool | None) -> None:
        """A rollout of `prompt` has ended. None: it got no reward, and tells nothing, but is no longer in flight."""


class Allocator(ABC):
    """Decides how many rollouts each prompt of a generation batch gets next.

    Subclasses implement `allocate`, and `stream` where `streams` is True. An allocator that keeps state over steps
    also implements `state_dict` and `load_state_dict`; the trainer stores it in the checkpoint.

    Attributes:
        name (`str`): for messages and the config.
        largest_group (`int`, *optional*): the most rollouts a prompt that it can plan for; None: any number.
        reads_rounds (`bool`): whether the user's `rounds` has an effect on it.
        needs_beliefs (`bool`): whether it tells prompts apart by carried beliefs alone, before the first rollout.
        streams (`bool`): whether `stream` works: it can decide while rollouts are pending.
        waits_for (`str`): before its next decision; why it does not stream, where it does not.
    """

    name: str
    largest_group: int | None = None
    reads_rounds: bool = True
    needs_beliefs: bool = False
    streams: bool = False
    waits_for: str = "all outcomes of a round"

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        """Rounds that it wants for `budget` rollouts over `num_prompts` prompts; `rounds` is the user's wish."""
        return rounds

    @abstractmethod
    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        """Counts for the next round.

        Returns an int64 array of shape (n,), each at least 0, whose sum is positive, at most `rollouts_left`, a
        multiple of `state.multiple_of`, and equal to `rollouts_left` when `rounds_left` is 1. (`rollouts_left` itself
        must be such a multiple.)
        """

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        """Start to spend `budget` rollouts one by one on the prompts of `state`.

        Args:
            state (`AllocationState`): its `multiple_of` plays no part, `min_rollouts` and `max_rollouts` bind at the
                end, as for `allocate`.
            budget (`int`): at least 1.
            in_flight (`int`): the most rollouts that are pending at once; at least 1.

        Raises:
            ValueError: if this allocator decides in rounds only.
        """
        raise ValueError(decides_in_rounds(self))

    def observe(self, state: AllocationState) -> None:  # noqa: B027 (nothing to learn is the usual case)
        """A batch is over: `state` has all its outcomes, and the beliefs from before it. Called once, then."""

    def expected_utility(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> float:
        """Expected terminal utility, summed over prompts, of following this allocator from `state`; nan if unknown."""
        return float("nan")

    def stopping_plan(
        self, state: AllocationState, rollouts_left: int, rounds_left: int
    ) -> Sequence[StoppingPlan] | None:
        """One plan a prompt, if each prompt's rollouts are decided from its own outcomes alone; None otherwise.

        Called before the first round, with the arguments of `allocate`. `prompt_weighting="unbiased"` needs it where
        there are several rounds. In each round a prompt gets exactly what its plan says; in rounds where that is 0 it
        may get any number, so that the budget can be spent.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state that lives over steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: if it is not that, naming what in it cannot be.
        """
        self.known_state(state, ())

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now: a function that returns it however many decisions have followed.

        The trainer takes one before every batch, and asks it when a checkpoint falls into the batch. It is good until
        the next snapshot. An allocator with a large state overrides this, and records what its decisions change.
        """
        state = deepcopy(self.state_dict())
        return lambda: state

    def known_state(self, state: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """`state`, if it is a dict that is empty or has exactly these entries; else a ValueError."""
        keeps = f"allocator {self.name!r} keeps {sorted(names) or 'no state'}"
        if not isinstance(state, Mapping):
            raise ValueError(f"{keeps}, and a state is a dict, not {repr(state)[:200]}.")
        if state and set(state) != set(names):
            raise ValueError(
                f"{keeps}, but the checkpoint has {sorted(map(str, state))}: it is of another allocator. Resume with "
                "that one, or start a new run."
            )
        return state


def decides_in_rounds(allocator: Allocator | type[Allocator]) -> str:
    """Why an allocator does not stream, in a sentence."""
    return (
        f"allocator={allocator.name!r} cannot stream: it waits for {allocator.waits_for}, and in a stream some "
        "rollouts are always pending."
    )
