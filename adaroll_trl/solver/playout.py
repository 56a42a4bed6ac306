"""Play whole batches against drawn outcomes, many at a time: the planner and the index policy under numba.

`outcomes[batch, prompt, j]` is the result of the prompt's j-th rollout. All allocators that are compared read the same
outcomes, so differences between them have a small variance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .knapsack import solve_knapsack
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


@kernel(nogil=True)
def play_rounds(
    outcomes: NDArray,
    budget: int,
    rounds: int,
    a: float,
    b: float,
    minimum: int,
    maximum: int,
    levels: NDArray,
    prices: NDArray,
    terminal: NDArray,
    shares: NDArray,
    begin: int,
    end: int,
    s_end: NDArray,
    n_end: NDArray,
) -> None:
    """Play the batches begin .. end - 1 under the rounds planner.

    Adds to `s_end` and `n_end`, successes and rollouts of every prompt at the end, shape (batches, prompts).
    `levels[k]` is W^k for the common prior, shape (1, prices, states); `shares[k]` limits a round with k rounds left.
    """
    prompts = outcomes.shape[1]
    alpha, beta = np.full(prompts, a), np.full(prompts, b)
    nodes, weights = np.zeros((prompts, 1), dtype=np.int64), np.ones((prompts, 1))
    for batch in range(begin, end):
        s, n = s_end[batch], n_end[batch]
        left = budget
        for k in range(rounds, 0, -1):
            if left == 0:
                break
            if k == 1:
                counts = _last_round(s, n, alpha, beta, minimum, maximum, left, terminal)
            else:
                level = levels[min(k, levels.shape[0]) - 1]
                counts = split_round(
                    s, n, n, alpha, beta, nodes, weights, level, prices, minimum, maximum, left, 1, shares[k]
                )
            _reveal(outcomes[batch], s, n, counts)
            left -= counts.sum()


@kernel(nogil=True)
def play_sequential(
    outcomes: NDArray,
    budget: int,
    a: float,
    b: float,
    minimum: int,
    maximum: int,
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
    """The same under the index policy with its endgame, one rollout at a time."""
    prompts = outcomes.shape[1]
    alpha, beta = np.full(prompts, a), np.full(prompts, b)
    for batch in range(begin, end):
        s, n = s_end[batch], n_end[batch]
        index = np.empty(prompts)
        _reveal(outcomes[batch], s, n, np.full(prompts, minimum))
        for left in range(budget - prompts * minimum, 0, -1):
            for i in range(prompts):
                state = n[i] * (n[i] + 1) // 2 + s[i]
                r = min(left, maximum - n[i])
                if r == 0:
                    index[i] = -np.inf
                elif r >= depth[state]:
                    index[i] = limit[state]
                else:
                    index[i] = short[r - 1, state]
            i = choose(index, s, n, alpha, beta, maximum - n, left, by_n, first, drawn, after)
            s[i] += outcomes[batch, i, n[i]]
            n[i] += 1
