"""The last round: split R rollouts over prompts so that the expected utilities add up to the most, exactly.

With v_i(m) = E[ U(s_i + X, n_i + m) ], X ~ BetaBinomial(m, a_i + s_i, b_i + f_i), choose m_i in [low_i, high_i] with
sum m_i = R. The v_i need not be concave: one rollout alone is worth nothing.

1. Replace each v_i by its concave majorant; greedy by slope solves that relaxation. The last slope taken is the price
x.
2. A choice m of prompt i costs gap_i(m) = max_m' {v_i(m') - x m'} - (v_i(m) - x m) >= 0 against the relaxation, and
   the loss of a whole split is the sum of its gaps. Any split that sums to R bounds the loss by some D.
3. Only choices with a gap of at most D can be in a better split. Dynamic programming over these few is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel


@kernel()
def _majorant(v: NDArray, low: int, high: int, corners: NDArray) -> int:
    """Corners of the concave majorant of v[low..high], left to right; returns how many."""
    count = 0
    for m in range(low, high + 1):
        while count >= 2:
            p, q = corners[count - 2], corners[count - 1]
            if (v[q] - v[p]) * (m - q) > (v[m] - v[q]) * (q - p):
                break
            count -= 1
        corners[count] = m
        count += 1
    return count


@kernel()
def _relax(v: NDArray, low: NDArray, high: NDArray, total: int, counts: NDArray) -> tuple[float, int]:
    """Greedy on the majorants. Fills `counts` with the segments that fit whole.

    Returns the price, and the prompt whose segment no longer fits (-1 if `counts` sums to `total`).
    """
    room = (high - low).sum() + 1
    slope = np.empty(room)
    owner, end = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    corners = np.empty(v.shape[1] + 1, dtype=np.int64)
    count = 0
    for i in range(low.size):
        counts[i] = low[i]
        for j in range(1, _majorant(v[i], low[i], high[i], corners)):
            p, q = corners[j - 1], corners[j]
            slope[count], owner[count], end[count] = (v[i, q] - v[i, p]) / (q - p), i, q
            count += 1
    left = total - low.sum()
    price = 0.0
    # Stable, so that equal slopes go to the lowest prompt and a prompt's own segments keep their order.
    for k in np.argsort(-slope[:count], kind="mergesort"):
        if left == 0:
            break
        i = owner[k]
        price = slope[k]
        if end[k] - counts[i] > left:
            return price, i
        left -= end[k] - counts[i]
        counts[i] = end[k]
    return price, -1


@kernel()
def _repair(gap: NDArray, high: NDArray, total: int, split: int, counts: NDArray) -> float:
    """Make `counts` sum to `total`: all of the rest to prompt `split`, or one by one where it costs least.

    Returns the sum of gaps of the better of the two, left in `counts`.
    """
    left = total - counts.sum()
    other = counts.copy()
    counts[split] += left
    for _ in range(left):
        best, cost = split, np.inf
        for i in range(counts.size):
            if other[i] < high[i] and gap[i, other[i] + 1] - gap[i, other[i]] < cost:
                best, cost = i, gap[i, other[i] + 1] - gap[i, other[i]]
        other[best] += 1
    one, two = 0.0, 0.0
    for i in range(counts.size):
        one += gap[i, counts[i]]
        two += gap[i, other[i]]
    if two < one:
        counts[:] = other
    return min(one, two)


@kernel()
def _exact(gap: NDArray, low: NDArray, high: NDArray, total: int, limit: float, counts: NDArray) -> None:
    """Least sum of gaps with counts that sum to total, over choices whose gap is at most limit."""
    n = low.size
    least, most = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for i in range(n):
        least[i], most[i] = -1, -1
        for m in range(low[i], high[i] + 1):
            if gap[i, m] <= limit:
                most[i] = m
                if least[i] < 0:
                    least[i] = m
    rest = total - least.sum()
    cost = np.full(rest + 1, np.inf)
    cost[0] = 0.0
    new = np.empty(rest + 1)
    choice = np.zeros((n, rest + 1), dtype=np.int16)
    reach = 0
    for i in range(n):
        if most[i] == least[i]:
            for t in range(reach + 1):
                cost[t] += gap[i, least[i]]
            continue
        top = min(rest, reach + most[i] - least[i])
        new[: top + 1] = np.inf
        for m in range(least[i], most[i] + 1):
            if gap[i, m] > limit:
                continue
            shift = m - least[i]
            for t in range(shift, min(top, reach + shift) + 1):
                value = cost[t - shift] + gap[i, m]
                if value < new[t]:
                    new[t] = value
                    choice[i, t] = shift
        reach = top
        cost[: top + 1] = new[: top + 1]
    t = rest
    for i in range(n - 1, -1, -1):
        counts[i] = least[i] + choice[i, t]
        t -= choice[i, t]


@kernel()
def solve_knapsack(v: NDArray, low: NDArray, high: NDArray, total: int) -> NDArray:
    """Counts that maximise sum_i v[i, counts[i]] subject to low <= counts <= high and their sum.

    `v` has shape (prompts, max(high) + 1); sum(low) <= total <= sum(high). Time: a sort, and then (prompts left open)
    x (rollouts left open) x (choices left open).
    """
    counts = np.empty(low.size, dtype=np.int64)
    price, split = _relax(v, low, high, total, counts)
    if split < 0:
        return counts
    gap = np.empty(v.shape)
    for i in range(low.size):
        best = -np.inf
        for m in range(low[i], high[i] + 1):
            best = max(best, v[i, m] - price * m)
        for m in range(low[i], high[i] + 1):
            gap[i, m] = best - (v[i, m] - price * m)
    loss = _repair(gap, high, total, split, counts)
    if loss > 1e-12 * max(1.0, np.abs(v).max()):
        _exact(gap, low, high, total, loss, counts)
    return counts
