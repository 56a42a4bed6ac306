"""Kernels of the rounds planner: values of k rounds at a price, and the dual step that splits a round over prompts.

Notation. One prompt with prior Beta(a, b) is in state (s, n): s successes in n rollouts, number n (n + 1) / 2 + s. A
round of m rollouts yields X ~ BetaBinomial(m, a + s, b + n - s) successes. With k rounds left, at price x,

    Q_x^k(m; s, n) = -x m + E[ W_x^{k-1}(s + X, n + m) ]        W_x^k = max over m of Q_x^k        W_x^0 = U

W_x^k is convex and piecewise linear in x; minus its slope is the expected number of rollouts that the plan still
takes. It is tabulated on a grid of prices and interpolated linearly in between, which keeps it convex and never below
the truth.

Over a batch, the prices' dual is g(x) = x R + sum_i W_x^k(i) for R rollouts left. At its minimum the expected numbers
of rollouts of all rounds together, not of this round alone, add up to R. Where a prompt has two best m there (prompts
all alike, or a utility that does not saturate), just so many prompts take the larger plan as make the expectation R.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

TIE = 1e-9  # relative tolerance under which two plans count as equally good


@njit(cache=True)
def polya_step(pmf: NDArray, m: int, alpha: float, beta: float) -> None:
    """In place: the beta-binomial distribution of m successes turns into that of m + 1."""
    norm = 1.0 / (alpha + beta + m)
    pmf[m + 1] = pmf[m] * (alpha + m) * norm
    for x in range(m, 0, -1):
        pmf[x] = pmf[x] * (beta + m - x) * norm + pmf[x - 1] * (alpha + x - 1) * norm
    pmf[0] *= (beta + m) * norm


@njit(cache=True, fastmath={"reassoc", "nsz"})
def _dot(p: NDArray, w: NDArray, length: int) -> float:
    total = 0.0
    for i in range(length):
        total += p[i] * w[i]
    return total


@njit(cache=True)
def _beta_binomial(pmf: NDArray, m: int, alpha: float, beta: float, none: float) -> None:
    """pmf[x] for x = 0 .. m successes in m rollouts, given pmf[0] = `none`."""
    pmf[0] = none
    for x in range(m):
        pmf[x + 1] = pmf[x] * ((m - x) * (alpha + x) / ((x + 1) * (beta + m - x - 1)))


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, fastmath={"reassoc", "nsz"})
def _add_scaled(out: NDArray, weight: float, row: NDArray) -> None:
    # Loops that start at 0 over slices: with a start that is not known to be positive, numba has to allow for indices
    # from the end, and the loop is no longer vectorised (six times slower).
    for k in range(out.size):
        out[k] += weight * row[k]


@njit(cache=True)
def _plan_values(s: int, n: int, a: float, b: float, top: int, row: NDArray, pmf: NDArray, out: NDArray) -> None:
    """out[m] = E[ row at the state after m more rollouts ], for m = 0 .. top; `pmf` is work space."""
    pmf[0] = 1.0
    out[0] = row[n * (n + 1) // 2 + s]
    for m in range(1, top + 1):
        polya_step(pmf, m - 1, a + s, b + n - s)
        out[m] = _dot(pmf, row[(n + m) * (n + m + 1) // 2 + s :], m + 1)


@njit(cache=True)
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
            _plan_values(s[c], n[c], a[c], b[c], high[c], level[nodes[c, 0], i], pmf, out[c])
            continue
        last = n[c] + high[c]
        reach = slice(n[c] * (n[c] + 1) // 2, (last + 1) * (last + 2) // 2)
        mixed[reach] = 0.0
        for j in range(nodes.shape[1]):
            if weights[c, j] > 0.0:
                _add_scaled(mixed[reach], weights[c, j], level[nodes[c, j], i, reach])
        _plan_values(s[c], n[c], a[c], b[c], high[c], mixed, pmf, out[c])


@njit(cache=True)
def _best_plans(at: NDArray, low: int, high: int, rollouts: NDArray) -> tuple[int, int]:
    """Of the plans m = low .. high with values `at`, the frugal and the generous one among the best.

    `rollouts[m]` is the expected number that plan m takes in all its rounds.
    """
    best = -np.inf
    for m in range(low, high + 1):
        best = max(best, at[m])
    tolerance = TIE * max(abs(best), 1e-3)
    few, many = -1, -1
    for m in range(low, high + 1):
        if at[m] < best - tolerance:
            continue
        # Of plans alike in all but their timing, act now (m > 0) but with as few rollouts as will do.
        if few < 0 or rollouts[m] < rollouts[few] - 1e-7 or (rollouts[m] < rollouts[few] + 1e-7 and few == 0):
            few = m
        if many < 0 or rollouts[m] > rollouts[many] + 1e-7 or (rollouts[m] > rollouts[many] - 1e-7 and many == 0):
            many = m
    return few, many


@njit(cache=True)
def _at_price(left: NDArray, right: NDArray, high: int, share: float, x0: float, x1: float, at: NDArray) -> None:
    """Values of one class's plans at price x0 + share (x1 - x0)."""
    x = x0 + share * (x1 - x0)
    for m in range(high + 1):
        at[m] = (1.0 - share) * left[m] + share * right[m] - x * m


