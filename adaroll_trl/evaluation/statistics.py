"""Accuracy and pass@k with intervals, and the paired difference of two models. Needs numpy only.

The intervals answer one question: what would other prompts from the same source have given? They hold nothing of what
another training seed would change.

Notation: N prompts, n completions of each, c of them right.

- pass@k of a prompt is the chance that at least one of k completions is right. From n >= k completions its unbiased
  estimator is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, section 2.1); for k = 1 it is c / n.
- The interval for the mean of one value in [0, 1] a prompt is Wilson's (1927) at an effective number of prompts
  m = p (1 - p) / (v / N), where p is the mean and v the (population) variance over prompts. For 0/1 values m = N, and
  it is Wilson's own interval; several completions of a prompt make v smaller than p (1 - p), and m larger, up to the
  N n that independent prompts would be worth. (Effective sample sizes in binomial intervals: Korn and Graubard 1998.)
- The interval for a paired difference of means adds two prompts' worth of evidence for "no difference", spread as
  1/2 each on +1 and -1 and 1 on 0, to the differences: Agresti and Min (2005), there for 0/1 values, here also for
  differences between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its interval.

    Attributes:
        value (`float`): the mean.
        low, high (`float`): ends of the interval, `low <= value <= high` but for a paired difference, whose interval
            is centred a little nearer to 0.
        num_prompts (`int`): over how many prompts.
    """

    value: float
    low: float
    high: float
    num_prompts: int

    @property
    def half_width(self) -> float:
        """Half the interval's width: what stands after "±"."""
        return (self.high - self.low) / 2


def pass_at_k(num_samples: ArrayLike, num_correct: ArrayLike, k: int) -> FloatArray:
    """Unbiased estimate of pass@k for each prompt.

    Args:
        num_samples (int array of any shape): completions of each prompt, n.
        num_correct (int array of the same shape): how many of them are right, c, between 0 and n.
        k (`int`): from 1 to the least n.

    Returns:
        float64 array of that shape, in [0, 1]: 1 - C(n - c, k) / C(n, k), as a product that cannot overflow.

    Raises:
        ValueError: if k or a count is out of its range.

    >>> pass_at_k([4, 4, 4], [0, 1, 4], k=2)
    array([0. , 0.5, 1. ])
    """
    n, c = np.broadcast_arrays(np.asarray(num_samples, dtype=np.int64), np.asarray(num_correct, dtype=np.int64))
    if np.any(c < 0) or np.any(c > n):
        raise ValueError(f"num_correct must lie between 0 and num_samples, got {c.tolist()} of {n.tolist()}.")
    if n.size and not 1 <= k <= n.min():
        raise ValueError(f"k={k} must lie between 1 and the number of completions of each prompt, {n.min()}.")
    all_wrong = np.ones(n.shape)
    for drawn in range(k):  # without replacement: each draw is wrong with chance (wrong ones left) / (all left)
        all_wrong *= np.maximum(n - c - drawn, 0) / (n - drawn)
    return 1.0 - all_wrong


def mean_interval(values: ArrayLike, num_samples: int = 1, level: float = 0.95) -> Estimate:
    """The mean of one value in [0, 1] for each prompt, with the Wilson interval at the effective number of prompts.

    Args:
        values (float array of shape (prompts,)): accuracy or pass@k of each prompt, at least one.
        num_samples (`int`): completions behind each value, n.
        level (`float`): share of data sets whose interval holds the true mean, in (0, 1).

    Raises:
        ValueError: if there is no value, or one is outside [0, 1].
    """
    array = _unit_values(values)
    mean = float(array.mean())
    spread, variance = mean * (1 - mean), float(array.var())
    effective = float(array.size)
    if variance > 0:
        effective = float(np.clip(array.size * spread / variance, array.size, array.size * num_samples))
    z = _quantile(level)
    centre = (mean + z**2 / (2 * effective)) / (1 + z**2 / effective)
    half = z / (1 + z**2 / effective) * sqrt(spread / effective + z**2 / (4 * effective**2))
    return Estimate(mean, max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)), array.size)


def paired_difference(first: ArrayLike, second: ArrayLike, level: float = 0.95) -> Estimate:
    """The mean of `second - first` over prompts that both have, with the Agresti-Min interval.

    Args:
        first, second (float arrays of shape (prompts,)): a value in [0, 1] for each prompt, in the same order.
        level (`float`): share of data sets whose interval holds the true difference, in (0, 1).

    Raises:
        ValueError: if the lengths differ, there is no value, or one is outside [0, 1].
    """
    a, b = _unit_values(first), _unit_values(second)
    if a.shape != b.shape:
        raise ValueError(f"A paired difference needs the same prompts twice, got {a.size} and {b.size} of them.")
    difference = b - a
    size = difference.size + 2
    centre = float(difference.sum()) / size
    variance = (float(np.square(difference).sum()) + 1) / size - centre**2
    half = _quantile(level) * sqrt(variance / size)
    return Estimate(float(difference.mean()), max(-1.0, centre - half), min(1.0, centre + half), difference.size)


def _unit_values(values: ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"values must be a one-dimensional array with a value for each prompt, got {array.shape}.")
    if np.any(~(array >= 0)) or np.any(array > 1):
        raise ValueError(f"values must lie between 0 and 1, got {array.min()} to {array.max()}.")
    return array


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie strictly between 0 and 1.")
    return NormalDist().inv_cdf((1 + level) / 2)
