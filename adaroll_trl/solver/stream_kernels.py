"""Kernels: the next rollout of a stream, with others in flight.

Notation. C rollouts are in flight at most and R are left to start, the next one included. A prompt with prior Beta(a,
b) is in state (s, n): s successes in n rollouts. m more are pending; of these X ~ BetaBinomial(m, a + s, b + n - s)
will be successes. At a price x of a rollout, with the stopping values of `index`,

    W_x(s, n) = max{ U(s, n),  -x + q W_x(s + 1, n + 1) + (1 - q) W_x(s, n + 1) }
    V(s, n)   = (1 - L) U(s, n) + L W_x(s, n)                    L = R / C - 1/2, rounded to eighths and cut to [0, 1]

U is what a state is worth if nothing more is decided after it, W_x if everything is. The outcome of a rollout that
starts now is known after about C others have started: L goes from 1 to 0 over the last rollouts of a batch, and there
the rule becomes a one-shot plan. What j more rollouts are worth, without waiting for the pending ones:

    Q_x(j) = -x j + E[ V(s + X, n + m + j) ],        X ~ BetaBinomial(m + j, a + s, b + n - s)

The price is the one at which x R + sum_i max_j Q_x(j) is smallest, on a grid. The score of a prompt is the steepest
slope of E[V] over the next rollouts,

    S_x = max over 1 <= j <= DEPTH of (Q_x(j) - Q_x(0)) / j

With L = 1 it is at most 0, and 0 where going on is right whatever the pending ones bring: minus the loss of not having
waited. Among those, what would also be right at a higher price comes first: `TIE_WEIGHT` times the same slope at
the price `TIE_STEP` places up the grid is added. The largest score gets the next rollout. This is ours; the values and
the price are those of Hu and Frazier (2015, arXiv 1512.09204), who decide one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel
from .round_values import polya_step

DEPTH = 8  # rollouts ahead, on top of the pending ones, among which a prompt's best plan is sought
TIE_STEP, TIE_WEIGHT = 8, 0.01
TIE = 1e-9  # scores that differ by less, relative to the price, are equal
LEVELS = 8  # steps of L
LEFT, IN_FLIGHT, MINIMUM, MAXIMUM, PLACE, KEY, CLOCK = range(7)
SUCCESSES, SCORED, PENDING, SPENT, TABLE = range(5)


class Stream(NamedTuple):
    """A batch in flight, as arrays: n prompts, K different priors, P prices of which T have tables at a time.

    Attributes:
        prompts (int array of shape (n, 5)): SUCCESSES, SCORED, PENDING, SPENT (scored, pending or without a reward),
            and the TABLE of its prior.
        numbers (int array of shape (7,)): LEFT, IN_FLIGHT, MINIMUM, MAXIMUM; PLACE of the price in the grid, -1 before
            the first decision; KEY of what `value` and `slope` hold for all prompts; CLOCK that stamps changes.
        priors (float array of shape (K, 2)): alpha and beta.
        prices (float array of shape (P,)): ascending.
        by_n (float array of shape (size + 1, size + 1)): U of n rollouts and s successes.
        slot_of (int array of shape (P,)): where the tables of a price are, or -1.
        price_of (int array of shape (T,)): the price that a slot holds, or -1.
        tables (float array of shape (T, K, states)): W_x.
        changed (int array of shape (n,)): CLOCK at each prompt's last change.
        stamp (int array of shape (T, n)): CLOCK at the change that `value` and `slope` know of.
        value (int array of shape (T, n)): max_j Q_x(j), in units of `unit`: sums do not depend on the order.
        slope (float array of shape (T, n)): S_x.
        unit (float array of shape (1,)).
        pmf (float array of shape (size + 2,)): work space.
    """

    prompts: NDArray[np.int64]
    numbers: NDArray[np.int64]
    priors: NDArray[np.float64]
    prices: NDArray[np.float64]
    by_n: NDArray[np.float64]
    slot_of: NDArray[np.int64]
    price_of: NDArray[np.int64]
    tables: NDArray[np.float64]
    changed: NDArray[np.int64]
    stamp: NDArray[np.int64]
    value: NDArray[np.int64]
    slope: NDArray[np.float64]
    unit: NDArray[np.float64]
    pmf: NDArray[np.float64]


@kernel()
def stopping_values(a: float, b: float, x: float, by_n: NDArray, table: NDArray) -> None:
    """W_x of all states with prior Beta(a, b), by number n (n + 1) / 2 + s."""
    size = by_n.shape[0] - 1
    for n in range(size, -1, -1):
        here, after = n * (n + 1) // 2, (n + 1) * (n + 2) // 2
        for s in range(n + 1):
            table[here + s] = by_n[n, s]
            if n < size:
                q = (a + s) / (a + b + n)
                go = q * table[after + s + 1] + (1.0 - q) * table[after + s] - x
                table[here + s] = max(table[here + s], go)


@kernel()
def _slot(stream: Stream, price: int) -> int:
    """Where the tables of a price are; they are made if need be, in place of those farthest from the current price."""
    if stream.slot_of[price] >= 0:
        return int(stream.slot_of[price])
    slot, farthest = 0, -1
    for k in range(stream.price_of.size):
        if stream.price_of[k] < 0:
            slot = k
            break
        away = abs(stream.price_of[k] - stream.numbers[PLACE])
        if away > farthest:
            slot, farthest = k, away
    if stream.price_of[slot] >= 0:
        stream.slot_of[stream.price_of[slot]] = -1
    stream.price_of[slot], stream.slot_of[price] = price, slot
    stream.stamp[slot, :] = -1
    for k in range(stream.priors.shape[0]):
        table = stream.tables[slot, k]
        stopping_values(stream.priors[k, 0], stream.priors[k, 1], stream.prices[price], stream.by_n, table)
    return slot


@kernel()
def _continuation(stream: Stream, i: int, slot: int, total: int, known: float) -> float:
    """E[V] after `total` rollouts more than those scored, whose successes are distributed as `pmf` says."""
    s, n = stream.prompts[i, SUCCESSES], stream.prompts[i, SCORED] + total
    last, going = stream.by_n[n, s:], stream.tables[slot, stream.prompts[i, TABLE], n * (n + 1) // 2 + s :]
    stop, go = 0.0, 0.0
    for k in range(total + 1):
        stop += stream.pmf[k] * last[k]
        go += stream.pmf[k] * going[k]
    return (1.0 - known) * stop + known * go


@kernel()
def _evaluate(stream: Stream, i: int, slot: int) -> None:
    """`value` and `slope` of a prompt at the price of a slot."""
    x, known = stream.prices[stream.price_of[slot]], (stream.numbers[KEY] // (DEPTH + 1)) / LEVELS
    s, n, pending, spent = stream.prompts[i, :TABLE]
    prior = stream.priors[stream.prompts[i, TABLE]]
    alpha, beta = prior[0] + s, prior[1] + n - s
    stream.pmf[0] = 1.0
    for m in range(pending):
        polya_step(stream.pmf, m, alpha, beta)
    least = max(stream.numbers[MINIMUM] - spent, 0)
    most = min(stream.numbers[MAXIMUM] - spent, stream.numbers[KEY] % (DEPTH + 1))
    start = _continuation(stream, i, slot, pending, known)
    best, slope = start, -np.inf
    for j in range(1, most + 1):
        polya_step(stream.pmf, pending + j - 1, alpha, beta)
        gain = _continuation(stream, i, slot, pending + j, known) - x * j - start
        slope = max(slope, gain / j)
        if start + gain > best or j <= least:
            best = start + gain
    stream.value[slot, i] = np.int64(best / stream.unit[0])
    stream.slope[slot, i] = slope
    stream.stamp[slot, i] = stream.changed[i]


@kernel()
def _look(stream: Stream, price: int) -> int:
    """The slot of a price, with the values of all prompts up to date."""
    slot = _slot(stream, price)
    for i in range(stream.changed.size):
        if stream.stamp[slot, i] != stream.changed[i]:
            _evaluate(stream, i, slot)
    return slot


@kernel()
def _dual(stream: Stream, price: int) -> int:
    """x R + sum_i max_j Q_x(j) in units of `unit`; nothing is as large beyond the ends of the grid."""
    if price < 0 or price >= stream.prices.size:
        return np.iinfo(np.int64).max
    slot = _look(stream, price)
    total = np.int64(stream.prices[price] * stream.numbers[LEFT] / stream.unit[0])
    for i in range(stream.changed.size):
        total += stream.value[slot, i]
    return int(total)


@kernel()
def _seek_price(stream: Stream) -> None:
    """Move PLACE downhill to the smallest dual value: it is convex in the price. The first time in long steps."""
    step = 1
    if stream.numbers[PLACE] < 0:
        stream.numbers[PLACE], step = stream.prices.size // 2, 16
    here = _dual(stream, stream.numbers[PLACE])
    while step > 0:
        place = stream.numbers[PLACE]
        below, above = _dual(stream, place - step), _dual(stream, place + step)
        if below < here and below <= above:
            stream.numbers[PLACE], here = place - step, below
        elif above < here:
            stream.numbers[PLACE], here = place + step, above
        else:
            step //= 4


@kernel()
def _touch_all(stream: Stream) -> None:
    """R has changed: note what that means for the values, if anything."""
    left, in_flight = stream.numbers[LEFT], stream.numbers[IN_FLIGHT]
    level = (2 * LEVELS * left + in_flight) // (2 * in_flight) - LEVELS // 2
    key = min(max(level, 0), LEVELS) * (DEPTH + 1) + min(left, DEPTH)
    if key != stream.numbers[KEY]:
        stream.numbers[KEY] = key
        stream.numbers[CLOCK] += 1
        stream.changed[:] = stream.numbers[CLOCK]


@kernel()
def _comes_first(stream: Stream, i: int, best: int) -> bool:
    """Between equal scores: fewer rollouts, then fewer outcomes, fewer successes, and the smaller prior."""
    mine, other = stream.prompts[i], stream.prompts[best]
    if mine[SPENT] != other[SPENT]:
        return bool(mine[SPENT] < other[SPENT])
    if mine[SCORED] != other[SCORED]:
        return bool(mine[SCORED] < other[SCORED])
    if mine[SUCCESSES] != other[SUCCESSES]:
        return bool(mine[SUCCESSES] < other[SUCCESSES])
    return bool(mine[TABLE] < other[TABLE])


@kernel()
def start_next(stream: Stream) -> int:
    """The prompt of the next rollout, which is pending from now on. Prompts below their minimum come first: what they
    get is spent in any case, and the sooner the outcome is known the better."""
    _touch_all(stream)
    _seek_price(stream)
    place = stream.numbers[PLACE]
    above = min(place + TIE_STEP, stream.prices.size - 1)
    higher = _look(stream, above)
    slot = _look(stream, place)
    margin = TIE * abs(stream.prices[place])
    best, top, due = -1, -np.inf, False
    for i in range(stream.changed.size):
        spent = stream.prompts[i, SPENT]
        if spent >= stream.numbers[MAXIMUM]:
            continue
        owed = spent < stream.numbers[MINIMUM]
        if due and not owed:
            continue
        score = stream.slope[slot, i] + TIE_WEIGHT * stream.slope[higher, i]
        if best < 0 or (owed and not due) or score > top + margin:
            best, top, due = i, score, owed
        elif score >= top - margin and _comes_first(stream, i, best):
            best, top = i, max(score, top)
    stream.numbers[LEFT] -= 1
    stream.prompts[best, PENDING] += 1
    stream.prompts[best, SPENT] += 1
    _touch(stream, best)
    return int(best)


@kernel()
def _touch(stream: Stream, i: int) -> None:
    stream.numbers[CLOCK] += 1
    stream.changed[i] = stream.numbers[CLOCK]


@kernel()
def end_one(stream: Stream, i: int, outcome: int) -> None:
    """A pending rollout of prompt i has ended: 1 is a success, 0 a failure, -1 no reward."""
    stream.prompts[i, PENDING] -= 1
    if outcome >= 0:
        stream.prompts[i, SCORED] += 1
        stream.prompts[i, SUCCESSES] += outcome
    _touch(stream, i)
