"""Price index: the best ratio of expected gain to expected rollouts, for one prompt on its own.

Put a price x on each rollout. Prompts separate, and each is a stopping problem over its own state (s, f), r rollouts
at most to go, with q = (a + s) / (a + b + s + f):

    W_x(s, f; r) = max{ U(s, f), -x + q W_x(s + 1, f; r - 1) + (1 - q) W_x(s, f + 1; r - 1) },    W_x(s, f; 0) = U(s,
    f)

The index I(s, f; r) is the largest x at which going on is still worth it. Equivalently, over all stopping rules tau
with 1 <= tau <= r (Goel, Khanna and Null 2009 call it the ratio index; Hu and Frazier 2015 use the same structure):

    I(s, f; r) = max over tau of  (E[U at tau] - U(s, f)) / E[tau]

At price x the best rule goes on in (s', f') with r' to go exactly where I(s', f'; r') > x. So an index follows from
the indices of later states by Dinkelbach's iteration: x <- gain(x) / time(x), where both are taken over the rule that
x induces. It rises monotonically to the index and ends as soon as the rule repeats, after one to three steps in
practice.

I does not fall with r. Its limit at the largest r of the table is found first, together with the deepest rollout D
that the best rule ever takes: from r = D on the index is that limit. Shorter horizons are kept for r up to `band`;
where a utility does not saturate, D is as large as the table and a longer band costs N^2 band^3, so it is extended
only when a caller asks for an r between the band and D.

Cost: for each of N^2 / 2 states and each r < min(D, band), the size of its rule (at most r^2 / 2 states).
Memory: 4 N^2 (band + 2) bytes.
"""

from __future__ import annotations

import operator
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .compiled import compile_once, kernel
from .progress import BuildProgress
from .threads import run_ranges

ALL_HORIZONS_TO = 64  # tables up to this size hold every horizon from the start
BAND = 32  # larger ones hold horizons up to this, until longer ones are asked for


