"""Kernels: the dual step that splits a round over the prompts of a batch.

Over a batch, the dual is g(x) = x R + sum_i W_x^k(i) for R rollouts left (W as in `round_values`). At its minimum the
expected numbers of rollouts of all rounds together, not of this round alone, add up to R. Where a prompt has two best
plans there (prompts all alike, or a utility that does not saturate), just so many prompts take the larger plan as make
the expectation R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .round_values import all_plan_values

FEW_CLASSES = 64  # from this many on, the price is first sought for a few of them
TIE = 1e-9  # relative tolerance under which two plans count as equally good


@kernel()
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


@kernel()
def _at_price(left: NDArray, right: NDArray, high: int, share: float, x0: float, x1: float, at: NDArray) -> None:
    """Values of one class's plans at price x0 + share (x1 - x0)."""
    x = x0 + share * (x1 - x0)
    for m in range(high + 1):
        at[m] = (1.0 - share) * left[m] + share * right[m] - x * m


@kernel()
def _rollouts(left: NDArray, right: NDArray, high: int, x0: float, x1: float, out: NDArray) -> None:
    """Expected rollouts, all rounds together, of one class's plans: minus the slope of their value in the price."""
    for m in range(high + 1):
        out[m] = m - (right[m] - left[m]) / (x1 - x0)


@kernel()
def _best_plan(left: NDArray, right: NDArray, low: int, high: int, x0: float, x1: float, share: float) -> int:
    """The best m of one class at the price x0 + share (x1 - x0)."""
    x = x0 + share * (x1 - x0)
    best, top = low, -np.inf
    for m in range(low, high + 1):
        value = (1.0 - share) * left[m] + share * right[m] - x * m
        if value > top:
            best, top = m, value
    return best


@kernel()
def expected_rollouts(
    left: NDArray, right: NDArray, low: NDArray, high: NDArray, copies: NDArray, x0: float, x1: float, share: float
) -> float:
    """What the best plans of the whole batch take in all their rounds at the price x0 + share (x1 - x0)."""
    total = 0.0
    for c in range(low.size):
        m = _best_plan(left[c], right[c], low[c], high[c], x0, x1, share)
        total += copies[c] * (m - (right[c, m] - left[c, m]) / (x1 - x0))
    return total