@njit(cache=True)
def _rollouts(left: NDArray, right: NDArray, high: int, x0: float, x1: float, out: NDArray) -> None:
    """Expected rollouts, all rounds together, of one class's plans: minus the slope of their value in the price."""
    for m in range(high + 1):
        out[m] = m - (right[m] - left[m]) / (x1 - x0)


@njit(cache=True)
def _best_plan(left: NDArray, right: NDArray, low: int, high: int, x0: float, x1: float, share: float) -> int:
    """The best m of one class at the price x0 + share (x1 - x0)."""
    x = x0 + share * (x1 - x0)
    best, top = low, -np.inf
    for m in range(low, high + 1):
        value = (1.0 - share) * left[m] + share * right[m] - x * m
        if value > top:
            best, top = m, value
    return best


@njit(cache=True)
def expected_rollouts(
    left: NDArray, right: NDArray, low: NDArray, high: NDArray, copies: NDArray, x0: float, x1: float, share: float
) -> float:
    """What the best plans of the whole batch take in all their rounds at the price x0 + share (x1 - x0)."""
    total = 0.0
    for c in range(low.size):
        m = _best_plan(left[c], right[c], low[c], high[c], x0, x1, share)
        total += copies[c] * (m - (right[c, m] - left[c, m]) / (x1 - x0))
    return total


@njit(cache=True)
def _share_in_cell(
    left: NDArray, right: NDArray, low: NDArray, high: NDArray, copies: NDArray, x0: float, x1: float, budget: int
) -> float:
    """Where between two prices of the grid the expected rollouts cross `budget`, by bisection.

    Values are linear in the price within a cell: a plan that is best at both ends of an interval is best in between;
    such classes are settled and not looked at again.
    """
    begin, end = 0.0, 1.0
    at_begin, at_end = np.empty(low.size, dtype=np.int64), np.empty(low.size, dtype=np.int64)
    middle = np.empty(low.size, dtype=np.int64)
    for c in range(low.size):
        at_begin[c] = _best_plan(left[c], right[c], low[c], high[c], x0, x1, begin)
        at_end[c] = _best_plan(left[c], right[c], low[c], high[c], x0, x1, end)
    open_, settled = np.arange(low.size), 0.0
    for _ in range(40):
        count = 0
        for k in range(open_.size):
            j = open_[k]
            if at_begin[j] == at_end[j]:
                m = at_end[j]
                settled += copies[j] * (m - (right[j, m] - left[j, m]) / (x1 - x0))
            else:
                open_[count] = j
                count += 1
        open_ = open_[:count]
        share, expected = 0.5 * (begin + end), settled
        for j in open_:
            m = _best_plan(left[j], right[j], low[j], high[j], x0, x1, share)
            middle[j] = m
            expected += copies[j] * (m - (right[j, m] - left[j, m]) / (x1 - x0))
        if expected > budget:
            begin = share
            at_begin[open_] = middle[open_]
        else:
            end = share
            at_end[open_] = middle[open_]
    return 0.5 * (begin + end)


