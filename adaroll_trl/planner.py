"""The planner between trainer and allocator: it states the question, checks the answer and estimates its worth.

Plain numpy. On several processes only the main one asks it for decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .allocators import AllocationState, Allocator, RolloutStream, make_allocator
from .allocators.adaroll import AdaRollAllocator
from .allocators.contract import check_counts, check_rounds, name_of
from .allocators.planned import PlannedStreams
from .allocators.uniform import UniformAllocator
from .batch import GenerationBatch
from .checks import check_max_rollouts, nothing_to_decide
from .config import AdaRollOptions, load_by_path, naming_allocator_kwargs
from .solver import lagrangian_bound
from .streaming.loop import Ledger
from .utilities import Utility, as_utility, expected_utility_after, make_utility


@dataclass
class Decision:
    """A round's counts, how long they took to decide, and (in the first round) estimates for the log."""

    counts: np.ndarray
    seconds: float
    estimates: dict[str, float] = field(default_factory=dict)


class RolloutPlanner:
    """Decides the rounds of a generation batch with an allocator.

    Args:
        options (`AdaRollOptions`): the user's options.
        num_prompts (`int`): prompts in a generation batch.
        num_generations (`int`): rollouts per prompt, on average.
        world_size (`int`): number of processes; every round's total is a multiple of it.
        warn (callable): called with the reason where such a batch leaves nothing to decide.

    Attributes:
        idle (`bool`): whether that is so.
    """

    def __init__(
        self,
        options: AdaRollOptions,
        num_prompts: int,
        num_generations: int,
        world_size: int,
        warn: Callable[[str], None],
    ) -> None:
        self.rounds = 1 if options.stream_rollouts else options.rounds
        self.streaming = options.stream_rollouts
        self.num_generations = num_generations
        self.world_size = world_size
        self.min_rollouts = min(options.min_rollouts, num_generations)
        self.utility = _make_utility(options)
        self.allocator: Allocator = _make_allocator(options, self.utility)
        self.max_rollouts = self._choose_maximum(options.max_rollouts)
        check_max_rollouts(num_generations, options.min_rollouts, self.max_rollouts)
        self._bounds: dict[tuple[float, ...], float] = {}
        idle = nothing_to_decide(num_prompts, num_generations, options.min_rollouts, world_size)
        self.idle = idle is not None
        if idle and not isinstance(self.allocator, UniformAllocator):
            self.allocator = UniformAllocator()
            warn(idle)

    def use_kappa(self, kappa: float) -> None:
        """From the next decision on, utility "progress" has this kappa."""
        if self.utility.name != "progress" or dict(self.utility.parameters)["kappa"] == kappa:
            return
        self.utility = make_utility("progress", kappa=kappa)
        self._bounds.clear()
        if isinstance(self.allocator, AdaRollAllocator):
            self.allocator.utility = self.utility

    def _choose_maximum(self, given: int | None) -> int:
        """The user's maximum, or 4 * num_generations as far as the allocator can plan."""
        most = self.allocator.largest_group
        wanted = 4 * self.num_generations if given is None else given
        if most is None or wanted <= most:
            return wanted
        if given is not None or self.num_generations > most:
            field, value = ("max_rollouts", given) if given is not None else ("num_generations", self.num_generations)
            raise ValueError(
                f"{field}={value}: allocator {self.allocator.name!r} plans groups of up to {most} rollouts. Set "
                f"max_rollouts to at most {most}, or use another allocator."
            )
        return most

    def num_rounds(self, num_prompts: int) -> int:
        """Rounds for a batch: at most what was asked for, and never more than every process can take part in.

        A stream counts as one.
        """
        if self.streaming:
            return 1
        budget = num_prompts * self.num_generations
        rounds = self.allocator.num_rounds(num_prompts, budget, self.rounds, self.min_rollouts)
        return max(1, min(check_rounds(rounds, name_of(self.allocator)), budget // self.world_size))

    def has_stopping_plan(self, num_prompts: int) -> bool:
        """Whether each prompt's rollouts are decided before the first reward, or from its own outcomes alone."""
        if self.streaming:
            return isinstance(self.allocator, PlannedStreams)
        rounds = self.num_rounds(num_prompts)
        start = AllocationState(
            np.zeros(num_prompts),
            np.zeros(num_prompts),
            min_rollouts=self.min_rollouts,
            max_rollouts=self.max_rollouts,
            multiple_of=self.world_size,
        )
        budget = num_prompts * self.num_generations
        return rounds == 1 or self.allocator.stopping_plan(start, budget, rounds) is not None

    def decide(self, batch: GenerationBatch) -> Decision:
        """The next round's counts, checked."""
        state = self._state(batch)
        start = time.perf_counter()
        if not batch.rounds:
            batch.plans = self.allocator.stopping_plan(state, batch.left, batch.rounds_left)
        estimates = {} if batch.rounds else self._estimates(batch, state)
        counts = self.allocator.allocate(state, batch.left, batch.rounds_left)
        seconds = time.perf_counter() - start
        counts = check_counts(counts, state, batch.left, batch.rounds_left, name_of(self.allocator))
        return Decision(counts, seconds, estimates)

    def start_streams(
        self, batch: GenerationBatch, parts: Sequence[range], in_flight: int
    ) -> tuple[list[RolloutStream] | None, dict[str, float]]:
        """Before the parts of a batch stream: who decides for each, if that is to be sent, and estimates for the log.

        Only the main process knows what an allocator remembers from earlier batches. One that remembers nothing is
        asked by each process for itself, see `ledger`, since tables are better made than sent.
        """
        state = self._state(batch)
        estimates = self._estimates(batch, state)
        if len(parts) == 1 or not self.allocator.state_dict():
            return None, estimates
        return [self._stream(batch, part, in_flight) for part in parts], estimates

    def ledger(
        self, batch: GenerationBatch, part: range, in_flight: int, stream: RolloutStream | None = None
    ) -> Ledger:
        """Who decides for one part of a batch, checked."""
        name = name_of(self.allocator)
        stream = stream or self._stream(batch, part, in_flight)
        return Ledger(stream, name, self._state(batch, part), part.start)

    def _stream(self, batch: GenerationBatch, part: range, in_flight: int) -> RolloutStream:
        return self.allocator.stream(self._state(batch, part), len(part) * self.num_generations, in_flight)

    def observe(self, batch: GenerationBatch) -> None:
        """Tell the allocator how the batch ended."""
        self.allocator.observe(self._state(batch))

    def _state(self, batch: GenerationBatch, part: range | None = None) -> AllocationState:
        own = slice(None) if part is None else slice(part.start, part.stop)
        return AllocationState(
            batch.successes[own].copy(),
            batch.failures[own].copy(),
            batch.prior_alpha[own],
            batch.prior_beta[own],
            rollouts=batch.rollouts[own].copy(),
            prompt_ids=batch.keys[own],
            min_rollouts=self.min_rollouts,
            max_rollouts=self.max_rollouts,
            multiple_of=self.world_size,
        )

    def _estimates(self, batch: GenerationBatch, state: AllocationState) -> dict[str, float]:
        """Utility per prompt expected before the first rollout: the allocator's, plain GRPO's, and a bound on both."""
        n = batch.num_prompts
        uniform = expected_utility_after(self.utility, self.num_generations, batch.prior_alpha, batch.prior_beta)
        planned = math.nan if self.streaming else self.allocator.expected_utility(state, batch.left, batch.rounds_left)
        return {
            "utility/planned": planned / n,
            "utility/uniform": float(uniform.mean()),
            "utility/bound": self._bound(batch) / n,
        }

    def _bound(self, batch: GenerationBatch) -> float:
        """The bound on every policy; kept where all prompts have one prior, as they do when beliefs are forgotten."""
        priors = np.stack([batch.prior_alpha, batch.prior_beta], axis=1)
        limits = (self.min_rollouts, self.max_rollouts)
        if (priors != priors[0]).any():
            return lagrangian_bound(batch.num_prompts, batch.left, self.utility, priors, *limits)
        prior = (float(priors[0, 0]), float(priors[0, 1]))
        key = (batch.num_prompts, batch.left, *prior)
        if key not in self._bounds:
            self._bounds[key] = lagrangian_bound(batch.num_prompts, batch.left, self.utility, prior, *limits)
        return self._bounds[key]


def _make_utility(options: AdaRollOptions) -> Utility:
    if ":" in options.utility:
        return as_utility(load_by_path("utility", options.utility))
    return make_utility(options.utility, **({"kappa": options.kappa} if options.utility == "progress" else {}))


def load_allocator(path: str, arguments: Mapping[str, Any], name: str = "allocator") -> Allocator:
    """An allocator of the user's own.

    Args:
        path (`str`): 'package.module:Class'.
        arguments (mapping): its keyword arguments.
        name (`str`): of the field that holds the path, for errors.

    Raises:
        ValueError: if there is no such class, it cannot be made, or it makes no `Allocator`.
    """
    loaded = load_by_path(name, path)
    try:
        allocator = loaded(**arguments)
    except Exception as error:
        given = f"with allocator_kwargs={dict(arguments)!r}" if arguments else "without arguments"
        raise ValueError(
            f"{name}={path!r} cannot be made {given}: {error}. Its parameters are what `allocator_kwargs` gives; "
            "the others need defaults. Or set `trainer.allocator` to an instance."
        ) from error
    if not isinstance(allocator, Allocator):
        raise ValueError(
            f"{name}={path!r} makes a {type(allocator).__name__}, not an adaroll_trl.allocators.Allocator."
        )
    return allocator


def _make_allocator(options: AdaRollOptions, utility: Utility) -> Allocator:
    arguments = options.allocator_kwargs or {}
    assert isinstance(arguments, dict)  # `validate_adaroll` has parsed it
    if ":" in options.allocator:
        return load_allocator(options.allocator, arguments)
    # Of values that the config has not looked at, only a file of embeddings is left
    with naming_allocator_kwargs(options.allocator) if arguments else nullcontext():
        return make_allocator(
            options.allocator,
            utility=utility,
            block_size=options.block_size,
            draws_per_round=options.draws_per_round,
            table_cache_dir=options.table_cache_dir,
            **arguments,
        )
