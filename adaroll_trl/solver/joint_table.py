"""The result of the joint problem: an exact policy that can be asked, saved and loaded. Nothing here is compiled."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .index import check_prior, whole_number
from .memory import available_bytes, format_bytes
from .states import StateSpace, count_profiles
from .store import Arrays, TableFileError, read_table, write_table

# What a state's action is where no unsettled prompt is as good as a settled one. Other actions are the position of a
# prompt in `StateSpace.order`, or ~position where a settled prompt does as well.
ONLY_SETTLED = -128
TIE_TOLERANCE = {"float64": 1e-9, "float32": 1e-6}
REDUCTIONS = ("auto", "none")
MOST_PROMPTS = 127  # an action is a position in an int8


@dataclass(frozen=True)
class JointSpec:
    """What a joint table was solved for. `max_rollouts` None means no maximum; `utility` is the utility's key."""

    num_prompts: int
    budget: int
    utility: str
    prior: tuple[float, float]
    min_rollouts: int
    max_rollouts: int | None
    dtype: str
    reductions: str
    keep_values: bool

    @property
    def most(self) -> int:
        """The maximum of rollouts of one prompt, as a number."""
        return self.budget if self.max_rollouts is None else min(self.max_rollouts, self.budget)

    def check(self) -> None:
        """Raise `ValueError` for the first number that is out of range, or bounds that the budget cannot meet."""
        n, budget, low, high = self.num_prompts, self.budget, self.min_rollouts, self.max_rollouts
        if not 1 <= n <= MOST_PROMPTS:
            raise ValueError(f"num_prompts={n!r} must be 1 to {MOST_PROMPTS}. Split a larger batch into blocks.")
        if budget < 0:
            raise ValueError(f"budget={budget!r} must be at least 0.")
        if low < 0 or (high is not None and high < low):
            raise ValueError(
                f"min_rollouts={low} and max_rollouts={high} must satisfy 0 <= min_rollouts <= max_rollouts."
            )
        if n * low > budget:
            raise ValueError(
                f"budget={budget} is too small: min_rollouts={low} for each of num_prompts={n} prompts takes "
                f"{n * low}."
            )
        if high is not None and n * high < budget:
            raise ValueError(
                f"budget={budget} cannot be spent: max_rollouts={high} for num_prompts={n} prompts admits {n * high}."
            )
        if self.dtype not in TIE_TOLERANCE:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(TIE_TOLERANCE)}.")
        if self.reductions not in REDUCTIONS:
            raise ValueError(f"reductions={self.reductions!r} must be one of {', '.join(REDUCTIONS)}.")


