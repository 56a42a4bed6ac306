"""`plan_round`: how many rollouts each prompt gets in the next round.

Generation comes in rounds, and a round's rollouts are chosen before any of its rewards are seen. With k rounds and R
rollouts left the planner (our own; the paper's is not public)

- spends all of R in the last round, as a knapsack on expected utilities, solved exactly (`knapsack`);
- otherwise puts a price on rollouts, so that prompts separate, and picks the price at which the expected rollouts of
  all remaining rounds add up to R (`round_split`). The round is what the best plans take now at that price;
- with as many rounds as rollouts it decides one rollout at a time (`sequential`).

The relaxation spends R in expectation and is replanned after each round; the sum over rounds is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .compiled import compile_once
from .index import solve_index, whole_number
from .knapsack import solve_knapsack
from .round_batch import RoundBatch
from .round_split import smallest_dual, split_round
from .round_tables import DEEPEST, EXACT_PRIORS, RoundTables, round_tables
from .round_values import all_plan_values
from .sequential import choose, endgame_moves


def plan_round(
    successes: ArrayLike,
    failures: ArrayLike,
    rollouts_left: int,
    rounds_left: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior_alpha: ArrayLike = 1.0,
    prior_beta: ArrayLike = 1.0,
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    multiple_of: int = 1,
    *,
    rollouts: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Split the next round's rollouts over the prompts of a batch.

    Args:
        successes, failures (int arrays of shape (n,)): scored outcomes of each prompt so far.
        rollouts_left (`int`): rollouts for this and all later rounds; a multiple of `multiple_of`.
        rounds_left (`int`): rounds left, this one included; at least 1.
        utility (`str`, callable or `Utility`): terminal utility, see `adaroll_trl.utilities`.
        prior_alpha, prior_beta (`float`, or arrays of shape (n,)): Beta beliefs before the first of these rollouts.
            With more than one distinct prior the later rounds' values are interpolated on a mesh (`round_tables`).
        min_rollouts (`int`): a prompt below it is brought up to it now.
        max_rollouts (`int`, *optional*): no prompt ends with more; at most 256. None searches groups of up to 64
            rollouts, or of 4 times the average if that is more. The loss is bounded by the Lagrangian bounds with and
            without that cut: none at all for the utilities that saturate, at an average of 8 and a uniform prior, but
            up to 9.4 % for `mass` and 6.8 % for `std_mass` (docs/allocation_quality.md), so set it there.
        multiple_of (`int`): the round's total is a multiple of it.
        rollouts (int array of shape (n,), *optional*): rollouts so far, where some got no reward.

    Returns:
        int64 array of shape (n,) of counts. Their sum is positive, a multiple of `multiple_of`, at most
        `rollouts_left` and equal to it when `rounds_left` is 1. Deterministic; among prompts in the same state the
        lowest number gets the larger share, of this round and those that follow together.

    Raises:
        ValueError: if an argument is out of range, or the budget does not fit between the minimum and the maximum.

    >>> plan_round([1, 0, 0], [1, 2, 0], rollouts_left=4, rounds_left=1)
    array([0, 1, 3])
    """
    rollouts_left, rounds_left = (
        whole_number("rollouts_left", rollouts_left, 1),
        whole_number("rounds_left", rounds_left, 1),
    )
    multiple_of = whole_number("multiple_of", multiple_of, 1)
    batch = RoundBatch(successes, failures, rollouts, prior_alpha, prior_beta, min_rollouts, max_rollouts)
    batch.check(rollouts_left, multiple_of)
    tables = round_tables(as_utility(utility), batch.maximum)
    counts = np.zeros(batch.s.size, dtype=np.int64)
    open_ = np.flatnonzero(batch.room > 0)
    part = batch.select(open_)
    one_by_one = rounds_left >= rollouts_left and multiple_of == 1 and part.few_priors and not part.low.any()
    compile_once(_run_sequential_kernels if one_by_one else _run_round_kernels)
    if one_by_one:
        counts[open_[_next_rollout(part, tables, rollouts_left)]] = 1
    elif rounds_left == 1:
        counts[open_] = _last_round(part, tables, rollouts_left)
    elif open_.size == 1:
        share = max(1, round(rollouts_left / rounds_left / multiple_of)) * multiple_of
        counts[open_] = min(max(share, int(part.low[0]) + -int(part.low[0]) % multiple_of), rollouts_left)
    else:
        counts[open_] = _middle_round(part, tables, rollouts_left, rounds_left, multiple_of)
    return counts


