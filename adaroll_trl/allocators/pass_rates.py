"""A Gaussian process over prompt embeddings: what is known of a prompt says something about its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from ..values import MOST_COUNTED, finite_array
from .base import AllocationState
from .integers import FloatArray

_AMPLITUDE = 1.5  # prior standard deviation of the log odds: two thirds of prompts between .18 and .82
_JITTER = 1e-6
_MOST_ODDS = 1500.0  # log odds of a belief whose two numbers are as far apart as floats are
_LEAST_NOISE = 1 / MOST_COUNTED  # variance of the log odds of a belief with as many outcomes as can be counted


class PassRateProcess:
    """Predicts pass rates from beliefs and embeddings.

    Each belief Beta(a, b) is taken for a noisy measurement of the prompt's log odds: log(a / b), with variance
    1 / a + 1 / b. On the residuals from their precision-weighted mean lies a Gaussian process with kernel
    A^2 exp(-|u - v|^2 / (2 l^2)), A = 1.5. Beliefs of the last prompts of earlier batches are measurements as well. A
    prompt that was never seen has the prior as its measurement, which weighs little: its neighbours decide.

    VIP (arXiv 2602.01601) predicts pass rates with a Gaussian process on embeddings; the likelihood, the kernel's
    amplitude and the memory are ours.

    Args:
        embeddings (mapping from prompt id to vector, or path of an .npz file): all vectors of one length.
        length_scale (`float`, *optional*): l; None is the median distance between a batch's prompts.
        memory (`int`): prompts of earlier batches to remember; the cost is (prompts of a batch + memory)^3.

    Raises:
        ValueError: if there is no such file, it holds no vectors, they are not of one length, one is not finite (named
            by its prompt), or a prompt has none.
    """

    def __init__(self, embeddings: Mapping[str, ArrayLike] | str, length_scale: float | None, memory: int) -> None:
        self.vectors = {key: _vector(key, value) for key, value in _loaded(embeddings).items()}
        lengths = {vector.size for vector in self.vectors.values()}
        if len(lengths) != 1:
            raise ValueError(f"embeddings has vectors of lengths {sorted(lengths)}: all must have one length.")
        self.length_scale, self.memory = length_scale, memory
        self._seen: dict[str, tuple[float, float]] = {}  # log odds and their variance, in the order of the visits

    def predict(self, state: AllocationState) -> FloatArray:
        """The pass rate of each prompt of the batch, shape (n,)."""
        ids = self._known_ids(state)
        alpha, beta = state.posterior
        odds, noise = _log_odds(alpha, beta)
        now = set(ids)
        past = {key: value for key, value in self._seen.items() if key not in now}
        measured = np.concatenate([odds, [value[0] for value in past.values()]])
        variance = np.concatenate([noise, [value[1] for value in past.values()]])
        mean = float((measured / variance).sum() / (1 / variance).sum())
        kernel = self._kernel(np.stack([self.vectors[key] for key in (*ids, *past)]), len(ids))
        covariance = kernel + np.diag(variance + _JITTER)
        residual = kernel[: len(ids)] @ np.linalg.solve(covariance, measured - mean)
        return np.asarray(expit(mean + residual))

    def _known_ids(self, state: AllocationState) -> list[str]:
        if state.prompt_ids is None:
            raise ValueError("embeddings are looked up by prompt id, but the allocation state has prompt_ids=None.")
        ids = [str(key) for key in state.prompt_ids]
        missing = [key for key in ids if key not in self.vectors]
        if missing:
            raise ValueError(
                f"embeddings has no vector for {len(missing)} of {len(ids)} prompts, such as {missing[0]!r}. It is "
                "looked up by the `prompt_id` column; give every row one, and a vector for each."
            )
        return ids

    def _kernel(self, vectors: FloatArray, batch: int) -> FloatArray:
        square = (vectors**2).sum(axis=1)
        distance = np.maximum(square[:, None] + square - 2 * vectors @ vectors.T, 0.0)
        scale = self.length_scale
        if scale is None:
            between = distance[:batch, :batch][np.triu_indices(batch, 1)]
            scale = float(np.sqrt(np.median(between))) if between.size else 1.0
        return _AMPLITUDE**2 * np.exp(-distance / (2 * max(scale, 1e-12) ** 2))

    def remember(self, state: AllocationState) -> None:
        """What is known of the batch's prompts now says something about others in batches to come."""
        odds, noise = _log_odds(*state.posterior)
        for key, *value in zip(self._known_ids(state), odds.tolist(), noise.tolist(), strict=True):
            self._seen.pop(key, None)
            self._seen[key] = (value[0], value[1])
        self._forget()

    def _forget(self) -> None:
        """All but the newest `memory` prompts."""
        for key in list(self._seen)[: max(0, len(self._seen) - self.memory)]:
            del self._seen[key]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": [[key, *value] for key, value in self._seen.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; prompts that have no vector any more are forgotten.

        Raises:
            ValueError: for anything but a list of [prompt id, log odds, their variance].
        """
        seen = state.get("seen", [])
        if not isinstance(seen, list) or not all(isinstance(row, list) and len(row) == 3 for row in seen):
            raise ValueError(f"seen must be a list of [prompt, log odds, variance], not {repr(seen)[:200]}.")
        odds = finite_array("seen log odds", [row[1] for row in seen], (None,), -_MOST_ODDS, _MOST_ODDS)
        noise = finite_array("seen variance", [row[2] for row in seen], (None,), _LEAST_NOISE, 1e300)
        values = zip(odds.tolist(), noise.tolist(), strict=True)
        found = {str(row[0]): value for row, value in zip(seen, values, strict=True)}
        self._seen = {key: value for key, value in found.items() if key in self.vectors}
        self._forget()


def _log_odds(alpha: FloatArray, beta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of each prompt's belief: log odds of success, and about their variance."""
    return np.log(alpha / beta), 1 / alpha + 1 / beta


def _loaded(embeddings: Mapping[str, ArrayLike] | str) -> dict[str, ArrayLike]:
    """The vectors by prompt id; at least one."""
    form = "It must be a dict of vectors by prompt id, or the path of an .npz file of them."
    found: Any = embeddings
    if isinstance(embeddings, str):
        try:
            found = np.load(embeddings, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"embeddings={embeddings!r} cannot be read: {error}. {form}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"embeddings={embeddings!r} holds {type(found).__name__}. {form}")
    if not found:
        raise ValueError(f"embeddings={embeddings!r} has no vectors. {form}")
    try:
        return {str(key): found[key] for key in found}
    except ValueError as error:  # arrays of objects
        raise ValueError(f"embeddings={embeddings!r} cannot be read: {error}. {form}") from error


def _vector(prompt: str, value: ArrayLike) -> FloatArray:
    try:
        vector = np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ValueError(f"embeddings of prompt {prompt!r} is {value!r}: it must be a vector of numbers.") from error
    wrong = vector[~np.isfinite(vector)]
    if wrong.size or not vector.size:
        found = f"holds {wrong[0]}" if wrong.size else "is empty"
        raise ValueError(f"embeddings of prompt {prompt!r} {found}: it must be a vector of finite numbers.")
    return vector
