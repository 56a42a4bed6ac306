"""Simulation: play an allocator on batches of Bernoulli prompts, without a model.

Every allocator that is compared under one seed reads the same success probabilities and the same outcomes: rollout j
of prompt i in batch t succeeds or not whoever asks for it. Differences between allocators are therefore paired, and
uniform allocation, whose expected utility under a Beta prior is known exactly, serves as a control variate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..allocators import AllocationState, Allocator, make_allocator
from ..allocators.adaroll import AdaRollAllocator
from ..solver.compiled import compile_once
from ..solver.index import check_prior, solve_index, whole_number
from ..solver.playout import play_rounds, play_sequential
from ..solver.round_tables import DEEPEST, round_tables
from ..solver.sequential import endgame_moves
from ..solver.threads import run_ranges
from ..utilities import Utility, UtilityFunction, as_utility, expected_utility_after


@dataclass(frozen=True)
class SimulationResult:
    """What happened to the batches of one simulation.

    Attributes:
        successes, rollouts (int arrays of shape (batches, prompts)): at the end of each batch.
        success_probs (float array of shape (batches, prompts)): the true probabilities.
        utilities (float array of shape (batches,)): terminal utility, summed over the prompts of a batch.
        uniform_utilities (float array of shape (batches,)): the same for equal groups on the same outcomes.
        uniform_mean (`float`): exact expectation of `uniform_utilities` under the prior; nan for given probabilities.
    """

    successes: NDArray[np.int64]
    rollouts: NDArray[np.int64]
    success_probs: NDArray[np.float64]
    utilities: NDArray[np.float64]
    uniform_utilities: NDArray[np.float64]
    uniform_mean: float

    @property
    def controlled(self) -> NDArray[np.float64]:
        """`utilities` less what the control variate explains: same expectation, smaller variance."""
        variance = self.uniform_utilities.var()
        if not np.isfinite(self.uniform_mean) or variance == 0.0:
            return self.utilities
        slope = np.cov(self.utilities, self.uniform_utilities, bias=True)[0, 1] / variance
        return self.utilities - slope * (self.uniform_utilities - self.uniform_mean)

    @property
    def mean(self) -> float:
        """Mean utility per batch."""
        return float(self.controlled.mean())

    @property
    def standard_error(self) -> float:
        return float(self.controlled.std(ddof=1) / np.sqrt(self.utilities.size))

    @property
    def frac_prompts_mixed(self) -> float:
        """Share of prompts with at least one success and one failure."""
        return float(((self.successes > 0) & (self.successes < self.rollouts)).mean())

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.utilities.size} batches: utility {self.mean:.4f} +- {self.standard_error:.4f}, "
            f"{self.frac_prompts_mixed:.1%} of prompts mixed)"
        )


def gain_share(result: SimulationResult, best: SimulationResult) -> tuple[float, float]:
    """Share of the gain over uniform of `best` that `result` keeps, and its standard error (delta method).

    Both must come from simulations with the same seed, prompts, budget, utility, prior and bounds.
    """
    base = best.uniform_mean if np.isfinite(best.uniform_mean) else float(best.uniform_utilities.mean())
    gain = best.mean - base
    share = (result.mean - base) / gain
    residual = (result.controlled - base) - share * (best.controlled - base)
    return float(share), float(residual.std(ddof=1) / abs(gain) / np.sqrt(residual.size))


def simulate(
    allocator: str | Allocator,
    num_prompts: int,
    budget: int,
    rounds: int,
    utility: str | UtilityFunction | Utility = "mixed",
    success_probs: ArrayLike | None = None,
    prior: tuple[float, float] = (1.0, 1.0),
    num_batches: int = 1000,
    seed: int = 0,
    *,
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
) -> SimulationResult:
    """Play `allocator` on `num_batches` batches.

    Args:
        allocator (`str` or `Allocator`): a name for `make_allocator`, or an allocator of your own.
        num_prompts, budget, rounds (`int`): prompts of a batch, rollouts in all, and rounds to spend them in. With as
            many rounds as rollouts, "adaroll" plays its sequential policy.
        utility (`str`, callable or `Utility`): what is measured, and what named allocators maximise.
        success_probs (float array, *optional*): pass rates to draw each prompt's from, with replacement. None draws
            from the prior.
        prior (pair of `float`): the belief that the allocator starts from.
        num_batches, seed (`int`): how many, and where the randomness starts.
        min_rollouts, max_rollouts (`int`): bounds per prompt. None as maximum means 4 * budget / num_prompts.

    Returns:
        `SimulationResult`.

    Raises:
        ValueError: if an argument is out of range.
    """
    rounds = whole_number("rounds", rounds, 1)
    num_prompts, budget = whole_number("num_prompts", num_prompts, 1), whole_number("budget", budget, 1)
    prior = check_prior(prior)
    if max_rollouts is not None and num_prompts * max_rollouts < budget:
        raise ValueError(
            f"budget={budget} cannot be spent: max_rollouts={max_rollouts} for {num_prompts} prompts admits "
            f"{num_prompts * max_rollouts}."
        )
    if num_batches < 2 or budget < num_prompts * max(min_rollouts, 1):
        raise ValueError(
            f"num_prompts={num_prompts}, num_batches={num_batches}, budget={budget}, min_rollouts={min_rollouts}: "
            "need at least 2 batches, and a budget of at least 1 rollout and min_rollouts for each prompt."
        )
    utility = as_utility(utility)
    maximum = -(-4 * budget // num_prompts) if max_rollouts is None else max_rollouts
    rng = np.random.default_rng(seed)
    shape = (num_batches, num_prompts)
    if success_probs is None:
        probs = rng.beta(*prior, size=shape)
    else:
        probs = rng.choice(_checked_probs(success_probs), size=shape)
    outcomes = (rng.random((*shape, maximum), dtype=np.float32) < probs[..., None]).astype(np.int8)
    chosen = make_allocator(allocator, utility=utility) if isinstance(allocator, str) else allocator
    bounds = (min_rollouts, maximum)
    if type(chosen) is AdaRollAllocator:
        successes, spent = _play_adaroll(outcomes, budget, rounds, prior, *bounds, chosen.utility)
    else:
        successes, spent = _play(chosen, outcomes, budget, rounds, prior, *bounds)
    table = utility.table(maximum)
    equal = np.full(num_prompts, budget // num_prompts) + (np.arange(num_prompts) < budget % num_prompts)
    equal_wins = np.stack([outcomes[:, i, :n].sum(axis=1) for i, n in enumerate(equal.tolist())], axis=1).astype(int)
    return SimulationResult(
        successes=successes,
        rollouts=spent,
        success_probs=probs,
        utilities=table[successes, spent - successes].sum(axis=1),
        uniform_utilities=table[equal_wins, equal - equal_wins].sum(axis=1),
        uniform_mean=_uniform_mean(utility, equal, prior) if success_probs is None else float("nan"),
    )


def _checked_probs(success_probs: ArrayLike) -> NDArray[np.float64]:
    probs = np.asarray(success_probs, dtype=np.float64).ravel()
    if probs.size == 0 or not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError(f"success_probs={success_probs!r} must be numbers between 0 and 1, at least one.")
    return probs


def _uniform_mean(utility: Utility, equal: NDArray[np.int64], prior: tuple[float, float]) -> float:
    """Exact expected utility of equal groups under the prior, summed over prompts."""
    sizes, copies = np.unique(equal, return_counts=True)
    alpha, beta = np.array(prior)[:, None]
    means = [expected_utility_after(utility, size, alpha, beta).item() for size in sizes.tolist()]
    return float(copies @ means)


def _play_adaroll(
    outcomes: NDArray[np.int8],
    budget: int,
    rounds: int,
    prior: tuple[float, float],
    minimum: int,
    maximum: int,
    utility: Utility,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The planner in compiled code: the counts are those of `plan_round`."""
    compile_once(_run_kernels)
    tables = round_tables(utility, maximum)
    a, b = (float(x) for x in prior)
    if rounds >= budget:
        index = solve_index(maximum, utility, (a, b))
        index.cover(maximum)
        moves = (index.short, index.limit, index.depth, tables.by_n, *endgame_moves())
        return _play_compiled(play_sequential, outcomes, budget, a, b, minimum, maximum, *moves)
    prices, levels = tables.levels((a, b), min(rounds, DEEPEST))
    shares = np.array([1.0] + [1.0 if k <= DEEPEST else 1.0 / k for k in range(1, rounds + 1)])
    policy = (levels, prices, tables.terminal, shares)
    return _play_compiled(play_rounds, outcomes, budget, rounds, a, b, minimum, maximum, *policy)