@njit(cache=True)
def _search(
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    low: NDArray,
    high: NDArray,
    copies: NDArray,
    nodes: NDArray,
    weights: NDArray,
    level: NDArray,
    prices: NDArray,
    budget: float,
    guess: int,
) -> tuple[NDArray, NDArray, int]:
    """The cell of the price grid in which the expected rollouts cross `budget`, and the plan values at its two ends.

    Walks from `guess` in doubling steps until it has the crossing between two cells, then halves.
    """
    width = high.max() + 1
    left, right = np.zeros((s.size, width)), np.zeros((s.size, width))
    begin, end = 0, prices.size - 2
    i, step, bracketed = guess, 1, False
    known, went = -9, 0  # the cell whose ends are in `left` and `right`; the last step's direction
    while True:
        if known in (i - 1, i + 1):  # of two neighbouring cells one end is the same
            left, right = right, left
        if known != i - 1:
            all_plan_values(s, n, a, b, high, nodes, weights, level, i, left)
        if known != i + 1:
            all_plan_values(s, n, a, b, high, nodes, weights, level, i + 1, right)
        known = i
        x0, x1 = prices[i], prices[i + 1]
        if begin < end and expected_rollouts(left, right, low, high, copies, x0, x1, 1.0) > budget:
            begin, direction = i + 1, 1
        elif begin < end and expected_rollouts(left, right, low, high, copies, x0, x1, 0.0) < budget:
            end, direction = max(i - 1, begin), -1
        else:
            return left, right, i
        bracketed = bracketed or went == -direction
        went = direction
        if bracketed:
            i = (begin + end) // 2
        else:
            i = min(max(i + direction * step, begin), end)
            step *= 2


@njit(cache=True)
def find_price(
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    low: NDArray,
    high: NDArray,
    copies: NDArray,
    nodes: NDArray,
    weights: NDArray,
    level: NDArray,
    prices: NDArray,
    budget: int,
) -> tuple[NDArray, NDArray, int, float]:
    """Minimise the dual: plan values at two neighbouring prices, the number of the first, the place between them.

    In a batch of many kinds of prompts, a sixteenth of them tells first about where to look.
    """
    guess = (prices.size - 2) // 2
    if s.size >= 256:
        c = np.arange(0, s.size, 16)
        share = copies[c].sum() / copies.sum()
        few = (s[c], n[c], a[c], b[c], low[c], high[c], copies[c], nodes[c], weights[c])
        guess = _search(*few, level, prices, budget * share, guess)[2]
    left, right, i = _search(s, n, a, b, low, high, copies, nodes, weights, level, prices, float(budget), guess)
    x0, x1 = prices[i], prices[i + 1]
    return left, right, i, _share_in_cell(left, right, low, high, copies, x0, x1, budget)


