"""A utility for which a hard prompt is worth more than an easy one: an all-correct prompt has nothing to teach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hard_mixed(successes: NDArray[np.float64], failures: NDArray[np.float64]) -> NDArray[np.float64]:
    """`mixed`, times the share of failures: float64, any shape."""
    mixed = (successes >= 1) & (failures >= 1)
    return np.where(mixed, failures / np.maximum(successes + failures, 1.0), 0.0)
