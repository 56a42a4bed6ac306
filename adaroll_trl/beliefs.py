"""What is remembered of each prompt from one visit to the next.

A prompt's success probability has the belief Beta(alpha + s, beta + f), where alpha and beta are its prior and s and f
its remembered outcomes. A generation batch that visits the prompt and sees s' successes and f' failures leaves

    s <- decay * (s + s')        f <- decay * (f + f')

so that outcomes from k visits ago weigh decay^k: 0 forgets everything, so each visit starts from the prior; 1 keeps
all; in between old outcomes fade, since the policy drifts. A prompt that is in the batch twice has its outcomes pooled
before they decay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .priors import PriorFit
from .values import finite_array

_PROMPT_COLUMNS = ("prompt", "image", "images")
PRIOR_STRENGTH = 4.0  # pseudo-counts that a pass rate in a data set's column is worth


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
    """Remembered outcomes by prompt, and the prior of all prompts.

    A prompt's prior is Beta(alpha + strength * rate, beta + strength * (1 - rate)), where alpha and beta are `common`
    and rate is a pass rate that the data set may give it: as much as `strength` rollouts at that rate would say. Like
    the common prior, and unlike outcomes, it does not fade.

    Args:
        prior_alpha, prior_beta (`float`): the common Beta prior, or where fitting starts.
        decay (`float`): in [0, 1], see the module's text. With 0 nothing is remembered.
        prior_source (`str`): "fixed", or "empirical_bayes" for a common prior fitted to the outcomes so far, see
            `adaroll_trl.priors`.
        prior_strength (`float`): what a given pass rate counts for, in rollouts.

    Attributes:
        common (pair of `float`): the common prior in use. `fit` proposes it; whoever owns the beliefs sets it, so that
            all processes have the same.
    """

    def __init__(
        self,
        prior_alpha: float = 1.0,
        prior_beta: float = 1.0,
        decay: float = 0.0,
        prior_source: str = "fixed",
        prior_strength: float = PRIOR_STRENGTH,
    ) -> None:
        self.common = (prior_alpha, prior_beta)
        self.decay, self.strength = decay, prior_strength
        self.prior_fit = PriorFit(prior_alpha, prior_beta) if prior_source == "empirical_bayes" else None
        self._outcomes: dict[str, tuple[float, float]] = {}
        self._changed: dict[str, tuple[float, float] | None] = {}  # what updates since the last snapshot replaced

    def __len__(self) -> int:
        return len(self._outcomes)

    def fit(self) -> tuple[float, float]:
        """The common prior for the next batch: fitted to the outcomes so far, or the one that is fixed."""
        return self.common if self.prior_fit is None else self.prior_fit.prior()

    def prior(
        self, keys: Sequence[str], rates: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The Beta parameters of each prompt before a batch: two arrays of shape (len(keys),).

        Args:
            keys (sequence of `str`): the prompts' names, see `prompt_key`.
            rates (float array of shape (len(keys),), *optional*): pass rates that the data set gives, nan for none.
        """
        own = self._own_counts(keys, rates)
        return self.common[0] + own[:, 0], self.common[1] + own[:, 1]

    def _own_counts(self, keys: Sequence[str], rates: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """What each prompt's belief has beyond the common prior, shape (len(keys), 2)."""
        own = np.array([self._outcomes.get(key, (0.0, 0.0)) for key in keys], dtype=np.float64).reshape(-1, 2)
        if rates is not None:
            own += self.strength * np.nan_to_num(np.stack([rates, 1.0 - rates], axis=1), nan=0.0)
        return own

    def update(
        self,
        keys: Sequence[str],
        successes: NDArray[Any],
        failures: NDArray[Any],
        rates: NDArray[np.float64] | None = None,
    ) -> None:
        """Remember the outcomes of a batch, once the batch is over. `rates` as in `prior`."""
        pooled = dict.fromkeys(keys, (0.0, 0.0))
        for key, success, failure in zip(keys, successes, failures, strict=True):
            s, f = pooled[key]
            pooled[key] = (s + float(success), f + float(failure))
        if self.prior_fit is not None:
            own = self._own_counts(keys, rates)
            own_of = dict(zip(keys, own.tolist(), strict=True))
            self.prior_fit.update([(s, f, *own_of[key]) for key, (s, f) in pooled.items() if s + f > 0])
        if self.decay == 0:
            return
        for key, (s, f) in pooled.items():
            self._changed.setdefault(key, self._outcomes.get(key))
            before_s, before_f = self._outcomes.get(key, (0.0, 0.0))
            self._outcomes[key] = (self.decay * (before_s + s), self.decay * (before_f + f))

    def state_dict(self) -> dict[str, list[float]]:
        """The remembered outcomes, JSON-serialisable.

        What the common prior is fitted to has a state of its own, `prior_fit.state_dict`.
        """
        return {key: list(value) for key, value in self._outcomes.items()}

    def snapshot(self) -> Callable[[], dict[str, list[float]]]:
        """The state as it is now: a function that returns it whatever follows, until the next snapshot.

        It costs nothing: the outcomes may be a million, and only what updates replace is kept.
        """
        changed = self._changed = {}

        def state() -> dict[str, list[float]]:
            return {key: list(value) for key, value in {**self._outcomes, **changed}.items() if value is not None}

        return state

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore what `state_dict` returned. With a decay of 0 nothing is remembered, whatever the state.

        Raises:
            ValueError: for anything but two counts of at least 0 for each prompt.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"beliefs must be counts by prompt, not {repr(state)[:200]}.")
        for key, value in state.items():
            if not (isinstance(value, (list, tuple)) and len(value) == 2):
                raise ValueError(f"beliefs of prompt {key!r} must be 2 counts, not {repr(value)[:200]}.")
        counts = finite_array("beliefs", list(state.values()), (None, 2)).tolist()
        kept = self.decay > 0
        self._outcomes = {key: (s, f) for key, (s, f) in zip(state, counts, strict=True)} if kept else {}
        self._changed = {}
