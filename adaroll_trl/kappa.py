"""kappa while training: measured every so often, and used for the utility and the weights of "progress".

A single measurement (`adaroll_trl.noise`) is rough: its error is often as large as 1 / kappa itself. So 1 / kappa, in
which the errors are nearly normal, is averaged over measurements by the inverse of their variances; each counts half
after `HALF_LIFE` newer ones, since kappa moves as the policy does. The `kappa` of the options is where it starts, and
counts as one measurement whose error is its own size. The value in use is the nearest of a grid, a factor of sqrt(2)
apart, so that the planner's tables, which belong to one kappa, are made a few times in a run and not after every
measurement. This scheme is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .noise import KappaEstimate
from .values import is_number

HALF_LIFE = 4  # measurements
LEAST, MOST = 1 / 8, 64.0  # beyond, "progress" is "mixed", or proportional to "mass"


class RunningKappa:
    """Args:
    start (`float`): kappa before the first measurement.
    """

    def __init__(self, start: float) -> None:
        self._sum, self._weight = start, start**2  # of inverse / variance, and 1 / variance
        self._start = start

    @property
    def value(self) -> float:
        """kappa to use: on the grid, from 1/8 to 64; before the first measurement exactly the start."""
        if (self._sum, self._weight) == (self._start, self._start**2):
            return self._start
        inverse = self._sum / self._weight
        kappa = min(max(1 / inverse if inverse > 0 else MOST, LEAST), MOST)
        return float(2 ** (round(2 * math.log2(kappa)) / 2))

    def update(self, found: KappaEstimate) -> None:
        """Take a measurement into account; one whose error is not known, or 0, tells nothing."""
        if not (math.isfinite(found.inverse) and math.isfinite(found.inverse_error) and found.inverse_error > 0):
            return
        fade, weight = 0.5 ** (1 / HALF_LIFE), found.inverse_error**-2
        self._sum = fade * self._sum + weight * found.inverse
        self._weight = fade * self._weight + weight

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "weight": self._weight}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The newest state, whenever it is asked: a batch that is generated again is planned with the newest kappa."""
        return self.state_dict

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: if it is not that.
        """
        total: Any = state.get("sum")
        weight: Any = state.get("weight")
        if not (is_number(total) and is_number(weight) and weight > 0):
            raise ValueError(f"kappa: {state!r} must have a finite `sum`, and a finite `weight` above 0.")
        self._sum, self._weight = float(total), float(weight)