def round_value(
    successes: ArrayLike,
    failures: ArrayLike,
    rollouts_left: int,
    rounds_left: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior_alpha: ArrayLike = 1.0,
    prior_beta: ArrayLike = 1.0,
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    *,
    rollouts: ArrayLike | None = None,
) -> float:
    """What `plan_round` expects a batch to be worth in the end, summed over prompts. Arguments and errors are its own.

    With one round left this is the exact expectation. Otherwise it is the smallest dual value with `rounds_left`
    rounds (at most 12): above what any plan with so many rounds can reach, since it spends the budget on average only.
    """
    rollouts_left, rounds_left = (
        whole_number("rollouts_left", rollouts_left, 1),
        whole_number("rounds_left", rounds_left, 1),
    )
    batch = RoundBatch(successes, failures, rollouts, prior_alpha, prior_beta, min_rollouts, max_rollouts)
    batch.check(rollouts_left, 1)
    compile_once(_run_round_kernels)
    tables = round_tables(as_utility(utility), batch.maximum)
    settled = batch.room == 0
    total = float(tables.utility(batch.s[settled], (batch.n - batch.s)[settled]).sum())
    part = batch.select(np.flatnonzero(~settled))
    if rounds_left == 1:
        values, member = _final_values(part, tables, rollouts_left)
        counts = solve_knapsack(values[member], part.low, np.minimum(part.room, rollouts_left), rollouts_left)
        return total + float(values[member, counts].sum())
    prices, level, nodes, weights = tables.continuation(part.a, part.b, min(rounds_left, DEEPEST) - 1)
    state = (part.s, part.n, part.spent, part.a, part.b, nodes, weights, level, prices)
    return total + float(smallest_dual(*state, part.minimum, part.maximum, rollouts_left))


def _run_round_kernels() -> None:
    nothing = np.zeros(EXACT_PRIORS + 1, dtype=np.int64)
    for prior in (1.0, 1.0 + np.arange(nothing.size)):
        for rounds in (1, 2):
            plan_round(nothing, nothing, nothing.size, rounds, prior_alpha=prior, max_rollouts=2)
    round_value(nothing, nothing, nothing.size, 2, max_rollouts=2)


def _run_sequential_kernels() -> None:
    plan_round([0, 0], [0, 0], 2, 2, max_rollouts=2)


def _final_values(batch: RoundBatch, tables: RoundTables, left: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Expected utility after m more rollouts, by class of prompts and m; and each prompt's class."""
    high = np.minimum(batch.room, left)
    states = np.stack([batch.s, batch.n, high, batch.a, batch.b], axis=1)
    _, first, member = np.unique(states, axis=0, return_index=True, return_inverse=True)
    nodes, weights = np.zeros((first.size, 1), dtype=np.int64), np.ones((first.size, 1))
    values = np.zeros((first.size, int(high.max()) + 1))
    at = (batch.s[first], batch.n[first], batch.a[first], batch.b[first], high[first])
    all_plan_values(*at, nodes, weights, tables.terminal, 0, values)
    return values, member.ravel()


def _last_round(batch: RoundBatch, tables: RoundTables, left: int) -> NDArray[np.int64]:
    values, member = _final_values(batch, tables, left)
    return solve_knapsack(values[member], batch.low, np.minimum(batch.room, left), left)


def _next_rollout(batch: RoundBatch, tables: RoundTables, left: int) -> int:
    index = np.empty(batch.s.size)
    for prior in {*zip(batch.a.tolist(), batch.b.tolist(), strict=True)}:
        same = (batch.a == prior[0]) & (batch.b == prior[1])
        table = solve_index(tables.size, tables.utility, prior)
        index[same] = table.index(batch.s[same], (batch.n - batch.s)[same], np.minimum(batch.room, left)[same])
    return int(choose(index, batch.s, batch.n, batch.a, batch.b, batch.room, left, tables.by_n, *endgame_moves()))


def _middle_round(batch: RoundBatch, tables: RoundTables, left: int, rounds: int, multiple: int) -> NDArray[np.int64]:
    prices, level, nodes, weights = tables.continuation(batch.a, batch.b, min(rounds, DEEPEST) - 1)
    share = 1.0 if rounds <= DEEPEST else 1.0 / rounds
    bounds = (batch.minimum, batch.maximum, left, multiple, share)
    return split_round(batch.s, batch.n, batch.spent, batch.a, batch.b, nodes, weights, level, prices, *bounds)
