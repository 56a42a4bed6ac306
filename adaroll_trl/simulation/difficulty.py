"""Difficulty: how the pass rates of a data set's prompts are distributed under a policy.

A distribution is a mixture of parts. A part is a Beta distribution or a single pass rate, and both are one urn: after
s successes in n rollouts the next one succeeds with the chance

    q(s, n) = (a + s r) / (a + b + n r)         r = 1: Beta(a, b)        r = 0: the pass rate a = p, b = 1 - p

so that everything about the outcomes of n rollouts is exact, by recursion over n. A bin of a histogram, uniform in
between, becomes the points of a Gauss-Legendre rule: exact too, as the chances are polynomials in the pass rate.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from ..priors import fit_beta_prior
from ..utilities import Utility, success_chances

FloatArray = NDArray[np.float64]

ROUNDING = 1e-12  # a difference in utility that is none
_VISITS = 2000  # of prompts, from which a prior is fitted: about what the trainer's window weighs


@dataclass(frozen=True)
class Difficulty:
    """A distribution of pass rates. Build one with the functions below, or from text (`parse_difficulty`).

    Attributes:
        weights (tuple of `float`): of the parts, adding up to 1.
        parts (tuple of (`str`, `float`, `float`)): ("beta", a, b), ("point", p, p), or ("uniform", low, high).
        label (`str`): how tables name it.
    """

    weights: tuple[float, ...]
    parts: tuple[tuple[str, float, float], ...]
    label: str

    def __repr__(self) -> str:
        return f"Difficulty({self.label})"

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Independent pass rates of that shape, float64."""
        if len(self.parts) == 1:
            return self._sample_part(rng, self.parts[0], shape)
        alike = len(set(self.weights)) == 1
        which = rng.choice(len(self.parts), size=shape, p=None if alike else self.weights)
        rates = np.empty(shape)
        for number in np.unique(which).tolist():
            chosen = which == number
            rates[chosen] = self._sample_part(rng, self.parts[number], (int(chosen.sum()),))
        return rates

    @staticmethod
    def _sample_part(rng: np.random.Generator, part: tuple[str, float, float], shape: tuple[int, ...]) -> FloatArray:
        kind, x, y = part
        if kind == "beta":
            return rng.beta(x, y, size=shape)
        return np.full(shape, x) if kind == "point" else rng.uniform(x, y, size=shape)

    def _urns(self, rollouts: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Weights, a, b and r of urns, each of shape (urns, 1), that are exact for so many rollouts."""
        found: list[tuple[float, float, float, float]] = []
        nodes, masses = np.polynomial.legendre.leggauss(rollouts // 2 + 1)
        for weight, (kind, x, y) in zip(self.weights, self.parts, strict=True):
            if kind == "beta":
                found.append((weight, x, y, 1.0))
            elif kind == "point":
                found.append((weight, x, 1.0 - x, 0.0))
            else:
                rates = x + (y - x) * (nodes + 1) / 2
                found += [
                    (weight * m / 2, p, 1 - p, 0.0) for p, m in zip(rates.tolist(), masses.tolist(), strict=True)
                ]
        weights, a, b, r = np.array(found).T[:, :, None]
        return weights, a, b, r

    def success_chances(self, rollouts: int) -> FloatArray:
        """The chance of s successes in that many rollouts of a random prompt, float64 of shape (rollouts + 1,).

        >>> beta(1, 1).success_chances(3).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        weights, a, b, r = self._urns(rollouts)
        return np.asarray((weights * success_chances(rollouts, a, b, r)).sum(axis=0))

    def success_next(self, rollouts: int, successes_before: int = 0, before: int = 0) -> FloatArray:
        """q[n, s]: the chance that the next rollout of a random prompt succeeds, after s successes in n rollouts.

        Args:
            rollouts (`int`): n is 0 .. rollouts - 1.
            successes_before, before (`int`): earlier rollouts of the prompt, and how many of them succeeded.

        Returns:
            float64 of shape (rollouts, rollouts). Where s successes are impossible: a half.
        """
        weights, a, b, r = self._urns(before + rollouts)
        likelihood, s0 = weights.copy(), np.zeros((1, 1))
        for n in range(before):
            q = (a + s0 * r) / (a + b + n * r)
            win = n < successes_before
            likelihood = likelihood * (q if win else 1.0 - q)
            s0 = s0 + win
        chances = np.full((rollouts, rollouts), 0.5)
        for n in range(rollouts):
            q = (a + (s0 + np.arange(n + 1)) * r) / (a + b + (before + n) * r)
            wins = likelihood * q
            total = likelihood.sum(axis=0)
            np.divide(wins.sum(axis=0), total, out=chances[n, : n + 1], where=total > 0)
            losses = likelihood - wins
            likelihood = np.concatenate([losses, wins[:, -1:]], axis=1)
            likelihood /= max(float(likelihood.max()), 1e-300)  # a common factor, against underflow
        return chances

    def expected(self, utility: Utility, rollouts: int) -> float:
        """E[U(s, rollouts - s)] of a random prompt, exact."""
        s = np.arange(rollouts + 1.0)
        return float(self.success_chances(rollouts) @ utility(s, rollouts - s))

    def signal(self, rollouts: int) -> float:
        """The chance that a group of that size shows both outcomes, 1 - E[p^n] - E[(1 - p)^n], exact.

        >>> round(beta(1, 1).signal(8), 6)  # 1 - 2/9
        0.777778
        """
        if rollouts == 0:
            return 0.0
        chances = self.success_chances(rollouts)
        return float(1.0 - chances[0] - chances[-1])

    @property
    def mean(self) -> float:
        """The mean pass rate."""
        return float(self.success_chances(1)[1])

    @property
    def variance(self) -> float:
        """The variance of pass rates between prompts."""
        return max(float(self.success_chances(2)[2]) - self.mean**2, 0.0)

    def fitted_prior(self, rollouts: int = 8) -> tuple[float, float]:
        """The Beta prior that `prior_source="empirical_bayes"` expects to find after many prompts.

        The fit to 2,000 visits of so many rollouts, each number of successes as often as it is expected, around
        Beta(1, 1). On the trainer's grid (`adaroll_trl.priors`): alpha and beta from 1/16 to 128, in steps of 9 %.

        >>> a, b = beta(0.5, 1.5).fitted_prior()
        >>> round(a, 2), round(b, 2)
        (0.5, 1.54)
        """
        successes = np.arange(rollouts + 1)
        return fit_beta_prior(successes, rollouts - successes, _VISITS * self.success_chances(rollouts))

    def equal_groups(self, utility: Utility, value: float, most: int) -> float:
        """The size of equal groups that expect so much utility of a prompt, between whole numbers by a line.

        The smallest one, for a utility that does not grow with every rollout; nan if none up to `most` is enough, or
        `value` is not above 0, which is what no rollouts have.

        >>> from adaroll_trl.utilities import make_utility
        >>> round(beta(1, 1).equal_groups(make_utility("mixed"), 7 / 9, 32), 6)  # of 1 - 2 / (n + 1)
        8.0
        """
        below = 0.0
        for size in range(1, most + 1 if value > ROUNDING else 0):
            above = self.expected(utility, size)
            if above >= value - ROUNDING:  # so it is above `below`, which was not enough
                return size - 1 + min((value - below) / (above - below), 1.0)
            below = above
        return float("nan")

    def bin_masses(self, edges: ArrayLike) -> FloatArray:
        """The share of prompts in each bin [edge, next edge), the last one closed; shape (len(edges) - 1,).

        `edges` ascend within [0, 1].
        """
        edges = np.asarray(edges, dtype=np.float64)
        total = np.zeros(edges.size - 1)
        for weight, (kind, x, y) in zip(self.weights, self.parts, strict=True):
            if kind == "beta":
                total += weight * np.diff(betainc(x, y, edges))
            elif kind == "point":
                total[min(max(int(np.searchsorted(edges, x, side="right")) - 1, 0), total.size - 1)] += weight
            else:
                total += weight * np.diff(np.clip((edges - x) / (y - x), 0.0, 1.0))
        return total

    def entropy(self, bins: int = 10) -> float:
        """Entropy, in nats, of the histogram of pass rates over so many equal bins: 0 .. log(bins).

        >>> round(beta(1, 1).entropy(10), 6)  # log 10
        2.302585
        """
        masses = self.bin_masses(np.linspace(0.0, 1.0, bins + 1))
        masses = masses[masses > 0]
        return max(0.0, -float(masses @ np.log(masses)))


def beta(a: float, b: float) -> Difficulty:
    """Pass rates with a Beta(a, b) distribution.

    Raises:
        ValueError: if a parameter is not a positive finite number.
    """
    for name, value in (("a", a), ("b", b)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r} of a Beta distribution must be a positive finite number.")
    return Difficulty((1.0,), (("beta", float(a), float(b)),), f"beta({a:g},{b:g})")


def point(rate: float) -> Difficulty:
    """Every prompt has this pass rate, a number between 0 and 1."""
    return rates([rate])


def rates(values: ArrayLike) -> Difficulty:
    """Each of these pass rates, numbers between 0 and 1, equally likely.

    Raises:
        ValueError: if there is none, or one (named by its place, from 1) is no number in that range.
    """
    for row, value in enumerate(np.asarray(values, dtype=object).ravel().tolist(), 1):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (is_number and 0 <= float(value) <= 1):
            hint = " It looks like per cent: divide by 100." if is_number and 1 < float(value) <= 100 else ""
            raise ValueError(f"pass rate {row} is {value!r}: pass rates must be numbers between 0 and 1.{hint}")
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError("there must be pass rates, at least one.")
    each, counts = np.unique(array, return_counts=True)
    if each.size == 1:
        label = f"point({each[0]:g})"
    else:
        label = f"rates({','.join(f'{x:g}' for x in array)})" if array.size <= 6 else f"{array.size} pass rates"
    return Difficulty(tuple((counts / array.size).tolist()), tuple(("point", float(x), float(x)) for x in each), label)


def histogram(counts: ArrayLike, edges: ArrayLike | None = None) -> Difficulty:
    """Prompts by pass rate: `counts[i]` of them between `edges[i]` and `edges[i + 1]`, uniformly.

    Args:
        counts (array of shape (bins,)): at least 0, not all 0; prompts or shares.
        edges (array of shape (bins + 1,), *optional*): ascending from 0 at least to 1 at most. None: equal bins.

    Raises:
        ValueError: if an array is not of that kind.
    """
    counts = np.asarray(counts, dtype=np.float64)
    edges = np.linspace(0.0, 1.0, counts.size + 1) if edges is None else np.asarray(edges, dtype=np.float64)
    if counts.ndim != 1 or counts.size == 0 or not (np.isfinite(counts) & (counts >= 0)).all() or counts.sum() == 0:
        raise ValueError(f"counts={counts.tolist()} must be numbers of at least 0, one a bin, not all 0.")
    if edges.shape != (counts.size + 1,) or not (np.diff(edges) > 0).all() or edges[0] < 0 or edges[-1] > 1:
        raise ValueError(f"edges={edges.tolist()} must be {counts.size + 1} ascending numbers between 0 and 1.")
    used = [(c, low, high) for c, low, high in zip(counts, edges[:-1], edges[1:], strict=True) if c > 0]
    return Difficulty(
        tuple(float(c / counts.sum()) for c, _, _ in used),
        tuple(("uniform", float(low), float(high)) for _, low, high in used),
        f"histogram of {counts.size} bins",
    )


def mixture(shares: Sequence[tuple[float, Difficulty]], label: str | None = None) -> Difficulty:
    """A share of the prompts from each of several distributions.

    Raises:
        ValueError: if a share is not positive, or they do not add up to 1.

    >>> mixture([(0.25, point(0)), (0.75, beta(5, 2))])
    Difficulty(0.25*point(0)+0.75*beta(5,2))
    """
    total = sum(share for share, _ in shares)
    if not all(share > 0 for share, _ in shares) or abs(total - 1.0) > 1e-6:
        raise ValueError(
            f"the shares {', '.join(f'{share:g}' for share, _ in shares)} must be positive and add up to 1; they "
            f"add up to {total:g}."
        )
    weights = tuple(share / total * weight for share, one in shares for weight in one.weights)
    parts = tuple(part for _, one in shares for part in one.parts)
    return Difficulty(weights, parts, label or "+".join(f"{share:g}*{one.label}" for share, one in shares))
