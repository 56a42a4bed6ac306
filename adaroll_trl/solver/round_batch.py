"""The prompts of a batch, checked and as the kernels want them: for `rounds` and `streaming`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .index import real_array, whole_number

LARGEST_GROUP = 256  # tables grow with the fourth power of the group size
_DEFAULT_GROUP = 64
_INDEX_PRIORS = 4  # with more distinct priors no rollout is decided by the price index: it needs a table for each


class RoundBatch:
    """The prompts' states as the kernels want them, with their bounds."""

    def __init__(
        self,
        successes: ArrayLike,
        failures: ArrayLike,
        rollouts: ArrayLike | None,
        alpha: ArrayLike,
        beta: ArrayLike,
        minimum: int,
        maximum: int | None,
    ) -> None:
        self.s = _counts("successes", successes)
        n = self.s.size
        f = _counts("failures", failures, n)
        self.n = self.s + f
        self.spent = self.n if rollouts is None else _counts("rollouts", rollouts, n)
        if (self.spent < self.n).any():
            raise ValueError(f"rollouts={rollouts!r} must be at least successes + failures for every prompt.")
        self.a, self.b = _priors("prior_alpha", alpha, n), _priors("prior_beta", beta, n)
        minimum = whole_number("min_rollouts", minimum, 0)
        if maximum is not None:
            maximum = whole_number("max_rollouts", maximum, 1)
        if maximum is not None and maximum < minimum:
            raise ValueError(
                f"min_rollouts={minimum}, max_rollouts={maximum}: need 0 <= min_rollouts <= max_rollouts and a "
                "positive max_rollouts."
            )
        if maximum is not None and maximum > LARGEST_GROUP:
            raise ValueError(
                f"max_rollouts={maximum} is more than {LARGEST_GROUP}, the largest group that is planned."
            )
        self.given_maximum = maximum
        self.minimum = int(minimum)
        self.maximum = maximum or 0
        self.low = np.maximum(self.minimum - self.spent, 0)

    def check(self, left: int, multiple: int = 1, name: str = "rollouts_left") -> None:
        """Settle the maximum for `left` rollouts, or raise what is wrong with them, under their `name`."""
        if left % multiple:
            raise ValueError(f"{name}={left!r} must be a positive multiple of multiple_of={multiple}.")
        if self.given_maximum is None:
            average = math.ceil((int(self.spent.sum()) + left) / self.s.size)
            self.maximum = max(_DEFAULT_GROUP, 1 << (4 * average - 1).bit_length(), self.minimum)
            if self.s.size == 1:
                self.maximum = int(self.spent[0]) + left
            elif self.maximum > LARGEST_GROUP:
                self.maximum = LARGEST_GROUP
        self.room = np.maximum(self.maximum - self.spent, 0)
        needed, room = int(self.low.sum()), int(self.room.sum())
        if needed > left:
            raise ValueError(
                f"{name}={left} is not enough: {self.s.size} prompts with min_rollouts={self.minimum} still "
                f"need {needed}. Raise the budget or lower min_rollouts."
            )
        if room < left:
            raise ValueError(
                f"{name}={left} is too much: {self.s.size} prompts with at most {self.maximum} rollouts each "
                f"have room for {room} more. Lower the budget or raise max_rollouts."
            )

    def select(self, which: NDArray[np.int64]) -> RoundBatch:
        part = object.__new__(RoundBatch)
        part.__dict__ = {
            name: value[which] if isinstance(value, np.ndarray) else value for name, value in self.__dict__.items()
        }
        return part

    @property
    def few_priors(self) -> bool:
        return len({*zip(self.a.tolist(), self.b.tolist(), strict=True)}) <= _INDEX_PRIORS


def _counts(name: str, values: ArrayLike, size: int | None = None) -> NDArray[np.int64]:
    array = real_array(name, values, "whole numbers of at least 0")
    if not ((array >= 0) & (array < 2.0**31)).all():
        raise ValueError(f"{name}={values!r} must be whole numbers of at least 0, as many as rollouts can be.")
    whole = array.astype(np.int64)
    if array.ndim != 1 or array.size == 0 or (size is not None and array.size != size):
        raise ValueError(
            f"{name} has shape {array.shape}; it must be one number for each of the {size or 'n'} prompts."
        )
    if not np.array_equal(array, whole):
        raise ValueError(f"{name}={values!r} must be whole numbers of at least 0.")
    return whole


def _priors(name: str, values: ArrayLike, size: int) -> NDArray[np.float64]:
    array = real_array(name, values)
    if array.shape not in ((), (size,)):
        raise ValueError(f"{name} has shape {array.shape}; it must be one number, or one for each of {size} prompts.")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name}={values!r} must be positive and finite.")
    return np.ascontiguousarray(np.broadcast_to(array, (size,)))