@njit(cache=True)
def group_prompts(s: NDArray, n: NDArray, spent: NDArray, a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Prompts in the same state with the same prior share a class: (class of each prompt, first prompt of each)."""
    member = np.empty(s.size, dtype=np.int64)
    first = np.empty(s.size, dtype=np.int64)
    count, start, last = 0, 0, -1
    for i in np.argsort(a, kind="mergesort"):  # classes have one alpha: compare only within a run of equal ones
        if last >= 0 and a[i] != a[last]:
            start = count
        last = i
        found = -1
        for c in range(start, count):
            j = first[c]
            if s[i] == s[j] and n[i] == n[j] and spent[i] == spent[j] and b[i] == b[j]:
                found = c
                break
        if found < 0:
            found = count
            first[count] = i
            count += 1
        member[i] = found
    return member, first[:count].copy()


@njit(cache=True)
def _fit_total(counts: NDArray, member: NDArray, low: NDArray, high: NDArray, at: NDArray, total: int) -> None:
    """Move counts, one rollout at a time where it costs least, until they sum to `total`."""
    gap = total - counts.sum()
    step = 1 if gap > 0 else -1
    for _ in range(abs(gap)):
        best, gain = -1, -np.inf
        for i in range(counts.size):
            c, m = member[i], counts[i] + step
            if low[c] <= m <= high[c] and at[c, m] - at[c, m - step] > gain:
                best, gain = i, at[c, m] - at[c, m - step]
        counts[best] += step


@njit(cache=True)
def _class_bounds(
    n: NDArray, spent: NDArray, member: NDArray, first: NDArray, minimum: int, maximum: int, budget: int, states: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Of each class of prompts: least and most rollouts now, and how many prompts it has."""
    size = int((np.sqrt(8.0 * states + 1.0) - 3.0) / 2.0 + 0.5)
    low = np.minimum(np.maximum(minimum - spent[first], 0), budget)
    high = np.maximum(np.minimum(np.minimum(maximum - spent[first], size - n[first]), budget), low)
    copies = np.zeros(first.size)
    for c in member:
        copies[c] += 1.0
    return low, high, copies


def smallest_dual(
    s: NDArray,
    n: NDArray,
    spent: NDArray,
    a: NDArray,
    b: NDArray,
    nodes: NDArray,
    weights: NDArray,
    level: NDArray,
    prices: NDArray,
    minimum: int,
    maximum: int,
    budget: int,
) -> float:
    """The minimum of g: what the plan expects to be worth. Arguments as for `split_round`; not compiled itself."""
    member, first = group_prompts(s, n, spent, a, b)
    low, high, copies = _class_bounds(n, spent, member, first, minimum, maximum, budget, level.shape[2])
    left, right, i, share = find_price(
        s[first], n[first], a[first], b[first], low, high, copies, nodes[first], weights[first], level, prices, budget
    )
    x = prices[i] + share * (prices[i + 1] - prices[i])
    m = np.arange(left.shape[1])
    values = (1.0 - share) * left + share * right - x * m
    allowed = (m >= low[:, None]) & (m <= high[:, None])
    return float(copies @ np.where(allowed, values, -np.inf).max(axis=1) + x * budget)


@njit(cache=True)
def split_round(
    s: NDArray,
    n: NDArray,
    spent: NDArray,
    a: NDArray,
    b: NDArray,
    nodes: NDArray,
    weights: NDArray,
    level: NDArray,
    prices: NDArray,
    minimum: int,
    maximum: int,
    budget: int,
    multiple_of: int,
    share_of_budget: float,
) -> NDArray:
    """Counts of a round that is not the last.

    Args:
        s, n, spent: successes, scored rollouts and rollouts of each prompt, shape (prompts,).
        a, b: priors. nodes, weights: which tables of `level` stand for the continuation, shape (prompts, nodes).
        level: W^{k-1} of shape (tables, prices, states).
        minimum, maximum: of rollouts per prompt. budget: rollouts left, a multiple of multiple_of.
        share_of_budget: the round takes at most this share of the budget (1: no limit).
    """
    member, first = group_prompts(s, n, spent, a, b)
    low, high, copies = _class_bounds(n, spent, member, first, minimum, maximum, budget, level.shape[2])
    left, right, i, share = find_price(
        s[first], n[first], a[first], b[first], low, high, copies, nodes[first], weights[first], level, prices, budget
    )
    x0, x1 = prices[i], prices[i + 1]
    at, rollouts = np.empty(left.shape), np.empty(left.shape)
    few, many = np.empty(first.size, dtype=np.int64), np.empty(first.size, dtype=np.int64)
    open_budget = float(budget)
    for c in range(first.size):
        _at_price(left[c], right[c], high[c], share, x0, x1, at[c])
        _rollouts(left[c], right[c], high[c], x0, x1, rollouts[c])
        few[c], many[c] = _best_plans(at[c], low[c], high[c], rollouts[c])
        open_budget -= copies[c] * rollouts[c, few[c]]
    counts = np.empty(s.size, dtype=np.int64)
    for j in range(s.size):
        c = member[j]
        extra = rollouts[c, many[c]] - rollouts[c, few[c]]
        generous = extra > 0.0 and open_budget > 0.5 * extra
        counts[j] = many[c] if generous else few[c]
        if generous:
            open_budget -= extra
    ceiling = budget if share_of_budget >= 1.0 else int(np.ceil(budget * share_of_budget))
    floor = 0
    for j in range(s.size):
        floor += low[member[j]]
    total = min(max(counts.sum(), 1), max(ceiling, floor))
    total = max((2 * total + multiple_of) // (2 * multiple_of), 1) * multiple_of
    if total < floor:
        total += multiple_of
    _fit_total(counts, member, low, high, at, min(total, budget))
    return counts
