"""What is remembered of each prompt from one visit to the next.

A prompt's success probability has the belief Beta(prior_alpha + s, prior_beta + f), where s and f are its remembered
outcomes. A generation batch that visits the prompt and sees s' successes and f' failures leaves

    s <- decay * (s + s')        f <- decay * (f + f')

so that outcomes from k visits ago weigh decay^k: 0 forgets everything, so each visit starts from the prior; 1 keeps
all; in between old outcomes fade, since the policy drifts. A prompt that is in the batch twice has its outcomes pooled
before they decay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PROMPT_COLUMNS = ("prompt", "image", "images")


def prompt_key(row: Mapping[str, Any]) -> str:
    """A name for the prompt of a dataset row that is the same in every process, epoch and run.

    Its `prompt_id` column if there is one, else a hash of the prompt and its images.

    >>> prompt_key({"prompt": "What is 2 + 3?", "prompt_id": 17})
    '17'
    """
    if "prompt_id" in row:
        if row["prompt_id"] is None or row["prompt_id"] != row["prompt_id"]:  # NaN differs from itself
            raise ValueError(
                f"prompt_id is {row['prompt_id']} for the prompt {row.get('prompt')!r}. Fill `prompt_id` in "
                "every row, or remove it: prompts are then told apart by a hash of their text."
            )
        return str(row["prompt_id"])
    hasher = hashlib.blake2b(digest_size=16)
    for column in _PROMPT_COLUMNS:
        if column in row:
            _feed(hasher, column)
            _feed(hasher, row[column])
    return hasher.hexdigest()


def _feed(hasher: hashlib.blake2b, value: Any) -> None:
    """Hash `value` with its type and length, so that no two structures spell the same bytes."""
    if isinstance(value, Mapping):
        # Arrow adds keys that are None where other rows have them: they do not tell prompts apart
        items = sorted((str(key), item) for key, item in value.items() if item is not None)
        hasher.update(b"{%d" % len(items))
        for key, item in items:
            _feed(hasher, key)
            _feed(hasher, item)
    elif isinstance(value, (list, tuple)):
        hasher.update(b"[%d" % len(value))
        for item in value:
            _feed(hasher, item)
    elif hasattr(value, "tobytes"):  # an image or an array
        shape = getattr(value, "size", None) if hasattr(value, "getbands") else getattr(value, "shape", None)
        _feed(hasher, f"{type(value).__name__} {shape}")
        _feed(hasher, value.tobytes())
    else:
        data = (
            value if isinstance(value, bytes) else f"{type(value).__name__} {value}".encode("utf-8", "surrogatepass")
        )
        hasher.update(b"s%d:" % len(data))
        hasher.update(data)


class Beliefs:
    """Remembered outcomes by prompt.

    Args:
        prior_alpha, prior_beta (`float`): the Beta prior of a prompt that has not been seen.
        decay (`float`): in [0, 1], see the module's text. With 0 nothing is stored.
    """

    def __init__(self, prior_alpha: float = 1.0, prior_beta: float = 1.0, decay: float = 0.0) -> None:
        self.prior_alpha, self.prior_beta, self.decay = prior_alpha, prior_beta, decay
        self._outcomes: dict[str, tuple[float, float]] = {}
        self._before_last_update: dict[str, tuple[float, float] | None] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def prior(self, keys: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The Beta parameters of each prompt before a batch: two arrays of shape (len(keys),)."""
        remembered = np.array([self._outcomes.get(key, (0.0, 0.0)) for key in keys], dtype=np.float64).reshape(-1, 2)
        return self.prior_alpha + remembered[:, 0], self.prior_beta + remembered[:, 1]

    def update(self, keys: Sequence[str], successes: NDArray[Any], failures: NDArray[Any]) -> None:
        """Remember the outcomes of a batch, once the batch is over."""
        if self.decay == 0:
            return
        self._before_last_update = {key: self._outcomes.get(key) for key in keys}
        pooled = {key: self._outcomes.get(key, (0.0, 0.0)) for key in keys}
        for key, success, failure in zip(keys, successes, failures, strict=True):
            s, f = pooled[key]
            pooled[key] = (s + float(success), f + float(failure))
        for key, (s, f) in pooled.items():
            self._outcomes[key] = (self.decay * s, self.decay * f)

    def state_dict(self, before_last_update: bool = False) -> dict[str, list[float]]:
        """The remembered outcomes, JSON-serialisable; on request as they were before the last `update`."""
        outcomes: dict[str, tuple[float, float] | None] = dict(self._outcomes)
        if before_last_update:
            outcomes.update(self._before_last_update)
        return {key: list(value) for key, value in outcomes.items() if value is not None}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore what `state_dict` returned. With a decay of 0 nothing is remembered, whatever the state."""
        self._outcomes = {key: (float(s), float(f)) for key, (s, f) in state.items()} if self.decay > 0 else {}
        self._before_last_update = {}