def _run_kernels() -> None:
    for rounds in (2, 4):
        simulate("adaroll", 2, 4, rounds, num_batches=2)


def _play_compiled(
    play: Callable[..., None], outcomes: NDArray[np.int8], *arguments: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    s_end, n_end = np.zeros(outcomes.shape[:2], dtype=np.int64), np.zeros(outcomes.shape[:2], dtype=np.int64)
    run_ranges(lambda first, end: play(outcomes, *arguments, first, end, s_end, n_end), len(outcomes), 16)
    return s_end, n_end


def _play(
    allocator: Allocator,
    outcomes: NDArray[np.int8],
    budget: int,
    rounds: int,
    prior: tuple[float, float],
    minimum: int,
    maximum: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    batches, prompts, _ = outcomes.shape
    successes = np.zeros((batches, prompts), dtype=np.int64)
    spent = np.zeros((batches, prompts), dtype=np.int64)
    planned = allocator.num_rounds(prompts, budget, rounds, minimum)
    drawn = np.arange(maximum)
    for batch in range(batches):
        left = budget
        for rounds_left in range(planned, 0, -1):
            state = AllocationState(
                successes[batch],
                spent[batch] - successes[batch],
                *prior,
                min_rollouts=minimum,
                max_rollouts=maximum,
            )
            counts = allocator.allocate(state, left, rounds_left)
            now = (drawn >= spent[batch][:, None]) & (drawn < (spent[batch] + counts)[:, None])
            successes[batch] += (outcomes[batch] * now).sum(axis=1)
            spent[batch] += counts
            left -= int(counts.sum())
            if left == 0:
                break
    return successes, spent
