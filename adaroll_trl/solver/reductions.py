r"""Which (successes, failures) pairs may stand for one another in the joint problem.

A prompt's pair (s, f) of size m = s + f matters to the rest of the problem only through its future: the chance q of a
success at every later step and the utility U wherever the budget may end. Two reductions follow, both found from the
numbers and not from a utility's name.

*Lumping.* Two pairs of one size are one class if U agrees on them and their next step is alike: the unordered set
{(q, class after a success), (1 - q, class after a failure)} is the same. Computed from the largest size down, this is
the coarsest exact lumping (bisimulation) within sizes. With a prior alpha = beta and a U that is symmetric it is the
swap of s and f, which leaves floor(m / 2) + 1 classes of m + 1 pairs.

*Settling.* A pair is settled if no later outcome changes its utility: U is constant on all futures within the budget,
its size is at least `min_rollouts`, or it stands at `max_rollouts`. A settled prompt leaves the state and pays its
utility at once. The rollouts that settled prompts have used need not be stored: they are t minus the sizes of the
unsettled pairs. Under `mixed` every pair with s, f >= 1 settles. (0, 0) never does.

Both compare floating point numbers exactly: a U that is symmetric only up to rounding loses the reduction, never the
answer. Complexity: O(min(B, max_rollouts)^2) time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SETTLED = -1


@dataclass(frozen=True)
class PairClasses:
    """The classes of pairs, size by size. W is the largest number of classes of one size, B the budget.

    Attributes:
        class_of (int16, shape (B + 1, B + 1)): class of (s, f) within its size; `SETTLED` if settled or out of range.
        width (int64, shape (B + 1,)): number of classes of each size.
        representative (int64, shape (B + 1, W)): successes s of the first pair of the class.
        up, down (int64, shape (B + 1, W)): class of size m + 1 after a success, after a failure, or `SETTLED`.
        chance_up, chance_down (float64, shape (B + 1, W)): probabilities of the two.
        reward (float64, shape (B + 1, W)): utility expected to be paid by settling in the next step.
        utility (float64, shape (B + 1, W)): U of the class.
        min_settled (int): smallest size of a settled pair; B + 1 where nothing settles.
        lumps, settles (bool): which of the two reductions has an effect.
    """

    class_of: NDArray[np.int16]
    width: NDArray[np.int64]
    representative: NDArray[np.int64]
    up: NDArray[np.int64]
    down: NDArray[np.int64]
    chance_up: NDArray[np.float64]
    chance_down: NDArray[np.float64]
    reward: NDArray[np.float64]
    utility: NDArray[np.float64]
    min_settled: int
    lumps: bool
    settles: bool


def _settled_pairs(table: NDArray[np.float64], top: int, min_rollouts: int) -> NDArray[np.bool_]:
    """Mask over (s, f): U is constant on every future of sizes up to `top`, and the minimum is met."""
    constant = np.zeros(table.shape, dtype=np.bool_)
    settled = np.zeros(table.shape, dtype=np.bool_)
    for size in range(top, 0, -1):
        s = np.arange(size + 1)
        f = size - s
        if size == top:
            constant[s, f] = True
        else:
            same = (table[s, f] == table[s + 1, f]) & (table[s, f] == table[s, f + 1])
            constant[s, f] = same & constant[s + 1, f] & constant[s, f + 1]
        settled[s, f] = constant[s, f] & (size >= min_rollouts)
    return settled


def _signature(
    s: int, f: int, table: NDArray[np.float64], class_of: NDArray[np.int16], q: float, p: float
) -> tuple[float, tuple[tuple[float, int, float], ...]]:
    """What tells pairs of one size apart: U and the unordered next step."""
    steps = []
    for chance, (s_next, f_next) in ((q, (s + 1, f)), (p, (s, f + 1))):
        label = int(class_of[s_next, f_next])
        paid = float(table[s_next, f_next]) if label == SETTLED else 0.0
        steps.append((chance, label, paid))
    return float(table[s, f]), tuple(sorted(steps))


def _label_classes(
    table: NDArray[np.float64], top: int, prior: tuple[float, float], settled: NDArray[np.bool_], lump: bool
) -> tuple[NDArray[np.int16], list[list[int]]]:
    """`class_of`, and for each size the successes of the first pair of each class."""
    alpha, beta = prior
    class_of = np.full(table.shape, SETTLED, dtype=np.int16)
    firsts: list[list[int]] = [[] for _ in range(table.shape[0])]
    for size in range(top, -1, -1):
        seen: dict[object, int] = {}
        total = alpha + beta + size
        for s in range(size + 1):
            f = size - s
            if settled[s, f]:
                continue
            key: object = s
            if lump and size == top:
                key = float(table[s, f])
            elif lump:
                key = _signature(s, f, table, class_of, (alpha + s) / total, (beta + f) / total)
            if key not in seen:
                seen[key] = len(seen)
                firsts[size].append(s)
            class_of[s, f] = seen[key]
    return class_of, firsts


def pair_classes(
    table: NDArray[np.float64],
    prior: tuple[float, float],
    min_rollouts: int,
    max_rollouts: int,
    *,
    lump: bool,
    settle: bool,
) -> PairClasses:
    """Classes of the pairs with s + f <= B for the utility `table`, of shape (B + 1, B + 1).

    Args:
        table (float64 array): U(s, f), finite where s + f <= B.
        prior: (alpha, beta) of the Beta belief, both positive.
        min_rollouts, max_rollouts (int): bounds on a prompt's rollouts; use 0 and B for none.
        lump, settle (bool): which reductions to look for. With neither, every pair is a class of its own: s.
    """
    budget = table.shape[0] - 1
    top = min(budget, max_rollouts)
    settled = _settled_pairs(table, top, min_rollouts) if settle else np.zeros(table.shape, dtype=np.bool_)
    class_of, firsts = _label_classes(table, top, prior, settled, lump)
    width = np.array([len(first) for first in firsts], dtype=np.int64)
    shape = (budget + 1, max(1, int(width.max())))
    size = np.repeat(np.arange(budget + 1), width)
    label = np.concatenate([np.arange(w) for w in width])
    s = np.concatenate([np.asarray(first, dtype=np.int64) for first in firsts])
    f = size - s

    def spread(values: NDArray, dtype: type = np.float64) -> NDArray:
        out = np.zeros(shape, dtype=dtype)
        out[size, label] = values
        return out

    # Pairs of size `top` have no successor; their rows are never read, and are clamped to stay inside the arrays.
    s_up, f_up = np.minimum(s + 1, budget), np.minimum(f + 1, budget)
    inner = size < top
    q = (prior[0] + s) / (prior[0] + prior[1] + size)
    p = (prior[1] + f) / (prior[0] + prior[1] + size)
    paid_up = np.where(inner & settled[s_up, f], table[s_up, f], 0.0)
    paid_down = np.where(inner & settled[s, f_up], table[s, f_up], 0.0)
    sizes_settled = np.add(*np.nonzero(settled))
    return PairClasses(
        class_of=class_of,
        width=width,
        representative=spread(s, np.int64),
        up=spread(class_of[s_up, f], np.int64),
        down=spread(class_of[s, f_up], np.int64),
        chance_up=spread(q),
        chance_down=spread(p),
        reward=spread(q * paid_up + p * paid_down),
        utility=spread(table[s, f]),
        min_settled=int(sizes_settled.min()) if sizes_settled.size else budget + 1,
        lumps=bool((width[: top + 1] < _pairs_by_size(settled, top)).any()),
        settles=bool(sizes_settled.size),
    )


def _pairs_by_size(settled: NDArray[np.bool_], top: int) -> NDArray[np.int64]:
    """Unsettled pairs of each size up to `top`: what `width` would be without lumping."""
    flipped = settled[::-1]
    budget = settled.shape[0] - 1
    return np.array([size + 1 - np.trace(flipped, size - budget) for size in range(top + 1)], dtype=np.int64)
