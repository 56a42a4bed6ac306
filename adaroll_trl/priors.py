"""Where a prompt's prior comes from: a Beta fitted to the outcomes of all prompts, and pass rates from a data set.

**Empirical Bayes.** A visit v of a prompt finds it with remembered counts (r, g), see `adaroll_trl.beliefs`, and sees
s successes and f failures. Under the common prior Beta(alpha, beta) these have the beta-binomial probability (up to a
factor without alpha and beta)

    L_v(alpha, beta) = B(alpha + r + s, beta + g + f) / B(alpha + r, beta + g)          B: the beta function

and the prior in use maximises sum_v w_v ln L_v + ln h, the marginal likelihood of the visits times a weak hyperprior h
(type II maximum likelihood; Good 1965, Robbins 1956; for a beta-binomial e.g. Skellam 1948). Three choices are ours:

- Given the remembered counts, a visit's probability is a proper one whatever `belief_decay` is: with nothing
  remembered it is the beta-binomial, with all of it the product over a prompt's visits telescopes to the likelihood of
  its total. Putting faded counts into a beta-binomial instead would take them for fewer rollouts with too little
  noise, and find too strong a prior. What is fitted is thus the prior that foretells best together with this decay:
  where pass rates move less than the decay assumes, it is weaker than the pass rates' spread over prompts.
- Which prompts got how many rollouts does not matter: counts are decided from outcomes that the likelihood already
  conditions on or contains, so stopping rules cancel (likelihood principle; Berger and Wolpert 1988). Shares of
  successes per rollout, in contrast, lean to prompts that got more.
- The policy drifts, so old visits fade by a rule of their own, by age in visits of any prompt: the newest `WINDOW`
  count, with weight 1/2 for every `HALF_LIFE` newer ones. `belief_decay` works per visit of one prompt, which says
  nothing where prompts do not come back; and a bounded window makes the fit cost the same for any number of prompts.

The hyperprior is normal around the configured prior: log odds of the mean with standard deviation 2, log strength
alpha + beta with 1. Without outcomes the fit is the configured prior. The fit depends on the window alone, not on
earlier fits, so a resumed run has the same one. It lies on a grid around the configured prior, with steps of 2^(1/8)
(9 %) in alpha and in beta: the planner builds tables for each new prior, and finer steps are lost in the fit's noise.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from .values import finite_array

WINDOW = 4096  # visits
HALF_LIFE = 1024  # visits
STEPS_PER_DOUBLING = 8
LOWEST, HIGHEST = 2.0**-4, 2.0**7  # of alpha and beta: the range of the planner's mesh of priors
_SD_LOG_ODDS, _SD_LOG_STRENGTH = 2.0, 1.0

FloatArray = NDArray[np.float64]


def fit_beta_prior(
    successes: ArrayLike,
    failures: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    remembered: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
    centre: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """The Beta prior on the grid with the greatest marginal likelihood of visits' outcomes, times the hyperprior.

    Climbs on the grid from `centre`, in steps of 16, 4 and 1 points along both axes and both diagonals (which are
    those of mean and strength). Costs a few dozen sums over the visits.

    Args:
        successes, failures (arrays of shape (visits,)): outcomes of each visit, at least 0.
        weights (array of shape (visits,), *optional*): what a visit counts for. None is 1 each.
        remembered (pair of arrays of shape (visits,), or numbers): counts that a prompt came with.
        centre (pair of positive `float`): the hyperprior's mode, and the answer without visits.

    Returns:
        alpha and beta: `centre` times powers of 2^(1/8), each within [1/16, 128] where `centre` is.

    >>> alpha, beta = fit_beta_prior([0, 0, 0, 8, 0, 1], [8, 8, 8, 0, 8, 7])
    >>> round(alpha, 2), round(beta, 2)
    (0.15, 0.55)
    """
    s, f, r, g = (np.asarray(values, dtype=np.float64) for values in (successes, failures, *remembered))
    w = np.ones(s.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    log_odds, log_strength = math.log(centre[0] / centre[1]), math.log(sum(centre))

    def log_ratio(start: FloatArray, more: FloatArray) -> float:
        """Weighted sum of ln Gamma(start + more) - ln Gamma(start)."""
        return float((w * (gammaln(start + more) - gammaln(start))).sum())

    @cache
    def of_successes(step: int) -> float:
        return log_ratio(_point(centre[0], step) + r, s)

    @cache
    def of_failures(step: int) -> float:
        return log_ratio(_point(centre[1], step) + g, f)

    @cache
    def objective(steps: tuple[int, int]) -> float:
        a, b = (_point(middle, step) for middle, step in zip(centre, steps, strict=True))
        odds, strength = math.log(a / b) - log_odds, math.log(a + b) - log_strength
        hyperprior = -0.5 * ((odds / _SD_LOG_ODDS) ** 2 + (strength / _SD_LOG_STRENGTH) ** 2)
        return of_successes(steps[0]) + of_failures(steps[1]) - log_ratio(a + b + r + g, s + f) + hyperprior

    low, high = zip(*(_grid_ends(middle) for middle in centre), strict=True)
    at, stride = (0, 0), 16
    while stride:
        near = [
            (at[0] + stride * i, at[1] + stride * j)
            for i, j in product((-1, 0, 1), repeat=2)
            if low[0] <= at[0] + stride * i <= high[0] and low[1] <= at[1] + stride * j <= high[1]
        ]
        best = max(near, key=objective)
        if objective(best) > objective(at):
            at = best
        else:
            stride //= 4
    return _point(centre[0], at[0]), _point(centre[1], at[1])


def _point(middle: float, step: int) -> float:
    return float(middle * 2.0 ** (step / STEPS_PER_DOUBLING))


def _grid_ends(middle: float) -> tuple[int, int]:
    """The lowest and highest step from `middle` that stay in the range; 0 is always among them."""
    below = math.ceil(STEPS_PER_DOUBLING * math.log2(LOWEST / middle) - 1e-9)
    above = math.floor(STEPS_PER_DOUBLING * math.log2(HIGHEST / middle) + 1e-9)
    return min(below, 0), max(above, 0)


class PriorFit:
    """The newest visits of all prompts, and the prior that fits them.

    Args:
        prior_alpha, prior_beta (positive `float`): the prior before any outcome, and the centre of the hyperprior.
    """

    def __init__(self, prior_alpha: float = 1.0, prior_beta: float = 1.0) -> None:
        self.centre = (float(prior_alpha), float(prior_beta))
        self._visits = np.zeros((0, 4))

    def __len__(self) -> int:
        return len(self._visits)

    def update(self, visits: ArrayLike) -> None:
        """Append a batch's visits: rows of successes, failures and remembered counts of each, shape (visits, 4)."""
        new = np.asarray(visits, dtype=np.float64).reshape(-1, 4)
        self._visits = np.concatenate([self._visits, new])[-WINDOW:]

    def prior(self) -> tuple[float, float]:
        """The fitted alpha and beta."""
        age = np.arange(len(self._visits))[::-1]
        rows, where = np.unique(self._visits, axis=0, return_inverse=True)
        weights = np.bincount(where.ravel(), weights=0.5 ** (age / HALF_LIFE), minlength=len(rows))
        s, f, r, g = rows.T
        return fit_beta_prior(s, f, weights, remembered=(r, g), centre=self.centre)

    def state_dict(self) -> dict[str, Any]:
        """The visits, JSON-serialisable."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now: a function that returns it whatever follows."""
        visits = self._visits  # replaced by an update, never changed
        return lambda: {"visits": visits.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; ValueError for anything but counts."""
        visits = finite_array("prior visits", state.get("visits", []), (None, 4))
        self._visits = visits[-WINDOW:]


def pass_rates(column: str, values: Iterable[Any], names: Sequence[str] | None = None) -> FloatArray:
    """The pass rates in a data set's column, nan where a row has none (None or NaN).

    Args:
        column (`str`): the column's name, for errors.
        values (iterable of numbers in [0, 1], None or NaN): its values.
        names (sequence of `str`, *optional*): what to call each row in errors. None numbers them from 0.

    Raises:
        ValueError: for any other value, naming the row, the value and the column.
    """
    return np.array(
        [_pass_rate(column, value, names[index] if names else str(index)) for index, value in enumerate(values)],
        dtype=np.float64,
    )


def _pass_rate(column: str, value: Any, row: str) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError(
            f"prior_column={column!r}: row {row} has {value!r}, where a pass rate is a number from 0 to 1, or None."
        )
    rate = float(value)
    if rate < 0 or rate > 1:
        percent = " It looks like per cent: divide the column by 100." if 1 < rate <= 100 else ""
        raise ValueError(
            f"prior_column={column!r}: row {row} has {value!r}, where a pass rate is a number from 0 to 1, or None."
            f"{percent}"
        )
    return rate
