"""Play whole batches against drawn outcomes, many at a time: the planner and the index policy under numba.

`outcomes[batch, prompt, j]` is the result of the prompt's j-th rollout. All allocators that are compared read the same
outcomes, so differences between them have a small variance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .knapsack import solve_knapsack
from .plan_tables import split_from_tables
from .round_split import group_prompts, split_round
from .round_values import all_plan_values
from .sequential import choose


@kernel()
def _reveal(outcomes: NDArray, s: NDArray, n: NDArray, counts: NDArray) -> None:
    for i in range(s.size):
        for j in range(n[i], n[i] + counts[i]):
            s[i] += outcomes[i, j]
        n[i] += counts[i]


@kernel()
def _last_round(
    s: NDArray, n: NDArray, a: NDArray, b: NDArray, minimum: int, maximum: int, left: int, terminal: NDArray
) -> NDArray:
    high = np.minimum(maximum - n, left)
    member, first = group_prompts(s, n, n, a, b)
    values = np.zeros((first.size, high.max() + 1))
    nodes, weights = np.zeros((first.size, 1), dtype=np.int64), np.ones((first.size, 1))
    all_plan_values(s[first], n[first], a[first], b[first], high[first], nodes, weights, terminal, 0, values)
    return solve_knapsack(values[member], np.maximum(minimum - n, 0), high, left)


@kernel()
def _last_round_from_tables(s: NDArray, n: NDArray, minimum: int, maximum: int, left: int, final: NDArray) -> NDArray:
    high = np.minimum(maximum - n, left)
    values = final[n * (n + 1) // 2 + s, : high.max() + 1]
    return solve_knapsack(values, np.maximum(minimum - n, 0), high, left)


@kernel()
def _is_unusual(n: NDArray, maximum: int, left: int, k: int, alike: bool) -> bool:
    """Where `plan_round` leaves the common path: a rollout at a time, or without the prompts that are full."""
    full = 0
    for i in range(n.size):
        full += n[i] >= maximum
    return left <= k or (k > 1 and (full >= n.size - 1 or (full > 0 and not alike)))


@kernel(nogil=True)
def play_rounds(
    outcomes: NDArray,
    budget: int,
    rounds: int,
    alpha: NDArray,
    beta: NDArray,
    minimum: int,
    maximum: int,
    levels: NDArray,
    prices: NDArray,
    shares: NDArray,
    nodes: NDArray,
    weights: NDArray,
    terminal: NDArray,
    offsets: NDArray,
    final: NDArray,
    plans: NDArray,
    ends: NDArray,
    begin: int,
    end: int,
    s_end: NDArray,
    n_end: NDArray,
) -> None:
    """Play the batches begin .. end - 1 under the rounds planner.

    Adds to `s_end` and `n_end`, successes and rollouts of every prompt at the end, shape (batches, prompts). A batch
    in which `plan_round` would leave its common path is given up: its rollouts are -1; ask `plan_round` there.

    Args:
        alpha, beta: priors, shape (batches, prompts), or (1, prompts) where they are the same in all batches.
        levels: `levels[k]` is W^k, shape (tables, prices, states).
        shares: `shares[k]` limits a round with k rounds left.
        nodes, weights: which tables stand for W^k of a prompt, `nodes[k]` and `weights` of shape (batches or 1,
            prompts, nodes).
        terminal: W^0 for any prior, shape (1, 1, states).
        final: where all prompts have one prior, the values of the last round's plans, shape (states, maximum + 1).
        offsets, plans, ends: there, the tables of `plan_tables`, `plans[k - 1]` and `ends[k - 1]` for the round before
            W^k. Empty ones are not used.
    """
    alike = alpha.shape[0] == 1
    opening = np.empty(0, dtype=np.int64)  # of the first round, which is the same in all batches
    for batch in range(begin, end):
        s, n = s_end[batch], n_end[batch]
        own = 0 if alike else batch
        a, b = alpha[own], beta[own]
        left = budget
        for k in range(rounds, 0, -1):
            if left == 0:
                break
            if _is_unusual(n, maximum, left, k, alike):
                n[:] = -1
                break
            depth = min(k, levels.shape[0]) - 1
            if k == rounds and alike and opening.size > 0:
                counts = opening
            elif k == 1 and final.size > 0:
                counts = _last_round_from_tables(s, n, minimum, maximum, left, final)
            elif k == 1:
                counts = _last_round(s, n, a, b, minimum, maximum, left, terminal)
            else:
                counts = np.empty(0, dtype=np.int64)
                if plans.shape[0] > 0 and n.min() >= minimum:
                    counts = split_from_tables(
                        s, n, a, b, plans[depth - 1], ends[depth - 1], offsets, prices, maximum, left, shares[k]
                    )
                if counts.size == 0:
                    level, at = levels[depth], nodes[depth, own]
                    counts = split_round(
                        s, n, n, a, b, at, weights[own], level, prices, minimum, maximum, left, 1, shares[k]
                    )
            if k == rounds:
                opening = counts
            _reveal(outcomes[batch], s, n, counts)
            left -= counts.sum()


@kernel(nogil=True)
def play_sequential(
    outcomes: NDArray,
    budget: int,
    alpha: NDArray,
    beta: NDArray,
    minimum: int,
    maximum: int,
    node: NDArray,
    short: NDArray,
    limit: NDArray,
    depth: NDArray,
    by_n: NDArray,
    first: NDArray,
    drawn: NDArray,
    after: NDArray,
    begin: int,
    end: int,
    s_end: NDArray,
    n_end: NDArray,
) -> None:
    """The same under the index policy with its endgame, one rollout at a time.

    `node` holds the place of each prompt's index table in `short`, `limit` and `depth`, shape (batches or 1, prompts).
    """
    prompts = outcomes.shape[1]
    for batch in range(begin, end):
        s, n = s_end[batch], n_end[batch]
        own = 0 if alpha.shape[0] == 1 else batch
        index = np.empty(prompts)
        _reveal(outcomes[batch], s, n, np.full(prompts, minimum))
        for left in range(budget - prompts * minimum, 0, -1):
            for i in range(prompts):
                state, table = n[i] * (n[i] + 1) // 2 + s[i], node[own, i]
                r = min(left, maximum - n[i])
                if r == 0:
                    index[i] = -np.inf
                elif r >= depth[table, state]:
                    index[i] = limit[table, state]
                else:
                    index[i] = short[table, r - 1, state]
            i = choose(index, s, n, alpha[own], beta[own], maximum - n, left, by_n, first, drawn, after)
            s[i] += outcomes[batch, i, n[i]]
            n[i] += 1
