"""Kernels: the rounds planner from tables, for whole simulations.

`plan_round` values the plans of a batch's classes of prompts anew in every round. Where all prompts have one prior,
what a plan is worth depends on the prompt's state and on the price only. A simulation, which comes through the same
states in thousands of batches, looks it up: the same numbers, walk over prices and split as in `round_split`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .round_split import (
    FEW_CLASSES,
    begin_walk,
    counts_at_price,
    expected_rollouts,
    first_guess,
    group_prompts,
    next_cell,
    share_in_cell,
)
from .round_values import plan_values


def plan_offsets(size: int) -> NDArray[np.int64]:
    """Where the plans m = 0 .. size - n of each state begin in a row of plans; and, last, the length of the row."""
    n, _ = np.tril_indices(size + 1)
    return np.concatenate([[0], np.cumsum(size - n + 1)]).astype(np.int64)


@kernel(nogil=True)
def tabulate_plans(
    a: float, b: float, size: int, level: NDArray, offsets: NDArray, first: int, end: int, plans: NDArray
) -> None:
    """plans[price, offsets[state] + m] = E[ W^{k-1} after m more rollouts ] for the states first .. end - 1.

    `level` is W^{k-1} of shape (prices, states), of states with up to `size` rollouts.
    """
    pmf = np.empty(size + 2)
    for state in range(first, end):
        n = int((np.sqrt(8.0 * state + 1.0) - 1.0) / 2.0)
        s = state - n * (n + 1) // 2
        for i in range(level.shape[0]):
            plan_values(s, n, a, b, size - n, level[i], pmf, plans[i, offsets[state] :])


@kernel(nogil=True)
def tabulate_rollouts(
    plans: NDArray, prices: NDArray, size: int, offsets: NDArray, first: int, end: int, ends: NDArray
) -> None:
    """ends[0 or 1, cell, state]: rollouts that the best plan expects to take, at the lower and the upper price."""
    low, copies = np.zeros(1, dtype=np.int64), np.ones(1)
    for state in range(first, end):
        high = np.full(1, offsets[state + 1] - offsets[state] - 1)
        for i in range(prices.size - 1):
            left = plans[i : i + 1, offsets[state] : offsets[state + 1]]
            right = plans[i + 1 : i + 2, offsets[state] : offsets[state + 1]]
            for side in range(2):
                ends[side, i, state] = expected_rollouts(
                    left, right, low, high, copies, prices[i], prices[i + 1], float(side)
                )


@kernel()
def split_from_tables(
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    plans: NDArray,
    ends: NDArray,
    offsets: NDArray,
    prices: NDArray,
    size: int,
    budget: int,
    share_of_budget: float,
) -> NDArray:
    """The counts that `split_round` gives; or none at all (an empty array) where the tables do not tell.

    They hold no minimum, and a maximum of `size` that the budget does not cut: every prompt must be past its minimum,
    and the budget at least the room of the prompt that has most.
    """
    if size - n.min() > budget:
        return np.empty(0, dtype=np.int64)
    member, first = group_prompts(s, n, n, a, b)
    classes = first.size
    if classes >= FEW_CLASSES:
        return np.empty(0, dtype=np.int64)
    copies, low = np.zeros(classes), np.zeros(classes, dtype=np.int64)
    for c in member:
        copies[c] += 1.0
    state = n[first] * (n[first] + 1) // 2 + s[first]
    high = size - n[first]
    i = _find_cell(state, copies, ends, budget, prices.size)
    width = high.max() + 1
    left, right = np.zeros((classes, width)), np.zeros((classes, width))
    for c in range(classes):
        for m in range(high[c] + 1):
            left[c, m] = plans[i, offsets[state[c]] + m]
            right[c, m] = plans[i + 1, offsets[state[c]] + m]
    x0, x1 = prices[i], prices[i + 1]
    share = share_in_cell(left, right, low, high, copies, x0, x1, budget)
    return counts_at_price(member, low, high, copies, left, right, x0, x1, share, budget, 1, share_of_budget)


@kernel()
def _find_cell(state: NDArray, copies: NDArray, ends: NDArray, budget: int, num_prices: int) -> int:
    """The cell of the price grid in which the expected rollouts cross the budget."""
    walk = begin_walk(first_guess(num_prices), num_prices)
    while walk[1] < walk[2]:
        below, above = 0.0, 0.0
        for c in range(state.size):
            below += copies[c] * ends[0, walk[0], state[c]]
            above += copies[c] * ends[1, walk[0], state[c]]
        if above > budget:
            walk = next_cell(walk, 1)
        elif below < budget:
            walk = next_cell(walk, -1)
        else:
            break
    return int(walk[0])
