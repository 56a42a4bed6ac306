"""The planner and the index policy on whole batches, in compiled code: the counts are those of `plan_round`.

But for one case: with as many rounds as rollouts the index policy is played however many beliefs a batch has, where
`plan_round` turns to its rounds once there are more than a few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..solver.compiled import compile_once
from ..solver.index import solve_index
from ..solver.plan_tables import plan_offsets, tabulate_plans, tabulate_rollouts
from ..solver.playout import play_rounds, play_sequential
from ..solver.round_tables import DEEPEST, round_tables
from ..solver.round_values import all_plan_values
from ..solver.sequential import endgame_moves
from ..solver.threads import run_ranges
from ..utilities import Utility, make_utility
from .batches import Batches, Played

_LARGEST_PLANS = 256 * 2**20  # bytes: about groups of 80 in four rounds; beyond, plans are valued as they are met
_FEWEST_BATCHES = 200  # fewer are played sooner than plans are tabulated


def play_adaroll(batches: Batches, utility: Utility, tabulate_from: int = _FEWEST_BATCHES) -> Played:
    """The planner, maximising `utility`; as many rounds as rollouts play the index policy, one rollout at a time.

    Unless beliefs are alike in all batches, and unless one rollout is decided at a time, a batch must have more than
    `EXACT_PRIORS` different ones. A batch whose rollouts come out as -1 was not played.
    """
    compile_once(_run_kernels)
    alpha, beta, maximum, rounds = batches.alpha, batches.beta, batches.maximum, batches.rounds
    pairs, place = np.unique(np.stack([alpha.ravel(), beta.ravel()], axis=1), axis=0, return_inverse=True)
    node = place.reshape(alpha.shape).astype(np.int64)
    by_n, terminal = round_tables(utility, maximum).by_n, round_tables(utility, maximum).terminal
    if rounds >= batches.budget:
        tables = _index_tables(utility, maximum, pairs)
        moves = (node, *tables, by_n, *endgame_moves())
        return _run(play_sequential, batches, batches.budget, alpha, beta, batches.minimum, maximum, *moves)
    levels_used = min(rounds, DEEPEST)
    shares = np.array([1.0] + [1.0 if k <= DEEPEST else 1.0 / k for k in range(1, rounds + 1)])
    bounds = (batches.budget, rounds, alpha, beta, batches.minimum, maximum)
    if len(pairs) == 1:
        prior = (float(pairs[0, 0]), float(pairs[0, 1]))
        prices, levels = round_tables(utility, maximum).levels(prior, levels_used)
        plans = _plan_tables(utility, maximum, prior, levels_used, len(batches) >= tabulate_from)
        nodes, weights = np.zeros((levels_used, 1, alpha.shape[1], 1), dtype=np.int64), np.ones((1, alpha.shape[1], 1))
        return _run(play_rounds, batches, *bounds, levels, prices, shares, nodes, weights, terminal, *plans)
    prices, levels, nodes, weights = _mesh_levels(utility, maximum, pairs, levels_used)
    return _run(
        play_rounds, batches, *bounds, levels, prices, shares, nodes[:, node], weights[node], terminal, *_NO_PLANS
    )


_NO_PLANS = (np.zeros(1, dtype=np.int64), np.empty((0, 0)), np.empty((0, 0, 0)), np.empty((0, 0, 0, 0)))


def _mesh_levels(
    utility: Utility, size: int, pairs: NDArray[np.float64], rounds: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Prices, W^0 .. W^(rounds - 1) of the mesh around these priors, and each prior's nodes in them and weights."""
    levels, nodes = [], []
    for k in range(rounds):
        prices, stack, places, weights = round_tables(utility, size).continuation(pairs[:, 0], pairs[:, 1], k)
        used, compact = np.unique(places, return_inverse=True)
        levels.append(stack[used])
        nodes.append(compact.reshape(-1, places.shape[1]).astype(np.int64))
    return prices, np.stack(levels), np.stack(nodes), weights


def _index_tables(utility: Utility, size: int, pairs: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    """`short`, `limit` and `depth` of the index tables of these priors, stacked."""
    tables = [solve_index(size, utility, (float(a), float(b))) for a, b in pairs]
    for table in tables:
        table.cover(size)
    band = max(table.short.shape[0] for table in tables)
    padded = [np.pad(table.short, ((0, band - table.short.shape[0]), (0, 0))) for table in tables]
    return np.stack(padded), np.stack([table.limit for table in tables]), np.stack([table.depth for table in tables])


@lru_cache(maxsize=2)
def _plan_tables(
    utility: Utility, size: int, prior: tuple[float, float], rounds: int, wanted: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """What `play_rounds` looks up: offsets, the last round's plans, those of the rounds before if there is room."""
    prices, levels = round_tables(utility, size).levels(prior, rounds)
    offsets, states = plan_offsets(size), levels.shape[-1]

    def plans_of(level: NDArray[np.float64]) -> NDArray[np.float64]:
        plans = np.empty((level.shape[0], offsets[-1]))
        run_ranges(lambda first, end: tabulate_plans(*prior, size, level, offsets, first, end, plans), states, 32)
        return plans

    final = _final_values(utility, size, prior)
    if not wanted or rounds * prices.size * offsets[-1] * 8 > _LARGEST_PLANS:
        return offsets, final, np.empty((0, 0, 0)), np.empty((0, 0, 0, 0))
    plans = np.array([plans_of(level[0]) for level in levels[1:]]).reshape(rounds - 1, prices.size, offsets[-1])
    ends = np.empty((rounds - 1, 2, prices.size - 1, states))
    for one, rollouts in zip(plans, ends, strict=True):
        run_ranges(lambda first, end: tabulate_rollouts(one, prices, size, offsets, first, end, rollouts), states, 32)  # noqa: B023
    return offsets, final, plans, ends


def _final_values(utility: Utility, size: int, prior: tuple[float, float]) -> NDArray[np.float64]:
    """Expected utility of each state after m more rollouts, shape (states, size + 1), by `plan_round`'s own kernel:
    where gains are equal up to rounding, it is the rounding that decides."""
    n, s = (x.astype(np.int64) for x in np.tril_indices(size + 1))
    values = np.zeros((n.size, size + 1))
    a, b = (np.full(n.size, x) for x in prior)
    nodes, weights = np.zeros((n.size, 1), dtype=np.int64), np.ones((n.size, 1))
    all_plan_values(s, n, a, b, size - n, nodes, weights, round_tables(utility, size).terminal, 0, values)
    return values


def _run(play: Callable[..., None], batches: Batches, *arguments: Any) -> Played:
    played = batches.nothing_played()
    run_ranges(lambda first, end: play(batches.outcomes, *arguments, first, end, *played), len(batches), 16)
    return played


def _run_kernels() -> None:
    outcomes, mixed = np.zeros((2, 8, 4), dtype=np.int8), make_utility("mixed")
    for alpha, tabulate_from in ((np.ones((1, 8)), 1), (np.ones((1, 8)), 9), (np.arange(1.0, 17.0).reshape(2, 8), 9)):
        for rounds in (2, 16):
            play_adaroll(Batches(outcomes, 16, rounds, alpha, alpha, 0, 4), mixed, tabulate_from)
