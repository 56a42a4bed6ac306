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
  noise, and find too strong a prior.
- Which prompts got how many rollouts does not matter: counts are decided from outcomes that the likelihood already
  conditions on or contains, so stopping rules cancel (likelihood principle; Berger and Wolpert 1988). Shares of
  successes per rollout, in contrast, lean to prompts that got more.
- The policy drifts, so old visits fade by a rule of their own, by age in visits of any prompt: the newest `WINDOW`
  count, with weight 1/2 for every `HALF_LIFE` newer ones. `belief_decay` works per visit of one prompt, which says
  nothing where prompts do not come back; and a bounded window makes the fit cost the same for any number of prompts.

The hyperprior is normal around the configured prior: log odds of the mean with standard deviation 2, log strength
alpha + beta with 1. Without outcomes the fit is the configured prior. The fit depends on the window alone, not on
earlier fits, so a resumed run has the same one. The prior that is handed out moves on a grid of steps of 2^(1/8) (9 %)
in alpha and in beta around the configured one: the planner builds tables for each new prior.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import betaln, digamma

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
    """The Beta prior with the greatest marginal likelihood of visits' outcomes, times the weak hyperprior.

    Args:
        successes, failures (arrays of shape (visits,)): outcomes of each visit, at least 0.
        weights (array of shape (visits,), *optional*): what a visit counts for. None is 1 each.
        remembered (pair of arrays of shape (visits,), or numbers): counts that a prompt came with.
        centre (pair of positive `float`): the hyperprior's mode, and the answer without visits.

    Returns:
        alpha and beta, each within [1/16, 128] (or as far out as `centre` is).

    >>> alpha, beta = fit_beta_prior([0, 0, 0, 8, 0, 1], [8, 8, 8, 0, 8, 7])
    >>> round(alpha, 2), round(beta, 2)
    (0.14, 0.53)
    """
    s, f, r, g = (np.asarray(values, dtype=np.float64) for values in (successes, failures, *remembered))
    n = s + f
    w = np.ones(n.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = 1.0 + float(w.sum())
    middle = np.log(np.array(centre, dtype=np.float64))
    log_odds, log_strength = middle[0] - middle[1], float(np.log(sum(centre)))

    def loss(log_prior: FloatArray) -> tuple[float, FloatArray]:
        """Minus the objective, divided by the total weight, and its gradient in (ln alpha, ln beta)."""
        a, b = np.exp(log_prior)
        at_odds = (log_prior[0] - log_prior[1] - log_odds) / _SD_LOG_ODDS
        at_strength = (math.log(a + b) - log_strength) / _SD_LOG_STRENGTH
        value = 0.5 * (at_odds**2 + at_strength**2) - w @ (betaln(a + r + s, b + g + f) - betaln(a + r, b + g))
        both = digamma(a + b + r + g + n) - digamma(a + b + r + g)
        by_alpha = a * (w @ (digamma(a + r + s) - digamma(a + r) - both))
        by_beta = b * (w @ (digamma(b + g + f) - digamma(b + g) - both))
        pull = at_strength / _SD_LOG_STRENGTH / (a + b)
        gradient = np.array([a * pull - by_alpha, b * pull - by_beta])
        gradient += np.array([1.0, -1.0]) * at_odds / _SD_LOG_ODDS
        return float(value) / scale, gradient / scale

    bounds = [(min(math.log(LOWEST), m), max(math.log(HIGHEST), m)) for m in middle.tolist()]
    options = {"ftol": 1e-13, "gtol": 1e-9, "maxiter": 200}
    found = minimize(loss, middle, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    alpha, beta = np.exp(found.x).tolist()
    return alpha, beta


class PriorFit:
    """The newest visits of all prompts, and the prior that fits them.

    Args:
        prior_alpha, prior_beta (positive `float`): the prior before any outcome, and the centre of the hyperprior.
    """

    def __init__(self, prior_alpha: float = 1.0, prior_beta: float = 1.0) -> None:
        self.centre = (float(prior_alpha), float(prior_beta))
        self._visits = self._before_last_update = np.zeros((0, 4))

    def __len__(self) -> int:
        return len(self._visits)

    def update(self, visits: ArrayLike) -> None:
        """Append a batch's visits: rows of successes, failures and remembered counts of each, shape (visits, 4)."""
        self._before_last_update = self._visits
        new = np.asarray(visits, dtype=np.float64).reshape(-1, 4)
        self._visits = np.concatenate([self._visits, new])[-WINDOW:]

    def prior(self) -> tuple[float, float]:
        """The fitted alpha and beta, moved to the nearest point of the grid."""
        age = np.arange(len(self._visits))[::-1]
        rows, where = np.unique(self._visits, axis=0, return_inverse=True)
        weights = np.bincount(where.ravel(), weights=0.5 ** (age / HALF_LIFE), minlength=len(rows))
        s, f, r, g = rows.T
        fitted = fit_beta_prior(s, f, weights, remembered=(r, g), centre=self.centre)
        steps = np.round(STEPS_PER_DOUBLING * np.log2(np.array(fitted) / self.centre))
        alpha, beta = (np.array(self.centre) * 2.0 ** (steps / STEPS_PER_DOUBLING)).tolist()
        return alpha, beta

    def state_dict(self, before_last_update: bool = False) -> dict[str, Any]:
        """The visits, JSON-serialisable; on request as they were before the last `update`."""
        visits = self._before_last_update if before_last_update else self._visits
        return {"visits": visits.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._visits = self._before_last_update = np.asarray(state.get("visits", []), dtype=np.float64).reshape(-1, 4)


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
