"""Kernels: the values of k rounds at a price, for one prompt.

Notation. One prompt with prior Beta(a, b) is in state (s, n): s successes in n rollouts, number n (n + 1) / 2 + s. A
round of m rollouts yields X ~ BetaBinomial(m, a + s, b + n - s) successes. With k rounds left, at price x,

    Q_x^k(m; s, n) = -x m + E[ W_x^{k-1}(s + X, n + m) ]        W_x^k = max over m of Q_x^k        W_x^0 = U

W_x^k is convex and piecewise linear in x; minus its slope is the expected number of rollouts that the plan still
takes. `round_tables` tabulates it on a grid of prices; linear interpolation in between keeps it convex and never below
the truth. `round_split` finds a batch's price.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel


@kernel()
def polya_step(pmf: NDArray, m: int, alpha: float, beta: float) -> None:
    """In place: the beta-binomial distribution of m successes turns into that of m + 1."""
    norm = 1.0 / (alpha + beta + m)
    pmf[m + 1] = pmf[m] * (alpha + m) * norm
    for x in range(m, 0, -1):
        pmf[x] = pmf[x] * (beta + m - x) * norm + pmf[x - 1] * (alpha + x - 1) * norm
    pmf[0] *= (beta + m) * norm


@kernel(fastmath={"reassoc", "nsz"})
def _dot(p: NDArray, w: NDArray, length: int) -> float:
    total = 0.0
    for i in range(length):
        total += p[i] * w[i]
    return total


@kernel()
def _beta_binomial(pmf: NDArray, m: int, alpha: float, beta: float, none: float) -> None:
    """pmf[x] for x = 0 .. m successes in m rollouts, given pmf[0] = `none`."""
    pmf[0] = none
    for x in range(m):
        pmf[x + 1] = pmf[x] * ((m - x) * (alpha + x) / ((x + 1) * (beta + m - x - 1)))


@kernel(nogil=True)
def fill_level(
    a: float,
    b: float,
    prices: NDArray,
    previous: NDArray,
    size: int,
    sizes: NDArray,
    first: int,
    end: int,
    level: NDArray,
) -> None:
    """W^k of the states first .. end - 1, from W^{k-1}; both of shape (prices, states), states with n <= size.

    `sizes` holds the m that a round may take, ascending.
    """
    pmf = np.zeros(size + 2)
    for state in range(first, end):
        n = int((np.sqrt(8.0 * state + 1.0) - 1.0) / 2.0)
        s = state - n * (n + 1) // 2
        for i in range(prices.size):
            level[i, state] = previous[i, state]
        none, drawn = 1.0, 0
        for m in sizes:
            if n + m > size:
                break
            while drawn < m:
                none *= (b + n - s + drawn) / (a + b + n + drawn)
                drawn += 1
            _beta_binomial(pmf, m, a + s, b + n - s, none)
            start = (n + m) * (n + m + 1) // 2 + s
            for i in range(prices.size):
                value = _dot(pmf, previous[i, start:], m + 1) - prices[i] * m
                level[i, state] = max(level[i, state], value)


@kernel(nogil=True)
def fill_level_at_price(
    a: float,
    b: float,
    price: float,
    value: NDArray,
    time: NDArray,
    size: int,
    sizes: NDArray,
    first: int,
    end: int,
    new_value: NDArray,
    new_time: NDArray,
    start_now: NDArray,
) -> None:
    """At one price: W^k and the rollouts its best plan takes, of the states first .. end - 1, from those of k - 1.

    `start_now` gets the same two for the best plan m >= 1 in the state without rollouts.
    """
    pmf = np.zeros(size + 2)
    for state in range(first, end):
        n = int((np.sqrt(8.0 * state + 1.0) - 1.0) / 2.0)
        s = state - n * (n + 1) // 2
        new_value[state], new_time[state] = value[state], time[state]
        none, drawn = 1.0, 0
        for m in sizes:
            if n + m > size:
                break
            while drawn < m:
                none *= (b + n - s + drawn) / (a + b + n + drawn)
                drawn += 1
            _beta_binomial(pmf, m, a + s, b + n - s, none)
            start = (n + m) * (n + m + 1) // 2 + s
            v = _dot(pmf, value[start:], m + 1) - price * m
            if v > new_value[state]:
                new_value[state] = v
                new_time[state] = m + _dot(pmf, time[start:], m + 1)
            if state == 0 and v > start_now[0]:
                start_now[0], start_now[1] = v, m + _dot(pmf, time[start:], m + 1)


@kernel(fastmath={"reassoc", "nsz"})
def _add_scaled(out: NDArray, weight: float, row: NDArray) -> None:
    # Loops that start at 0 over slices: with a start that is not known to be positive, numba has to allow for indices
    # from the end, and the loop is no longer vectorised (six times slower).
    for k in range(out.size):
        out[k] += weight * row[k]


@kernel()
def plan_values(s: int, n: int, a: float, b: float, top: int, row: NDArray, pmf: NDArray, out: NDArray) -> None:
    """out[m] = E[ row at the state after m more rollouts ], for m = 0 .. top; `pmf` is work space."""
    pmf[0] = 1.0
    out[0] = row[n * (n + 1) // 2 + s]
    for m in range(1, top + 1):
        polya_step(pmf, m - 1, a + s, b + n - s)
        out[m] = _dot(pmf, row[(n + m) * (n + m + 1) // 2 + s :], m + 1)


@kernel()
def all_plan_values(
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    high: NDArray,
    nodes: NDArray,
    weights: NDArray,
    level: NDArray,
    i: int,
    out: NDArray,
) -> None:
    """For every class: out[c, m] = E[ W^{k-1} at price number i after m more rollouts ], m = 0 .. high[c]."""
    mixed, pmf = np.empty(level.shape[2]), np.empty(high.max() + 2)
    for c in range(s.size):
        if nodes.shape[1] == 1:
            plan_values(s[c], n[c], a[c], b[c], high[c], level[nodes[c, 0], i], pmf, out[c])
            continue
        last = n[c] + high[c]
        reach = slice(n[c] * (n[c] + 1) // 2, (last + 1) * (last + 2) // 2)
        mixed[reach] = 0.0
        for j in range(nodes.shape[1]):
            if weights[c, j] > 0.0:
                _add_scaled(mixed[reach], weights[c, j], level[nodes[c, j], i, reach])
        plan_values(s[c], n[c], a[c], b[c], high[c], mixed, pmf, out[c])
