"""Whole rollouts within bounds that add up: what the allocators share, whatever their rules want.

Every function takes `low` and `high` (int arrays of shape (n,), low <= high) and a total with
sum(low) <= total <= sum(high), and returns int64 counts of shape (n,) within them that add up to the total. Among
prompts that a rule cannot tell apart, the ones with the lowest numbers in the batch come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .base import AllocationState

__all__ = [
    "bounds",
    "greedy",
    "in_proportion",
    "level",
    "raise_minimum",
    "round_total",
    "round_wishes",
    "share_evenly",
    "water_level",
]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_TIE = 1e-9  # relative: what differs by less, differs by rounding errors only


def bounds(state: AllocationState, rollouts_left: int) -> tuple[IntArray, IntArray]:
    """The fewest rollouts that each prompt must still get in this batch, and the most that it can get."""
    spent = np.asarray(state.rollouts, dtype=np.int64)
    low = np.maximum(state.min_rollouts - spent, 0)
    if state.max_rollouts is None:
        return low, np.full(spent.size, rollouts_left, dtype=np.int64)
    return low, np.minimum(state.max_rollouts - spent, rollouts_left)


def round_total(wanted: float, low: IntArray, state: AllocationState, rollouts_left: int, rounds_left: int) -> int:
    """The rollouts of a round that wants `wanted` of them: a multiple of `multiple_of`, and all that is left at last.

    It is rounded up, and is enough for `low`, so that a round which gives every prompt its minimum leaves none short.
    """
    if rounds_left == 1:
        return rollouts_left
    unit = state.multiple_of
    units = max(1, int(np.ceil(max(wanted, float(low.sum())) / unit - _TIE)))
    return min(units * unit, rollouts_left)


def raise_minimum(low: IntArray, high: IntArray, least: IntArray, total: int, value: FloatArray) -> IntArray:
    """`low`, raised to `least` for as many prompts as `total` pays for, those of the largest `value` first."""
    raised = low.copy()
    for i in np.argsort(-value, kind="stable"):
        more = min(least[i], high[i]) - raised[i]
        if 0 < more <= total - raised.sum():
            raised[i] += more
    return raised


def level(have: IntArray, total: int, high: IntArray) -> IntArray:
    """Lift the lowest of `have` first, each to at most `high`, until they add up to `total`.

    >>> level(np.array([3, 0, 1]), 8, np.array([9, 9, 9]))
    array([3, 3, 2])
    """
    below, above = int(have.min()), int(max(high.max(), have.max())) + 1
    while below + 1 < above:  # the largest level that the total can lift everybody to
        middle = (below + above) // 2
        if np.clip(middle, have, high).sum() <= total:
            below = middle
        else:
            above = middle
    counts = np.clip(below, have, high).astype(np.int64)
    lowest = np.flatnonzero((counts == below) & (counts < high))
    counts[lowest[: total - int(counts.sum())]] += 1
    return counts


def share_evenly(total: int, low: IntArray, high: IntArray, groups: Sequence[NDArray[np.bool_]] = ()) -> IntArray:
    """First `low` for all, then equal counts for the first group, and what it has no room for to the next.

    Groups are boolean arrays of shape (n,); what the last one has no room for goes to all prompts.
    """
    counts = low.astype(np.int64)
    for members in (*groups, np.ones(low.size, dtype=bool)):
        room = np.where(members, high, counts)
        counts = level(counts, min(total, int(room.sum())), room)
    return counts


def water_level(
    wish: Callable[[float], FloatArray], span: tuple[float, float], total: int, low: IntArray, high: IntArray
) -> FloatArray:
    """Real numbers clip(wish(c), low, high) that add up to `total`, or to a little less, found by bisection on c.

    `wish` maps a number in `span` to a float array of shape (n,), none of whose elements falls as c grows. Where no c
    of the span reaches the total, the wishes at its end are returned.
    """
    below, above = span
    for _ in range(64):
        middle = (below + above) / 2
        if np.clip(wish(middle), low, high).sum() <= total:
            below = middle
        else:
            above = middle
    return np.clip(wish(below), low, high)


def round_wishes(wishes: FloatArray, total: int, low: IntArray, high: IntArray) -> IntArray:
    """Largest remainders: wishes within the bounds, rounded so that they add up to `total`.

    What their fractions do not account for goes to the lowest counts.

    >>> round_wishes(np.array([2.6, 1.3, 1.1]), 5, np.zeros(3, int), np.full(3, 9))
    array([3, 1, 1])
    """
    counts = np.clip(np.floor(wishes + _TIE), low, high).astype(np.int64)
    fraction = np.round(np.maximum(wishes - counts, 0.0), 9)
    first = np.argsort(-fraction, kind="stable")
    first = first[(fraction[first] > 0) & (counts[first] < high[first])]
    counts[first[: max(0, total - int(counts.sum()))]] += 1
    if counts.sum() > total:  # rounding errors in the wishes, by a rollout at most
        counts[np.flatnonzero(counts > low)[-(int(counts.sum()) - total) :]] -= 1
    return level(counts, total, high)


def in_proportion(weights: FloatArray, total: int, low: IntArray, high: IntArray) -> IntArray:
    """Counts in proportion to `weights` as far as the bounds let them, by largest remainders.

    Weights are at least 0. Where those above 0 have no more room, the rest goes evenly to the others.
    """
    scale = float(weights.max(initial=0.0))
    share = weights / scale if scale > 0 else np.zeros(weights.size)
    wishes = water_level(lambda c: 10.0**c * share, (-12.0, 12.0), total, low, high)
    return round_wishes(wishes, total, low, high)


def greedy(gains: Callable[[int], FloatArray], total: int, low: IntArray, high: IntArray) -> IntArray:
    """Spend rollout by rollout where the next one is worth most; optimal where the values are concave.

    Args:
        gains (callable): maps a depth d to a float array of shape (n, d): column k is what a prompt's rollout is
            worth that comes after k others of this round. A row never rises.
        total, low, high: see the module's text. Rollouts of equal worth go to the lowest counts.

    Cost: a partition of n x d numbers, where d is a few times the mean count, or the largest count if that is more.
    """
    missing = total - int(low.sum())
    if missing == 0:
        return low.astype(np.int64)
    deepest = int(high.max())
    depth = min(deepest, int(low.max()) + 4 * -(-missing // low.size) + 8)
    while True:
        table = gains(depth)
        place = np.arange(depth)
        free = (place >= low[:, None]) & (place < high[:, None])
        if free.sum() >= missing:
            counts = _best_places(table, free, missing, low)
            if (counts < depth).all() or depth == deepest:
                return counts
        depth = min(deepest, 2 * depth)


def _best_places(table: FloatArray, free: NDArray[np.bool_], missing: int, low: IntArray) -> IntArray:
    worth = table[free]
    price = float(np.partition(worth, worth.size - missing)[worth.size - missing])
    slack = _TIE * abs(price)
    counts = (low + (free & (table > price + slack)).sum(axis=1)).astype(np.int64)
    at_price = (free & (np.abs(table - price) <= slack)).sum(axis=1)
    return level(counts, int(low.sum()) + missing, counts + at_price)
