"""`lagrangian_bound`: a certificate that no allocation policy can beat.

Relax "B rollouts in all" to "B rollouts on average" with a price x. Prompts separate into stopping problems

    W_x(s, f) = max{ U(s, f) [if s + f >= m_min],  -x + q W_x(s + 1, f) + (1 - q) W_x(s, f + 1) [if s + f < m_max] }

and g(x) = x B + sum_i W_x(prior_i) is above the value of every policy for every x (weak duality; Hu and Frazier 2015,
Adelman and Mersereau 2008). g is convex; its smallest value is the bound. x may be negative, as spending is
compulsory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .compiled import compile_once, kernel
from .index import check_prior, real_array, utility_by_n, whole_number

LARGEST_TABLE = 16384  # rollouts of one prompt: its utility table takes 2 GiB


@kernel()
def _stopping_value(
    a: float, b: float, x: float, by_n: NDArray, minimum: int, value: NDArray, time: NDArray
) -> tuple[float, float]:
    """W_x of the prior and the expected rollouts of its best rule; `value` and `time` are work space."""
    size = by_n.shape[0] - 1
    value[: size + 1] = by_n[size]
    time[: size + 1] = 0.0
    for n in range(size - 1, -1, -1):
        for s in range(n + 1):
            q = (a + s) / (a + b + n)
            go = q * value[s + 1] + (1.0 - q) * value[s] - x
            if n < minimum or go > by_n[n, s]:
                value[s] = go
                time[s] = 1.0 + q * time[s + 1] + (1.0 - q) * time[s]
            else:
                value[s] = by_n[n, s]
                time[s] = 0.0
    return value[0], time[0]


@kernel()
def _dual(priors: NDArray, copies: NDArray, x: float, by_n: NDArray, minimum: int) -> tuple[float, float]:
    """sum_i W_x(prior_i), and the expected rollouts of all prompts."""
    size = by_n.shape[0]
    value, time = np.empty(size), np.empty(size)
    values, times = 0.0, 0.0
    for i in range(copies.size):
        w, t = _stopping_value(priors[i, 0], priors[i, 1], x, by_n, minimum, value, time)
        values += copies[i] * w
        times += copies[i] * t
    return values, times


def lagrangian_bound(
    num_prompts: int,
    budget: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior: tuple[float, float] | ArrayLike = (1.0, 1.0),
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
) -> float:
    """An upper bound on the expected terminal utility, summed over prompts, of every allocation policy.

    Args:
        num_prompts (`int`): prompts in the batch, at least 1.
        budget (`int`): rollouts in all, at least 0.
        utility (`str`, callable or `Utility`): terminal utility, see `adaroll_trl.utilities`.
        prior (pair of `float`, or array of shape (num_prompts, 2)): Beta priors, common or one per prompt.
        min_rollouts, max_rollouts (`int`): bounds per prompt; None means the budget.

    Returns:
        `float`: within 1e-12 (relative) of the smallest dual value, and never below the optimum.

    Raises:
        ValueError: if an argument is out of range, or the budget does not fit between the bounds.

    >>> round(lagrangian_bound(4, 16), 4)
    2.9071
    """
    num_prompts, budget = whole_number("num_prompts", num_prompts, 1), whole_number("budget", budget, 0)
    min_rollouts = whole_number("min_rollouts", min_rollouts, 0)
    if max_rollouts is not None:
        max_rollouts = whole_number("max_rollouts", max_rollouts, 1)
    size = budget if max_rollouts is None else min(max_rollouts, budget)
    if not num_prompts * min_rollouts <= budget or num_prompts * size < budget:
        raise ValueError(
            f"budget={budget!r} must lie between num_prompts * min_rollouts = {num_prompts * min_rollouts} and "
            f"num_prompts * max_rollouts = {num_prompts * size}."
        )
    if size > LARGEST_TABLE:
        raise ValueError(
            f"budget={budget} with max_rollouts={max_rollouts} asks for groups of up to {size} rollouts; the bound is "
            f"computed for up to {LARGEST_TABLE}. Set max_rollouts."
        )
    pairs = real_array("prior", prior)
    if pairs.shape not in ((2,), (num_prompts, 2)):
        raise ValueError(f"prior has shape {pairs.shape}; it must be a pair, or an array of shape ({num_prompts}, 2).")
    priors, copies = np.unique(np.broadcast_to(pairs, (num_prompts, 2)), axis=0, return_counts=True)
    for pair in priors:
        check_prior(tuple(pair))
    compile_once(_run_kernels)
    by_n = utility_by_n(as_utility(utility).table(size))
    return _smallest_dual(priors, copies.astype(np.float64), by_n, min_rollouts, budget)


def _run_kernels() -> None:
    lagrangian_bound(1, 1)


def _smallest_dual(
    priors: NDArray[np.float64], copies: NDArray[np.float64], by_n: NDArray[np.float64], minimum: int, budget: int
) -> float:
    """Newton's method for a convex, piecewise linear g: from two points with slopes of opposite sign to where their
    tangents meet, until g there is on both tangents."""
    reach = 2.0 * float(np.abs(by_n).max()) + 1e-9  # one rollout changes U by at most 2 max |U|

    def g(x: float) -> tuple[float, float]:
        value, rollouts = _dual(priors, copies, x, by_n, minimum)
        return value + x * budget, budget - rollouts

    low, high = -reach, reach
    (g_low, slope_low), (g_high, slope_high) = g(low), g(high)
    best = min(g_low, g_high)
    for _ in range(100):
        if slope_low >= 0.0 or slope_high <= 0.0:
            break
        x = (g_high - g_low + slope_low * low - slope_high * high) / (slope_low - slope_high)
        tangent = g_low + slope_low * (x - low)
        if not low < x < high:
            break
        value, slope = g(x)
        best = min(best, value)
        if value - tangent <= 1e-12 * max(abs(value), 1e-300):
            break
        if slope < 0.0:
            low, g_low, slope_low = x, value, slope
        else:
            high, g_high, slope_high = x, value, slope
    return float(best)