@kernel()
def share_in_cell(
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


@kernel()
def first_guess(num_prices: int) -> int:
    """Where a walk over the cells starts: in the middle."""
    return (num_prices - 2) // 2


@kernel()
def begin_walk(guess: int, num_prices: int) -> tuple[int, int, int, int, int, int]:
    """A walk over the cells between prices: (cell, first and last that may be it, step, last direction, bracketed)."""
    return guess, 0, num_prices - 2, 1, 0, 0


@kernel()
def next_cell(walk: tuple[int, int, int, int, int, int], direction: int) -> tuple[int, int, int, int, int, int]:
    """Walk on where the crossing is at higher (1) or lower (-1) prices: doubling steps until it is between two cells
    that were looked at, then halving. It is never past `begin`, so a walk ends."""
    cell, begin, end, step, went, bracketed = walk
    if direction > 0:
        begin = cell + 1
    else:
        end = max(cell - 1, begin)
    if bracketed == 1 or went == -direction:
        return (begin + end) // 2, begin, end, step, direction, 1
    return min(max(cell + direction * step, begin), end), begin, end, 2 * step, direction, 0


@kernel()
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
    walk = begin_walk(guess, prices.size)
    known = -9  # the cell whose ends are in `left` and `right`
    while True:
        i = walk[0]
        if known in (i - 1, i + 1):  # of two neighbouring cells one end is the same
            left, right = right, left
        if known != i - 1:
            all_plan_values(s, n, a, b, high, nodes, weights, level, i, left)
        if known != i + 1:
            all_plan_values(s, n, a, b, high, nodes, weights, level, i + 1, right)
        known = i
        x0, x1 = prices[i], prices[i + 1]
        if walk[1] < walk[2] and expected_rollouts(left, right, low, high, copies, x0, x1, 1.0) > budget:
            walk = next_cell(walk, 1)
        elif walk[1] < walk[2] and expected_rollouts(left, right, low, high, copies, x0, x1, 0.0) < budget:
            walk = next_cell(walk, -1)
        else:
            return left, right, i


@kernel()
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

    In a batch of many kinds of prompts, a few of them tell first about where to look, then some more.
    """
    guess = first_guess(prices.size)
    for stride in (64, 8):
        if s.size >= FEW_CLASSES * stride // 8:
            c = np.arange(0, s.size, stride)
            share = copies[c].sum() / copies.sum()
            few = (s[c], n[c], a[c], b[c], low[c], high[c], copies[c], nodes[c], weights[c])
            guess = _search(*few, level, prices, budget * share, guess)[2]
    left, right, i = _search(s, n, a, b, low, high, copies, nodes, weights, level, prices, float(budget), guess)
    x0, x1 = prices[i], prices[i + 1]
    return left, right, i, share_in_cell(left, right, low, high, copies, x0, x1, budget)


@kernel()
def group_prompts(s: NDArray, n: NDArray, spent: NDArray, a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Prompts in the same state with the same prior share a class: (class of each prompt, first prompt of each).

    Classes are numbered by prior and state, whatever the order of the prompts: sums over them, ties between them and
    with both the size of a round do not depend on it.
    """
    found = np.empty(s.size, dtype=np.int64)
    first = np.empty(s.size, dtype=np.int64)
    count, start, last = 0, 0, -1
    for i in np.argsort(a, kind="mergesort"):  # classes have one alpha: compare only within a run of equal ones
        if last >= 0 and a[i] != a[last]:
            start = count
        last = i
        c = start
        while c < count:
            j = first[c]
            if s[i] == s[j] and n[i] == n[j] and spent[i] == spent[j] and b[i] == b[j]:
                break
            c += 1
        if c == count:
            first[count] = i
            count += 1
        found[i] = c
    first = first[:count]
    base = spent.max() + 1  # above all of n, s and spent
    order = np.argsort((n[first] * base + s[first]) * base + spent[first])
    order = order[np.argsort(b[first[order]], kind="mergesort")]
    order = order[np.argsort(a[first[order]], kind="mergesort")]
    number = np.empty(count, dtype=np.int64)
    number[order] = np.arange(count)
    return number[found], first[order]


@kernel()
def _by_class(member: NDArray, copies: NDArray) -> NDArray:
    """The prompts, class by class and by their number within a class."""
    place = np.cumsum(copies) - copies
    order = np.empty(member.size, dtype=np.int64)
    for i in range(member.size):
        order[int(place[member[i]])] = i
        place[member[i]] += 1
    return order


@kernel()
def _fit_total(
    counts: NDArray, order: NDArray, member: NDArray, low: NDArray, high: NDArray, at: NDArray, total: int
) -> None:
    """Move counts, one rollout at a time where it costs least, until they sum to `total`.

    Ties go by `order`: the first of them gains a rollout, the last one loses it.
    """
    gap = total - counts.sum()
    step = 1 if gap > 0 else -1
    order = order[::step]
    for _ in range(abs(gap)):
        best, gain = -1, -np.inf
        for i in order:
            c, m = member[i], counts[i] + step
            if low[c] <= m <= high[c] and at[c, m] - at[c, m - step] > gain:
                best, gain = i, at[c, m] - at[c, m - step]
        counts[best] += step


@kernel()
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


@kernel()
def _solve_dual(
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
) -> tuple:
    """The classes of a batch and the price at which g is smallest. Arguments as for `split_round`.

    Returns:
        The class of each prompt; of each class its bounds and number of prompts, and the values of its plans at two
        neighbouring prices; those prices, and the place of the best price between them.
    """
    member, first = group_prompts(s, n, spent, a, b)
    low, high, copies = _class_bounds(n, spent, member, first, minimum, maximum, budget, level.shape[2])
    left, right, i, share = find_price(
        s[first], n[first], a[first], b[first], low, high, copies, nodes[first], weights[first], level, prices, budget
    )
    return member, low, high, copies, left, right, prices[i], prices[i + 1], share


def smallest_dual(*batch: Any) -> float:
    """The minimum of g: what the plan expects to be worth. Arguments as for `_solve_dual`; not compiled itself."""
    _, low, high, copies, left, right, x0, x1, share = _solve_dual(*batch)
    x = x0 + share * (x1 - x0)
    m = np.arange(left.shape[1])
    values = (1.0 - share) * left + share * right - x * m
    allowed = (m >= low[:, None]) & (m <= high[:, None])
    budget = batch[-1]
    return float(copies @ np.where(allowed, values, -np.inf).max(axis=1) + x * budget)


@kernel()
def counts_at_price(
    member: NDArray,
    low: NDArray,
    high: NDArray,
    copies: NDArray,
    left: NDArray,
    right: NDArray,
    x0: float,
    x1: float,
    share: float,
    budget: int,
    multiple_of: int,
    share_of_budget: float,
) -> NDArray:
    """The counts of a round at the best price, given what `_solve_dual` returns; see `split_round`."""
    at, rollouts = np.empty(left.shape), np.empty(left.shape)
    few, many = np.empty(low.size, dtype=np.int64), np.empty(low.size, dtype=np.int64)
    open_budget = float(budget)
    for c in range(low.size):
        _at_price(left[c], right[c], high[c], share, x0, x1, at[c])
        _rollouts(left[c], right[c], high[c], x0, x1, rollouts[c])
        few[c], many[c] = _best_plans(at[c], low[c], high[c], rollouts[c])
        open_budget -= copies[c] * rollouts[c, few[c]]
    counts = np.empty(member.size, dtype=np.int64)
    order = _by_class(member, copies)
    for j in order:
        c = member[j]
        extra = rollouts[c, many[c]] - rollouts[c, few[c]]
        generous = extra > 0.0 and open_budget > 0.5 * extra
        counts[j] = many[c] if generous else few[c]
        if generous:
            open_budget -= extra
    ceiling = budget if share_of_budget >= 1.0 else int(np.ceil(budget * share_of_budget))
    floor = 0
    for j in range(member.size):
        floor += low[member[j]]
    total = min(max(counts.sum(), 1), max(ceiling, floor))
    total = max((2 * total + multiple_of) // (2 * multiple_of), 1) * multiple_of
    if total < floor:
        total += multiple_of
    _fit_total(counts, order, member, low, high, at, min(total, budget))
    return counts


@kernel()
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
    dual = _solve_dual(s, n, spent, a, b, nodes, weights, level, prices, minimum, maximum, budget)
    return counts_at_price(*dual, budget, multiple_of, share_of_budget)