class JointTable:
    """An exact policy: the best next prompt in every state of a batch. Made by `solve_joint` or `JointTable.load`.

    Attributes:
        value (`float`): expected summed utility of the best policy, from no rollouts at all.
        num_states (`int`): states of all layers t = 0 .. budget that the solver went through.
        num_prompts, budget, utility, prior, min_rollouts, max_rollouts, dtype, reductions, keep_values: as given to
            `solve_joint`; `utility` is its key.
        lumps, settles (`bool`): which of the two reductions had an effect (`reductions`).
    """

    def __init__(self, spec: JointSpec, arrays: Arrays) -> None:
        self.spec = spec
        self.num_prompts, self.budget = spec.num_prompts, spec.budget
        self.utility, self.prior = spec.utility, spec.prior
        self.min_rollouts, self.max_rollouts = spec.min_rollouts, spec.max_rollouts
        self.dtype, self.reductions, self.keep_values = spec.dtype, spec.reductions, spec.keep_values
        _check_arrays(spec, arrays)
        self._arrays = arrays
        min_settled, lumps, settles = (int(x) for x in arrays["found"])
        width = np.asarray(arrays["width"])
        self._space = StateSpace.of_widths(
            spec.num_prompts, width, min_settled, spec.min_rollouts, spec.most, np.asarray(arrays["class_of"])
        )
        layers = self._space.layer_sizes()
        self._first = np.concatenate([[0], np.cumsum(layers)])
        self._utility = np.asarray(arrays["utility"])
        self.value = float(arrays["value"][0])
        self.num_states = int(layers.sum())
        self.lumps, self.settles = bool(lumps), bool(settles)
        if len(arrays["actions"]) != self._first[-2]:
            raise TableFileError(f"the table has {len(arrays['actions'])} actions for {self._first[-2]} states.")

    def __repr__(self) -> str:
        spec = self.spec
        bounded = (spec.min_rollouts, spec.most) != (0, spec.budget)
        bounds = f", {spec.min_rollouts} to {spec.most} each" if bounded else ""
        found = [name for name, used in (("lumping", self.lumps), ("settling", self.settles)) if used]
        return (
            f"JointTable({spec.num_prompts} prompts, {spec.budget} rollouts{bounds}, {spec.utility}, "
            f"prior {spec.prior}: value {self.value:.10g}, {self.num_states:,} states in {spec.dtype}, "
            f"reductions: {' and '.join(found) or 'none'})"
        )

    def next_prompt(self, successes: ArrayLike, failures: ArrayLike) -> int:
        """The prompt that gets the next rollout.

        Args:
            successes, failures (int arrays of shape (num_prompts,)): outcomes so far, prompts in any order.

        Returns:
            Its number in the order given, 0 .. num_prompts - 1. Where `lumps` is True, pairs of one size that are
            exactly as good (2 of 3 right, 1 of 3 right) may come in another order than (s + f, s).

        Raises:
            ValueError: if the shapes are wrong, the state breaks the bounds, or the budget is spent.
        """
        return int(self.next_prompts(np.asarray(successes)[None], np.asarray(failures)[None])[0])

    def next_prompts(self, successes: ArrayLike, failures: ArrayLike) -> NDArray[np.int64]:
        """`next_prompt` for many batches at once: int arrays of shape (b, num_prompts), result int64 of shape (b,)."""
        s, f = self._check_state(successes, failures)
        spent = (s + f).sum(axis=-1)
        if (spent >= self.budget).any():
            raise ValueError(
                f"successes + failures sum to {spent.max()}: budget={self.budget} has nothing left to give."
            )
        action = np.asarray(self._arrays["actions"][self._first[spent] + self._space.rank(s, f)], dtype=np.int64)
        order = self._space.order(s, f)
        unsettled = (self._space.class_of[s, f] >= 0).sum(axis=-1)
        position = np.where(action >= 0, action, np.where(action == ONLY_SETTLED, unsettled, ~action))
        chosen = np.take_along_axis(order, position[:, None], axis=-1)[:, 0]
        tied = (action < 0) & (action != ONLY_SETTLED)
        if tied.any():  # a settled prompt is as good: the order (n, s) decides
            chosen[tied] = self._first_of_two(s[tied], f[tied], chosen[tied], order[tied, unsettled[tied]])
        return chosen.astype(np.int64)

    @staticmethod
    def _first_of_two(s: NDArray, f: NDArray, one: NDArray, other: NDArray) -> NDArray[np.intp]:
        row = np.arange(len(s))
        keys = [(s[row, j] + f[row, j], s[row, j], j) for j in (one, other)]
        size = keys[0][0] - keys[1][0]
        wins = keys[0][1] - keys[1][1]
        return np.where((size < 0) | ((size == 0) & ((wins < 0) | ((wins == 0) & (one < other)))), one, other)

    def expected_value(self, successes: ArrayLike, failures: ArrayLike) -> Any:
        """Expected summed utility at the end, from the given state on, of the best policy. Needs `keep_values=True`.

        Args:
            successes, failures (int arrays of shape (num_prompts,) or (..., num_prompts)): outcomes so far, at most
                `budget` in all; states of a stack may have spent differently. Prompts in any order.

        Returns:
            A `float` for one state, a float64 array of shape (...) for a stack of them.

        Raises:
            ValueError: if the table keeps no values, the shapes are wrong or a state breaks the bounds.
        """
        if not self.spec.keep_values:
            raise ValueError("this table keeps no values. Solve it with keep_values=True to use expected_value.")
        s, f = self._check_state(successes, failures)
        spent = (s + f).sum(axis=-1)
        running = spent < self.budget
        now = np.where(running[..., None] & (self._space.class_of[s, f] >= 0), 0.0, self._utility[s, f]).sum(axis=-1)
        index = np.where(running, self._first[np.minimum(spent, self.budget)] + self._space.rank(s, f), 0)
        values = self._arrays["values"]
        later = np.where(running, values[index], 0.0) if len(values) else 0.0
        total = now + later
        return float(total) if total.ndim == 0 else total

    def _check_state(self, successes: ArrayLike, failures: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        spec = self.spec
        counts = []
        for name, given in (("successes", successes), ("failures", failures)):
            array = np.asarray(given)
            whole = array.astype(np.int64)
            if array.shape[-1:] != (spec.num_prompts,) or (whole != array).any() or (whole < 0).any():
                raise ValueError(
                    f"{name}={given!r} must be whole numbers of at least 0 for num_prompts={spec.num_prompts} prompts."
                )
            counts.append(whole)
        s, f = np.broadcast_arrays(*counts)
        rollouts = s + f
        spent = rollouts.sum(axis=-1)
        if (spent > spec.budget).any():
            raise ValueError(f"successes + failures sum to {spent.max()}, more than budget={spec.budget}.")
        if (rollouts > spec.most).any():
            raise ValueError(f"a prompt has {rollouts.max()} rollouts, more than max_rollouts={spec.max_rollouts}.")
        lack = np.maximum(spec.min_rollouts - rollouts, 0).sum(axis=-1)
        if (lack > spec.budget - spent).any():
            raise ValueError(
                f"with {spent.tolist()} of budget={spec.budget} spent, not every prompt can still get "
                f"min_rollouts={spec.min_rollouts}: the policy never comes to such a state."
            )
        return s, f

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table to `path` (see `store` for the format). Raises OSError where that cannot be done."""
        write_table(path, {"solver": "joint", **asdict(self.spec)}, self._arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> JointTable:
        """Reads a table that `save` wrote; its arrays are mapped, not copied.

        Raises:
            FileNotFoundError: if there is no such file.
            TableFileError: if the file is damaged, truncated, of another format version or not a joint table.
        """
        key, arrays = read_table(path)
        try:
            fields = {name: key[name] for name in JointSpec.__dataclass_fields__}
            spec = JointSpec(**{**fields, "prior": check_prior(fields["prior"])})
            whole = (
                "num_prompts",
                "budget",
                "min_rollouts",
                *(["max_rollouts"] if spec.max_rollouts is not None else []),
            )
            for name in whole:
                whole_number(name, fields[name], 0)
            spec.check()
            return cls(spec, arrays)
        except (KeyError, ValueError, TypeError, TableFileError) as error:
            raise TableFileError(f"{path} does not hold a joint table: {error}") from error


def _check_arrays(spec: JointSpec, arrays: Arrays) -> None:
    """Raise `TableFileError` where no solver of `spec` can have written these arrays.

    They decide how large the layout of the states gets and are looked up with each other's entries, so this comes
    before anything is made of them.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "width": (spec.budget + 1,),
        "class_of": (spec.budget + 1, spec.budget + 1),
        "utility": (spec.budget + 1, spec.budget + 1),
        "found": (3,),
        "value": (1,),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise TableFileError(f"{name} has shape {arrays[name].shape} where {shape} belongs to {spec}.")
    width, class_of, (min_settled, _, _) = arrays["width"], arrays["class_of"], arrays["found"]
    actions, values = arrays["actions"], arrays["values"]
    sizes = np.minimum(np.add.outer(np.arange(spec.budget + 1), np.arange(spec.budget + 1)), spec.budget)
    problem = None
    if not all(array.dtype.kind == "i" for array in (width, class_of, actions, arrays["found"])):
        problem = "width, class_of, actions or found is not of whole numbers"
    elif width.min() < 0 or (width > np.arange(1, spec.budget + 2)).any() or not 0 < min_settled <= spec.budget + 1:
        problem = "width or found is out of range"
    elif class_of.min() < -1 or (class_of >= np.maximum(width[sizes], 1)).any():
        problem = "class_of is out of range"
    elif (
        actions.ndim != 1
        or ((actions >= spec.num_prompts) | ((actions < -spec.num_prompts) & (actions != ONLY_SETTLED))).any()
    ):
        problem = "an action is out of range"
    elif len(values) != (len(actions) if spec.keep_values else 0) or not np.isfinite(arrays["value"]).all():
        problem = "values or value is out of range"
    if problem:
        raise TableFileError(f"{problem}: no table for {spec}.")
    available = available_bytes()
    layout = (100 + 8 * spec.num_prompts) * float(count_profiles(width, spec.num_prompts, int(min_settled))[-1])
    if available is not None and layout > available:
        raise TableFileError(
            f"the layout of {spec} takes {format_bytes(layout)}; {format_bytes(available)} are available."
        )
