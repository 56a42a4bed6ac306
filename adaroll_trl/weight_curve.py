"""How the update's weight w(p) at pass rate p is estimated while training, for any allocator; see `weighting`.

All running sums are over prompts, on one grid of pass rates, and fade at one rate.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .values import finite_array

FloatArray = NDArray[np.float64]

# Pass rates that stand for all: evenly spaced for the precision with which a rate can be known (arcsine of its root)
_NODES = 32
GRID: FloatArray = np.sin(np.pi * (np.arange(_NODES) + 0.5) / (2 * _NODES)) ** 2
VARIANCE: FloatArray = GRID * (1 - GRID)

_MEMORY = 2000  # prompts after which an outcome counts 1/e in running sums
_PSEUDO_PROMPTS = 64  # that the sums start with, so that the first batches do not decide alone

BIN_EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


class PassRates:
    """The pass rates of the prompts that training visits, as a running density on `GRID`.

    Args:
        prior_alpha, prior_beta (`float`): the Beta prior that the density starts with.
    """

    def __init__(self, prior_alpha: float = 1.0, prior_beta: float = 1.0) -> None:
        start = _beta_on_grid(np.array([prior_alpha]), np.array([prior_beta]))[0]
        self.density: FloatArray = _PSEUDO_PROMPTS * start  # summed over prompts, as all running sums here
        self._believed: FloatArray = self.density.copy()

    def posteriors(
        self, prior_alpha: FloatArray, prior_beta: FloatArray, successes: FloatArray, failures: FloatArray
    ) -> FloatArray:
        """Each prompt's posterior on `GRID`, of shape (n, nodes); its rows sum to 1. All arguments of shape (n,)."""
        believed = _beta_on_grid(prior_alpha + successes, prior_beta + failures)
        corrected = believed * (self.density / np.maximum(self._believed, 1e-12))
        return corrected / corrected.sum(axis=1, keepdims=True)

    def update(self, prior_alpha: FloatArray, prior_beta: FloatArray, posteriors: FloatArray) -> None:
        """Take a batch into account: what its prompts' rates were believed to be, and turned out to be."""
        keep = fading(len(posteriors))
        self.density = keep * self.density + posteriors.sum(axis=0)
        self._believed = keep * self._believed + _beta_on_grid(prior_alpha, prior_beta).sum(axis=0)

    def state_dict(self) -> dict[str, list[float]]:
        return {"density": self.density.tolist(), "believed": self._believed.tolist()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.density, self._believed = (
            finite_array(f"weighting {name}", state[name], (_NODES,)) for name in ("density", "believed")
        )


class WeightCurve:
    """The realised w(p) as a running estimate, in units of its average over the prompts' p (1 - p)."""

    def __init__(self) -> None:
        self._mass: FloatArray = np.zeros(_NODES)
        self._variance: FloatArray = np.zeros(_NODES)
        self._prompts: FloatArray = np.zeros(_NODES)

    def update(self, posteriors: FloatArray, masses: FloatArray) -> None:
        """Add a batch: posteriors (n, nodes), and each group's mass in the loss, half its summed |advantage|, (n,)."""
        keep = fading(len(posteriors))
        prompts = posteriors.sum(axis=0)
        self._mass = keep * self._mass + masses @ posteriors
        self._variance = keep * self._variance + prompts * VARIANCE
        self._prompts = keep * self._prompts + prompts

    def values(self, edges: ArrayLike = BIN_EDGES) -> FloatArray:
        """w by bins of the pass rate; nan for a bin that holds less than one prompt, or where there is no mass."""
        bins = np.searchsorted(np.asarray(edges), GRID, side="right") - 1
        count = len(np.asarray(edges)) - 1
        mass, variance, prompts = (
            np.bincount(bins, sums, minlength=count) for sums in (self._mass, self._variance, self._prompts)
        )
        total = mass.sum() / max(variance.sum(), 1e-300)
        known = (prompts >= 1) & (total > 0)
        return np.where(known, mass / np.maximum(variance, 1e-300) / (total or 1.0), np.nan)

    def metrics(self) -> dict[str, float]:
        """`curve/<low>-<high>` for each bin of `BIN_EDGES`."""
        names = (f"curve/{low:g}-{high:g}" for low, high in pairwise(BIN_EDGES))
        return dict(zip(names, self.values().tolist(), strict=True))

    def state_dict(self) -> dict[str, list[float]]:
        return {
            "mass": self._mass.tolist(),
            "variance": self._variance.tolist(),
            "prompts": self._prompts.tolist(),
        }

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self._mass, self._variance, self._prompts = (
            finite_array(f"weighting {name}", state[name], (_NODES,)) for name in ("mass", "variance", "prompts")
        )


def fading(prompts: int) -> float:
    """What running sums keep when a batch of so many prompts is added."""
    return float(np.exp(-prompts / _MEMORY))


def _beta_on_grid(alpha: FloatArray, beta: FloatArray) -> FloatArray:
    """Beta(alpha, beta) on `GRID`, one row a prompt. The nodes lie where Beta(1/2, 1/2) has equal masses."""
    logs = (alpha - 0.5)[:, None] * np.log(GRID) + (beta - 0.5)[:, None] * np.log1p(-GRID)
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)