@kernel(fastmath={"reassoc", "nsz"})
def _rule_value(
    s0: int, n0: int, r: int, x: float, a: float, b: float, by_n: NDArray, rows: NDArray, step: int, work: NDArray
) -> tuple[float, float, int]:
    """Gain, time and depth of: take one rollout, then go on while the index exceeds x, at most r rollouts in all.

    `rows[(r - d - 2) * step]` holds the indices, by state number, that decide after d + 1 rollouts; step 0 uses one
    row for every horizon.
    """
    start = by_n[n0, s0]
    old, new = work[0], work[1]
    old[0] = 1.0
    gain, time, depth = 0.0, 0.0, 0
    low, high = 0, 0  # successes among the d rollouts so far, where the process is still going on
    base = a + s0
    for d in range(r):
        depth = d + 1
        norm = 1.0 / (a + b + n0 + d)
        mass = 0.0
        for k in range(low, high + 1):
            mass += old[k]
        time += mass
        new[low] = old[low] * (1.0 - (base + low) * norm)
        for k in range(low + 1, high + 1):
            new[k] = old[k] * (1.0 - (base + k) * norm) + old[k - 1] * ((base + k - 1) * norm)
        new[high + 1] = old[high] * ((base + high) * norm)
        high += 1
        n = n0 + d + 1
        value = by_n[n]
        if d == r - 1:
            for k in range(low, high + 1):
                gain += new[k] * (value[s0 + k] - start)
            break
        row = rows[(r - d - 2) * step, n * (n + 1) // 2 :]
        for k in range(low, high + 1):
            going = row[s0 + k] > x
            gain += 0.0 if going else new[k] * (value[s0 + k] - start)
            new[k] = new[k] if going else 0.0
        while low <= high and new[low] == 0.0:
            low += 1
        while high >= low and new[high] == 0.0:
            high -= 1
        if low > high:
            break
        old, new = new, old
    return gain, time, depth


@kernel()
def _solve_state(
    s: int, n: int, r: int, x: float, a: float, b: float, by_n: NDArray, rows: NDArray, step: int, work: NDArray
) -> tuple[float, int]:
    """Dinkelbach's iteration from a lower bound x: the index, and the depth of the best rule."""
    depth = 0
    for _ in range(200):
        gain, time, depth = _rule_value(s, n, r, x, a, b, by_n, rows, step, work)
        ratio = gain / time
        if ratio <= x + 1e-13 * abs(x):
            return max(x, ratio), depth
        x = ratio
    return x, depth


@kernel(nogil=True)
def _solve_layer(
    n: int,
    begin: int,
    end: int,
    a: float,
    b: float,
    by_n: NDArray,
    symmetric: bool,
    short: NDArray,
    limit: NDArray,
    depth: NDArray,
) -> None:
    """The indices of the states (s, n - s), s = begin .. end - 1, from those with more rollouts."""
    size = by_n.shape[0] - 1
    work = np.zeros((2, size + 2))
    for s in range(begin, end):
        state = n * (n + 1) // 2 + s
        mirror = state + n - 2 * s if symmetric else state
        q = (a + s) / (a + b + n)
        x = q * by_n[n + 1, s + 1] + (1.0 - q) * by_n[n + 1, s] - by_n[n, s]
        last, deepest = _solve_state(s, n, size - n, x, a, b, by_n, limit, 0, work)
        limit[0, state] = last
        limit[0, mirror] = last
        depth[state] = deepest
        depth[mirror] = deepest
        for r in range(1, short.shape[0] + 1):
            if r >= deepest:
                x = last
            elif r > 1:
                x, _ = _solve_state(s, n, r, x, a, b, by_n, short, 1, work)
            short[r - 1, state] = x
            short[r - 1, mirror] = x


def _index_tables(
    a: float, b: float, by_n: NDArray[np.float64], band: int, symmetric: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Indices of all states with n < size rollouts; state (s, n - s) has number n (n + 1) / 2 + s.

    `by_n[n, s]` is U(s, n - s). `symmetric` says that a = b and U(s, f) = U(f, s): half of the states are mirrored.

    Returns `short` of shape (band, states) for r = 1 .. band, `limit` of shape (states,) for r = size - n, and
    `depth` of shape (states,): the r from which on the index is the limit.
    """
    size = by_n.shape[0] - 1
    states = size * (size + 1) // 2
    short, limit = np.empty((band, states)), np.empty((1, states))
    depth = np.empty(states, dtype=np.int64)
    tables = (a, b, by_n, symmetric, short, limit, depth)
    with BuildProgress(f"index table, groups of up to {size}", states) as progress:
        for n in range(size - 1, -1, -1):
            layer = partial(_solve_layer, n)
            run_ranges(lambda first, end, f=layer: f(first, end, *tables), n // 2 + 1 if symmetric else n + 1, 8)  # type: ignore[misc]
            progress.advance(n + 1)
    return short, limit[0], depth


class IndexTable:
    """Price indices of one prompt, from `solve_index`.

    Attributes:
        max_rollouts (`int`): states with fewer rollouts than this have an index.
        utility (`Utility`), prior (pair of `float`): what it was solved for.
        short, limit, depth (arrays): see `_index_tables`.
    """

    def __init__(self, max_rollouts: int, utility: Utility, prior: tuple[float, float]) -> None:
        self.max_rollouts = max_rollouts
        self.utility = utility
        self.prior = prior
        values = utility.table(max_rollouts)
        self.by_n = utility_by_n(values)
        self._symmetric = prior[0] == prior[1] and bool(np.array_equal(values, values.T))
        self._extend(max_rollouts if max_rollouts <= ALL_HORIZONS_TO else BAND)

    def _extend(self, band: int) -> None:
        self.band = band
        self.short, self.limit, self.depth = _index_tables(*self.prior, self.by_n, band, self._symmetric)

    def cover(self, horizon: int) -> None:
        """Make `short` hold every horizon up to this one at which some index is not at its limit yet."""
        horizon = min(horizon, int(self.depth.max()))
        if horizon > self.band:
            self._extend(min(self.max_rollouts, max(horizon, 2 * self.band)))

    def index(self, successes: ArrayLike, failures: ArrayLike, remaining: ArrayLike) -> NDArray[np.float64]:
        """The index I(s, f; r), broadcast over the arguments.

        Args:
            successes, failures (int arrays): the prompt's outcomes so far, with s + f <= max_rollouts.
            remaining (int array): rollouts it may still get at most. More than the table holds means what it holds.

        Returns:
            float64 array; in units of utility per rollout. May be negative (going on can cost utility), and is -inf
            where nothing remains (`remaining` is 0, or s + f = max_rollouts).

        Raises:
            ValueError: if a state is outside the table or `remaining` is negative.
        """
        s, f, r = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in (successes, failures, remaining)))
        n = s + f
        if (np.minimum(s, f) < 0).any() or (n > self.max_rollouts).any() or (r < 0).any():
            raise ValueError(
                f"successes={successes!r}, failures={failures!r}, remaining={remaining!r}: all must be at least 0, "
                f"and successes + failures at most max_rollouts={self.max_rollouts}."
            )
        r = np.minimum(r, self.max_rollouts - n)
        open_ = r > 0
        state = np.where(open_, n * (n + 1) // 2 + s, 0)
        at_limit = r >= self.depth[state]
        needed = int(np.max(r, where=open_ & ~at_limit, initial=0))
        self.cover(needed)
        short = self.short[np.clip(r, 1, self.band) - 1, state]
        return np.where(open_, np.where(at_limit, self.limit[state], short), -np.inf)

    def __repr__(self) -> str:
        return f"IndexTable(max_rollouts={self.max_rollouts}, utility={self.utility.key!r}, prior={self.prior})"


def utility_by_n(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """From U[s, f] to U[n, s] = U(s, n - s): states with the same number of rollouts lie side by side."""
    n, s = np.tril_indices(table.shape[0])
    by_n = np.zeros_like(table)
    by_n[n, s] = table[s, n - s]
    return by_n


def solve_index(
    max_rollouts: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior: tuple[float, float] = (1.0, 1.0),
) -> IndexTable:
    """Price indices for one prompt that gets at most `max_rollouts` rollouts.

    Args:
        max_rollouts (`int`): at least 1.
        utility (`str`, callable or `Utility`): terminal utility, see `adaroll_trl.utilities`.
        prior (pair of `float`): the Beta prior's (alpha, beta), both positive.

    Returns:
        `IndexTable`: kept in memory and shared between calls with the same arguments.

    Raises:
        ValueError: if an argument is out of range.

    >>> table = solve_index(16, "mixed")
    >>> table.index([0, 1, 1], [0, 0, 1], 8).round(4)
    array([0.1895, 0.3333, 0.    ])
    """
    max_rollouts = whole_number("max_rollouts", max_rollouts, least=1)
    compile_once(_run_kernels)
    return _solve_index(max_rollouts, as_utility(utility), check_prior(prior))


def _run_kernels() -> None:
    IndexTable(2, as_utility("mixed"), (1.0, 1.0))


@lru_cache(maxsize=256)
def _solve_index(max_rollouts: int, utility: Utility, prior: tuple[float, float]) -> IndexTable:
    return IndexTable(max_rollouts, utility, prior)


_MOST_COUNTED = 2**31 - 1


def as_int(name: str, value: int) -> int:
    """The value as an int, or a ValueError that names it."""
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise ValueError(f"{name}={value!r} must be a whole number.") from error


def whole_number(name: str, value: int, least: int) -> int:
    """The value as an int of at least `least` that counts rollouts or prompts, or a ValueError that names it."""
    number = as_int(name, value)
    if number < least:
        raise ValueError(f"{name}={value!r} must be at least {least}.")
    if number > _MOST_COUNTED:
        raise ValueError(f"{name}={value!r} must be at most {_MOST_COUNTED:,}.")
    return number


def real_array(name: str, values: ArrayLike, kind: str = "numbers") -> NDArray[np.float64]:
    """The values as a float64 array of any shape, or a ValueError that names them."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:  # no numbers, or ragged
        raise ValueError(f"{name}={values!r} must be {kind}.") from error


def check_prior(prior: tuple[float, float]) -> tuple[float, float]:
    """The pair as floats, or a ValueError that shows it."""
    try:
        alpha, beta = (float(x) for x in prior)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"prior={prior!r} must be one pair (alpha, beta), such as (1.0, 1.0).") from error
    if not (0.0 < alpha < np.inf and 0.0 < beta < np.inf):
        raise ValueError(f"prior={prior!r} must be two positive finite numbers, such as (1.0, 1.0).")
    return alpha, beta
