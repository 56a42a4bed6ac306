"""What an allocator can be expected to do with a run's batches, before the first rollout. Plain numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from ..allocators import allocator_class
from ..allocators.adaroll import AdaRollAllocator
from ..allocators.contract import name_of
from ..allocators.joint import AdaRollJointAllocator
from ..allocators.uniform import UniformAllocator
from ..allocators.vip import VIPAllocator
from ..batch import GenerationBatch
from ..config import AdaRollOptions
from ..planner import RolloutPlanner
from ..simulation import beta, simulate
from ..solver import lagrangian_bound
from ..solver.round_tables import DEEPEST, round_tables
from ..solver.store import TableStore

_PROMPTS_SIMULATED = 32_000
_SECONDS_SIMULATED = 5.0
_FEWEST_BATCHES = 10


@dataclass(frozen=True)
class Tables:
    """An allocator's tables: bytes in memory, and whether they came from disk (None: this kind is not kept there)."""

    bytes: int
    cached: bool | None


@dataclass(frozen=True)
class AllocationPlan:
    """What is expected of the first batch, whose prompts all have the prior.

    Attributes:
        allocator, utility (`str`): as decided with; the allocator is "uniform" where there is nothing to decide.
        rounds, rounds_given (`int`): generation rounds of a batch, and how many were asked for: an allocator may use
            fewer.
        min_rollouts, max_rollouts (`int`): bounds on a prompt's group that hold.
        prior (pair of `float`), belief_decay (`float`), prompt_weighting (`str`): as given.
        first_round (pair of `int`): fewest and most rollouts of a prompt in the first round.
        signal_uniform (`float`): share of prompts with both outcomes for equal groups, exact.
        signal_adaptive, signal_error (`float`, *optional*): the same for the allocator, simulated, and its standard
            error. None for an allocator of the user's own, which is not played.
        signal_bound (`float`): no policy within the bounds can expect more (`lagrangian_bound`).
        utility_uniform, utility_planned, utility_bound (`float`): expected utility per prompt. Planned is the
            allocator's own estimate, for AdaRoll of a relaxed problem whose budget is met on average; it may be nan.
        largest_group (`int`, *optional*): the largest group of the simulated batches.
        batches (`int`): how many were simulated.
        tables (`Tables`, *optional*): None for allocators without.
        first_seconds, next_seconds (`float`): to decide on the first round the first time, with loading or compiling
            the solver and with tables, and once more.
    """

    allocator: str
    utility: str
    rounds: int
    rounds_given: int
    min_rollouts: int
    max_rollouts: int
    prior: tuple[float, float]
    belief_decay: float
    prompt_weighting: str
    first_round: tuple[int, int]
    signal_uniform: float
    signal_adaptive: float | None
    signal_error: float | None
    signal_bound: float
    utility_uniform: float
    utility_planned: float
    utility_bound: float
    largest_group: int | None
    batches: int
    tables: Tables | None
    first_seconds: float
    next_seconds: float


def uniform_signal(num_generations: int, prior: tuple[float, float]) -> float:
    """The chance that a group of that size has both outcomes, for a success rate drawn from the Beta prior.

    >>> round(uniform_signal(8, (1.0, 1.0)), 6)  # 1 - 2/9
    0.777778
    """
    return beta(*prior).signal(num_generations)


