"""A bound for any difficulty: no policy gets more, not even one that knows the distribution.

The Lagrangian relaxation of `adaroll_trl.solver.lagrangian_bound`, with beliefs that are mixtures. With k earlier
outcomes of each prompt, j of them successes, at a price x of a rollout

    g(x) = x B + n sum_j P(j) W_x(0, 0 | j of k)

is above every policy's expectation for every x. One price stands for all batches, so the budget is met on average over
prompts and batches: with k > 0 a little looser than a bound for each batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..utilities import Utility, as_utility
from .difficulty import Difficulty


def difficulty_bound(
    difficulty: Difficulty,
    num_prompts: int,
    budget: int,
    utility: str | Utility = "mixed",
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    carried: int = 0,
) -> float:
    """An upper bound on the expected utility of a batch, summed over its prompts.

    Args:
        difficulty (`Difficulty`): of independent prompts.
        num_prompts, budget, min_rollouts, max_rollouts (`int`): as `lagrangian_bound` takes them.
        utility (`str` or `Utility`): terminal utility.
        carried (`int`): outcomes of each prompt that are known beforehand.

    >>> from adaroll_trl.simulation import beta
    >>> round(difficulty_bound(beta(1, 1), 4, 16), 4)  # as `lagrangian_bound(4, 16)`
    2.9071
    """
    size = budget if max_rollouts is None else min(max_rollouts, budget)
    table = as_utility(utility).table(size)
    n, s = np.indices((size + 1, size + 1))
    by_n = np.where(s <= n, table[np.minimum(s, n), np.maximum(n - s, 0)], 0.0)
    chances = difficulty.success_chances(carried)
    next_success = np.stack([difficulty.success_next(size, j, carried) for j in range(carried + 1)])
    most = float(np.abs(by_n).max()) + 1.0
    low, high, best = -most, most, np.inf
    for _ in range(60):
        price = 0.5 * (low + high)
        value, time = _stopping_value(price, next_success, by_n, min_rollouts)
        best = min(best, price * budget + num_prompts * float(chances @ value))
        if num_prompts * float(chances @ time) > budget:
            low = price
        else:
            high = price
    return best


def _stopping_value(
    price: float, next_success: NDArray[np.float64], by_n: NDArray[np.float64], minimum: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """W_x of a prompt without rollouts and the rollouts of its best rule, both of shape (kinds of prompts,).

    `next_success[j, n, s]` is a kind's chance of success in a state, `by_n[n, s]` is U(s, n - s).
    """
    size, kinds = by_n.shape[0] - 1, next_success.shape[0]
    value = np.tile(by_n[size], (kinds, 1))
    time = np.zeros_like(value)
    for n in range(size - 1, -1, -1):
        q = next_success[:, n, : n + 1]
        go = q * value[:, 1 : n + 2] + (1 - q) * value[:, : n + 1] - price
        steps = 1 + q * time[:, 1 : n + 2] + (1 - q) * time[:, : n + 1]
        stop = by_n[n, : n + 1]
        on = (go > stop) | (n < minimum)
        value, time = np.where(on, go, stop), np.where(on, steps, 0.0)
    return value[:, 0], time[:, 0]
