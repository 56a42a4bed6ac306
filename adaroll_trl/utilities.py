"""Terminal utilities: what a group of rollouts with s successes and f failures is worth.

The allocators maximise sum_i U(s_i, f_i) over the prompts of a batch, with n = s + f and U(0, 0) = 0. AdaRoll-GRPO
(October 2026) uses six utilities whose formulas are not public. The ones below are this project's own reading of that
idea; none of them is claimed to be the paper's.

    mixed       1 if s >= 1 and f >= 1 else 0     the group has a gradient at all
    variance    s f / n^2                         empirical reward variance
    std         sqrt(s f) / n                     empirical reward standard deviation
    mass        s f / n                           half the summed |advantage| with a mean baseline (Dr. GRPO)
    std_mass    sqrt(s f)                         half the summed |advantage| with the population std
    balanced    min(s, f, k) / k, k = 2           at least k rollouts of each kind
    progress    m / (m + kappa), m = s f / n      progress along the mean gradient, kappa = 2 by default: the noise of
                                                  one rollout against the spread between prompts

`progress` tends to `mixed` as kappa -> 0 and is proportional to `mass` as kappa -> infinity. `mass` and `std_mass`
never saturate, so a minimum and a maximum of rollouts per prompt matter most there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .values import is_number

FloatArray: TypeAlias = NDArray[np.float64]
UtilityFunction: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]

_CHECKED_UP_TO = 16  # a callable is evaluated once on all (s, f) with s + f at most this


def _mixed(s: FloatArray, f: FloatArray) -> FloatArray:
    return ((s >= 1) & (f >= 1)).astype(np.float64)


def group_mass(s: FloatArray, f: FloatArray) -> FloatArray:
    """s f / n, and 0 for an empty group: half its summed absolute advantage with a mean baseline."""
    return s * f / np.maximum(s + f, 1.0)


def _std_mass(s: FloatArray, f: FloatArray) -> FloatArray:
    return np.sqrt(s * f)


def _variance(s: FloatArray, f: FloatArray) -> FloatArray:
    return s * f / np.maximum(s + f, 1.0) ** 2


def _std(s: FloatArray, f: FloatArray) -> FloatArray:
    return np.sqrt(s * f) / np.maximum(s + f, 1.0)


def _balanced(s: FloatArray, f: FloatArray, k: float) -> FloatArray:
    return np.minimum(np.minimum(s, f), k) / k


def _progress(s: FloatArray, f: FloatArray, kappa: float) -> FloatArray:
    mass = group_mass(s, f)
    return mass / (mass + kappa)


_FUNCTIONS: dict[str, Callable[..., FloatArray]] = {
    "mixed": _mixed,
    "variance": _variance,
    "std": _std,
    "mass": group_mass,
    "std_mass": _std_mass,
    "balanced": _balanced,
    "progress": _progress,
}
_DEFAULT_PARAMETERS: dict[str, dict[str, float]] = {"balanced": {"k": 2.0}, "progress": {"kappa": 2.0}}

UTILITY_NAMES: tuple[str, ...] = tuple(_FUNCTIONS)
"""The utilities that have a name; docs/options.md has their formulas."""


@dataclass(frozen=True)
class Utility:
    """A terminal utility U(s, f) with a name that identifies it, for example in the table store.

    Args:
        name (`str`): identifies the utility together with `parameters`: two utilities with the same name and
            parameters must be the same function, since tables on disk are found by them.
        function (callable): maps two float64 arrays of equal shape (successes, failures) to a float64 array of that
            shape. Called with `**parameters` bound already.
        parameters (`tuple` of (`str`, `float`)): shown and hashed.
        persistent (`bool`): whether tables for this utility may be kept on disk. False for a bare callable, which has
            no name of its own that would stay the same from one run to the next.
        identity (object): tells bare callables with the same name apart.
    """

    name: str
    function: UtilityFunction = field(repr=False, compare=False)
    parameters: tuple[tuple[str, float], ...] = ()
    persistent: bool = True
    identity: object = field(default=None, repr=False)

    def __call__(self, successes: FloatArray | float, failures: FloatArray | float) -> FloatArray:
        """U at `successes` and `failures` (broadcast against each other), float64; U(0, 0) is 0."""
        s, f = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(failures, dtype=np.float64))
        values = np.asarray(self.function(s, f), dtype=np.float64)
        return np.where(s + f > 0, values, 0.0)

    @property
    def key(self) -> str:
        """A short text that identifies the utility: `progress(kappa=2)`."""
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(f'{name}={value:g}' for name, value in self.parameters)})"

    def table(self, max_rollouts: int) -> FloatArray:
        """U[s, f] as float64, both 0 .. max_rollouts; zero where s + f > max_rollouts."""
        s, f = np.indices((max_rollouts + 1, max_rollouts + 1), dtype=np.float64)
        inside = s + f <= max_rollouts
        values = np.zeros(s.shape)
        values[inside] = self(s[inside], f[inside])
        if not np.isfinite(values).all():
            where = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(
                f"utility {self.key!r} is {values[tuple(where)]} at successes={where[0]}, failures={where[1]}. A "
                f"utility must be finite for all s + f up to {max_rollouts}."
            )
        return values

    def is_symmetric(self, max_rollouts: int) -> bool:
        """Whether U(s, f) = U(f, s), exactly, for all s + f <= max_rollouts."""
        table = self.table(max_rollouts)
        return bool(np.array_equal(table, table.T))


def success_chances(
    rollouts: int, alpha: FloatArray, beta: FloatArray, returned: FloatArray | float = 1.0
) -> FloatArray:
    """The chance of 0 .. n successes in n = `rollouts` draws from urns, float64 of shape (urns, n + 1).

    After s successes in k draws the next one succeeds with the chance (alpha + s r) / (alpha + beta + k r).

    Args:
        rollouts (`int`): n, at least 0.
        alpha, beta (float arrays of shape (urns, 1)): at least 0, and above 0 together.
        returned (float array of shape (urns, 1), or `float`): r. 1 is the beta-binomial distribution, 0 the binomial
            with the pass rate alpha / (alpha + beta).
    """
    chance = np.ones((len(alpha), 1))
    for k in range(rollouts):
        wins = chance * (alpha + np.arange(k + 1) * returned) / (alpha + beta + k * returned)
        chance = np.pad(chance - wins, ((0, 0), (0, 1))) + np.pad(wins, ((0, 0), (1, 0)))
    return chance


def expected_utility_after(utility: Utility, rollouts: int, alpha: FloatArray, beta: FloatArray) -> FloatArray:
    """E[U(X, n - X)] for n = `rollouts` and X ~ BetaBinomial(n, alpha, beta).

    Args:
        utility (`Utility`): U.
        rollouts (`int`): n, at least 0.
        alpha, beta (float arrays of shape (prompts,)): each prompt's Beta belief, positive.

    Returns:
        float64 array of shape (prompts,).

    >>> expected_utility_after(make_utility("mixed"), 4, np.ones(1), np.ones(1)).item()
    0.6
    """
    pairs, inverse = np.unique(np.stack([alpha, beta], axis=1), axis=0, return_inverse=True)
    chance = success_chances(rollouts, pairs[:, :1], pairs[:, 1:])
    successes = np.arange(rollouts + 1.0)
    return np.asarray((chance @ utility(successes, rollouts - successes))[inverse.reshape(-1)])


def make_utility(name: str, **parameters: float) -> Utility:
    """One of the named utilities, with parameters of its own: `make_utility("progress", kappa=4.0)`.

    Args:
        name (`str`): one of `UTILITY_NAMES`.
        **parameters (`float`): `k` (> 0) for `balanced`, `kappa` (> 0) for `progress`.

    Raises:
        ValueError: if the name or a parameter is unknown, or a parameter is not a positive finite number.

    >>> make_utility("balanced", k=3.0)(2.0, 5.0).item()
    0.6666666666666666
    """
    if name not in _FUNCTIONS:
        raise ValueError(f"utility={name!r} is not known. Use one of {', '.join(UTILITY_NAMES)}, or a callable.")
    known = _DEFAULT_PARAMETERS.get(name, {})
    for parameter, value in parameters.items():
        if parameter not in known:
            raise ValueError(f"utility {name!r} has no parameter {parameter!r}; it has {list(known) or 'none'}.")
        if not (is_number(value) and value > 0):
            raise ValueError(f"{parameter}={value!r} of utility {name!r} must be a positive finite number.")
    bound = {**known, **{parameter: float(value) for parameter, value in parameters.items()}}
    function = _FUNCTIONS[name]
    return Utility(name, lambda s, f: function(s, f, **bound), tuple(sorted(bound.items())))


@lru_cache(maxsize=64)
def _checked(function: UtilityFunction, name: str | None) -> Utility:
    s, f = np.indices((_CHECKED_UP_TO + 1, _CHECKED_UP_TO + 1), dtype=np.float64)
    inside = s + f <= _CHECKED_UP_TO
    s, f = s[inside], f[inside]
    try:
        values = np.asarray(function(s, f), dtype=np.float64)
    except Exception as error:
        raise ValueError(
            f"utility {function!r} failed on two float arrays of shape {s.shape}: {error}. A utility takes arrays of "
            "successes and failures and returns an array of the same shape."
        ) from error
    if values.shape != s.shape:
        raise ValueError(
            f"utility {function!r} returned shape {values.shape} for inputs of shape {s.shape}. A utility must be "
            "vectorised: one value for each (successes, failures) pair."
        )
    label = name or str(getattr(function, "__qualname__", type(function).__name__))
    utility = Utility(label, function, persistent=name is not None, identity=None if name else function)
    utility.table(_CHECKED_UP_TO)  # raises where a value is not finite
    return utility


def as_utility(utility: str | UtilityFunction | Utility, *, name: str | None = None) -> Utility:
    """Resolve what a user may pass as `utility`: a name, a callable on two float arrays, or a `Utility`.

    Args:
        utility (`str`, callable or `Utility`): what to resolve. A callable is checked once: vectorised and finite.
        name (`str`, *optional*): names a callable, so that its tables can be kept on disk.

    Raises:
        ValueError: if the name is unknown, or a callable fails, is not vectorised or is not finite.
    """
    if isinstance(utility, Utility):
        return utility
    if isinstance(utility, str):
        return make_utility(utility)
    if callable(utility):
        return _checked(utility, name)
    raise ValueError(
        f"utility={utility!r} must be one of {', '.join(UTILITY_NAMES)}, a callable on two float arrays, or a Utility."
    )