def plan_allocation(
    options: AdaRollOptions, num_prompts: int, num_generations: int, world_size: int, warn: Callable[[str], None]
) -> AllocationPlan:
    """Ask the planner for the first batch, and play its allocator on simulated ones.

    Simulated batches are played as on one process; on several, a round's total is rounded to their number.

    Args:
        options, num_prompts, num_generations, world_size, warn: as `RolloutPlanner` takes them.

    Raises:
        ValueError: for options that the trainer would refuse.
        MemoryError: if the allocator's tables cannot fit.
    """
    planner = RolloutPlanner(options, num_prompts, num_generations, world_size, warn)
    store = None
    if isinstance(planner.allocator, AdaRollJointAllocator):
        store = planner.allocator.store = _Watched(options.table_cache_dir)
    if isinstance(planner.allocator, VIPAllocator):
        planner.allocator.process = None  # prompts that all have the prior tell nothing about their neighbours
    prior = (float(options.prior_alpha), float(options.prior_beta))
    budget = num_prompts * num_generations
    rounds = planner.num_rounds(num_prompts)

    def first_decision() -> Any:
        start = time.perf_counter()
        alpha, beta = (np.full(num_prompts, value) for value in prior)
        keys = [f"prompt {number}" for number in range(num_prompts)]
        batch = GenerationBatch([{} for _ in keys], keys, alpha, beta, left=budget, rounds_left=rounds)
        return planner.decide(batch), time.perf_counter() - start

    decision, first_seconds = first_decision()
    _, next_seconds = first_decision()
    bounds = (planner.min_rollouts, planner.max_rollouts)
    simulated = _play(planner, num_prompts, budget, rounds, prior)
    uniform = uniform_signal(num_generations, prior)
    return AllocationPlan(
        allocator=name_of(planner.allocator),
        utility=options.utility,
        rounds=rounds,
        rounds_given=options.rounds,
        min_rollouts=bounds[0],
        max_rollouts=bounds[1],
        prior=prior,
        belief_decay=float(options.belief_decay),
        prompt_weighting=options.prompt_weighting,
        first_round=(int(decision.counts.min()), int(decision.counts.max())),
        signal_uniform=uniform,
        signal_bound=lagrangian_bound(num_prompts, budget, "mixed", prior, *bounds) / num_prompts,
        utility_uniform=decision.estimates["utility/uniform"],
        utility_planned=decision.estimates["utility/planned"],
        utility_bound=decision.estimates["utility/bound"],
        tables=_tables(planner, rounds, prior, store),
        first_seconds=first_seconds,
        next_seconds=next_seconds,
        **(simulated or _equal_groups(planner, num_generations, uniform)),
    )


def _equal_groups(planner: RolloutPlanner, num_generations: int, uniform: float) -> dict[str, Any]:
    """What needs no simulation for equal groups, and cannot be had for an allocator of the user's own."""
    if isinstance(planner.allocator, UniformAllocator):
        return {
            "signal_adaptive": uniform,
            "signal_error": 0.0,
            "largest_group": num_generations,
            "batches": 0,
        }
    return {"signal_adaptive": None, "signal_error": None, "largest_group": None, "batches": 0}


def _play(
    planner: RolloutPlanner, num_prompts: int, budget: int, rounds: int, prior: tuple[float, float]
) -> dict[str, Any] | None:
    """Simulated share with signal; as many batches as a few seconds hold where they are played one by one."""
    allocator = planner.allocator
    name = getattr(allocator, "name", "")
    if isinstance(allocator, UniformAllocator) or type(allocator) is not allocator_class(name):
        return None
    if not isinstance(allocator, AdaRollJointAllocator):  # whose tables are large, and which keeps no other state
        allocator = deepcopy(allocator)

    def play(batches: int, seed: int) -> Any:
        return simulate(
            allocator,
            num_prompts,
            budget,
            rounds,
            planner.utility,
            prior=prior,
            num_batches=batches,
            seed=seed,
            min_rollouts=planner.min_rollouts,
            max_rollouts=planner.max_rollouts,
        )

    batches = max(_FEWEST_BATCHES, ceil(_PROMPTS_SIMULATED / num_prompts))
    if not isinstance(allocator, AdaRollAllocator):
        start = time.perf_counter()
        play(2, 1)
        affordable = 2 * _SECONDS_SIMULATED / (time.perf_counter() - start)
        batches = max(_FEWEST_BATCHES, min(batches, int(affordable)))
    result = play(batches, 0)
    return {
        "signal_adaptive": result.signal.value,
        "signal_error": result.signal.error,
        "largest_group": int(result.rollouts.max()),
        "batches": batches,
    }


def _tables(planner: RolloutPlanner, rounds: int, prior: tuple[float, float], store: _Watched | None) -> Tables | None:
    if store is not None:
        return Tables(store.bytes, store.cached)
    if not isinstance(planner.allocator, AdaRollAllocator):
        return None
    _, levels = round_tables(planner.utility, planner.max_rollouts).levels(prior, min(rounds, DEEPEST))
    return Tables(levels.nbytes, None)


class _Watched(TableStore):
    """Remembers how large the tables were that it was asked for, and whether all of them were on disk."""

    bytes = 0
    cached = True

    def get(self, key: Any, build: Any) -> Any:
        self.cached &= self.path(key).exists()
        arrays = super().get(key, build)
        self.bytes += sum(array.nbytes for array in arrays.values())
        return arrays
