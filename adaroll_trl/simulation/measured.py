"""Estimates with their standard errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Measured(NamedTuple):
    """An estimate and its standard error.

    Attributes:
        value, error (`float`): an exact number has an error of 0, an unknown one is nan.
    """

    value: float
    error: float = 0.0

    def __truediv__(self, divisor: float) -> Measured:
        return Measured(self.value / divisor, self.error / divisor)

    def text(self, scale: float = 1.0, digits: int = 2, sign: str = "") -> str:
        """`77.78` or `90.91 +- 0.05`; a dash for nan.

        >>> Measured(0.9091, 0.0005).text(100)
        '90.91 +- 0.05'
        """
        if not np.isfinite(self.value):
            return "-"
        value = f"{scale * self.value:{sign}.{digits}f}"
        return value if self.error == 0 else f"{value} +- {scale * self.error:.{digits}f}"


def controlled(values: NDArray[np.float64], control: NDArray[np.float64], expectation: float) -> NDArray[np.float64]:
    """`values` less what a control variate explains: the same expectation, a smaller variance.

    Args:
        values, control (float arrays of shape (batches,)): in pairs.
        expectation (`float`): of `control`, exact.
    """
    variance = control.var()
    if variance == 0.0:
        return values
    slope = np.cov(values, control, bias=True)[0, 1] / variance
    return np.asarray(values - slope * (control - expectation))


def mean_of(values: NDArray[np.float64]) -> Measured:
    """Mean over independent batches, and its standard error."""
    return Measured(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)))
