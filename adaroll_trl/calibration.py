"""Do prompts succeed as often as their beliefs said before the batch?

Only a batch's first round is looked at. How many rollouts a prompt gets later depends on its outcomes: prompts that
fail get more of them, say, so that over all rollouts even perfect beliefs would predict too many successes. In the
first round the numbers follow from the beliefs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .values import finite_array

BINS = 10
HALF_LIFE = 8192  # rollouts

FloatArray = NDArray[np.float64]


class Calibration:
    """Scores predicted success chances, batch by batch, and over a run by bins.

    The bins are ten equal stretches of the predicted chance. Their counts fade by half for every 8,192 newer rollouts.
    """

    def __init__(self) -> None:
        self._bins = np.zeros((BINS, 3))  # rollouts, their predictions' sum, successes

    def observe(
        self, predicted: FloatArray, successes: FloatArray, failures: FloatArray, own: NDArray[np.bool_]
    ) -> dict[str, float]:
        """Take a batch into account, and score it.

        Args:
            predicted (float array of shape (n,)): each prompt's expected success chance before the batch.
            successes, failures (float arrays of shape (n,)): its scored outcomes in the first round.
            own (bool array of shape (n,)): whether its belief is more than the common prior.

        Returns:
            `dict` of `float`, nan where there is nothing to score. Over all rollouts of the round: `predicted` and
            `realised`, the mean predicted chance and the share of successes. Over those of prompts with a belief of
            their own: `frac_own` (the share of prompts), `brier` (mean squared error), `brier_skill` (1 less `brier`
            over that of predicting their share of successes for all: above 0 the beliefs tell prompts apart), and
            `ece`, the expected calibration error over the run's bins.
        """
        predicted_mean, realised = _means(predicted, successes, failures)
        q, s, f = predicted[own], successes[own], failures[own]
        self._fill_bins(q, s, f)
        total = float((s + f).sum())
        brier = float((s * (1 - q) ** 2 + f * q**2).sum()) / total if total else math.nan
        spread = float(s.sum() * f.sum()) / total**2 if total else 0.0
        return {
            "predicted": predicted_mean,
            "realised": realised,
            "frac_own": float(own.mean()),
            "brier": brier,
            "brier_skill": 1 - brier / spread if spread else math.nan,
            "ece": self.expected_error() if total else math.nan,
        }

    def _fill_bins(self, q: FloatArray, s: FloatArray, f: FloatArray) -> None:
        place = np.minimum((BINS * q).astype(np.int64), BINS - 1)
        sums = [np.bincount(place, weights=values, minlength=BINS) for values in (s + f, (s + f) * q, s)]
        self._bins = self._bins * 0.5 ** (float((s + f).sum()) / HALF_LIFE) + np.stack(sums, axis=1)

    def expected_error(self) -> float:
        """Mean over rollouts of |mean prediction - share of successes| of their bin (expected calibration error)."""
        rollouts, predicted, successes = self._bins.T
        return float(np.abs(predicted - successes).sum() / rollouts.sum()) if rollouts.any() else math.nan

    def state_dict(self) -> dict[str, Any]:
        """The bins, JSON-serialisable."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now: a function that returns it whatever follows."""
        bins = self._bins  # replaced by an update, never changed
        return lambda: {"bins": bins.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; ValueError for anything but sums."""
        self._bins = finite_array("calibration bins", state["bins"], (BINS, 3))


def _means(predicted: FloatArray, successes: FloatArray, failures: FloatArray) -> tuple[float, float]:
    rollouts = successes + failures
    total = float(rollouts.sum())
    return (float(rollouts @ predicted) / total, float(successes.sum()) / total) if total else (math.nan, math.nan)
