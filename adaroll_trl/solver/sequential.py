"""One rollout at a time: the price index, with an exact endgame.

The index is exactly optimal wherever the joint optimum has been computed for `mixed`, and loses at most a few
hundredths of a percent for `variance` and `std`. It treats a prompt as if it could have all rollouts left at one
price, so it errs where few are left and prompts compete for them: the last rollouts are therefore solved exactly, by
enumeration, over the prompts of largest index. With ENDGAME = 6 rollouts and CANDIDATES = 6 prompts that is a table of
18,564 outcomes.

The states of the endgame after t rollouts are the multisets of t of 2 C symbols (success or failure of candidate c).
Their successors do not depend on the batch and are tabulated once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from .compiled import kernel

ENDGAME = 6
CANDIDATES = 6
TIE = 1e-9


@lru_cache(maxsize=1)
def endgame_moves() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Multisets of t = 0 .. ENDGAME symbols, all layers one after the other.

    Returns `first` of shape (ENDGAME + 2,): where each layer starts; `drawn` of shape (states, 2 CANDIDATES): how
    often each symbol was drawn; `after` of shape (states, 2 CANDIDATES): the state after one more symbol.
    """
    symbols = 2 * CANDIDATES
    layers = [list(combinations_with_replacement(range(symbols), t)) for t in range(ENDGAME + 1)]
    first = np.cumsum([0] + [len(layer) for layer in layers])
    number = {state: i for i, state in enumerate(state for layer in layers for state in layer)}
    drawn = np.zeros((len(number), symbols), dtype=np.int64)
    after = np.full((len(number), symbols), -1, dtype=np.int64)
    for state, i in number.items():
        for symbol in state:
            drawn[i, symbol] += 1
        if len(state) < ENDGAME:
            for symbol in range(symbols):
                after[i, symbol] = number[tuple(sorted((*state, symbol)))]
    return first, drawn, after


@kernel()
def endgame_choice(
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    room: NDArray,
    left: int,
    by_n: NDArray,
    first: NDArray,
    drawn: NDArray,
    after: NDArray,
) -> int:
    """The best of up to CANDIDATES prompts for the next of `left` <= ENDGAME rollouts, all theirs.

    `room` holds how many more each may get; they must have room for `left` together. Ties go to the lowest number.
    """
    value = np.empty(drawn.shape[0])
    choice = -1
    for t in range(left, -1, -1):
        for i in range(first[t], first[t + 1]):
            if drawn[i, 2 * s.size :].sum() > 0:  # a candidate that is not there
                continue
            if t == left:
                value[i] = _outcome(s, n, room, by_n, drawn[i])
                continue
            top, choice = -np.inf, -1
            for c in range(s.size):
                wins, losses = drawn[i, 2 * c], drawn[i, 2 * c + 1]
                if wins + losses < room[c]:
                    q = (a[c] + s[c] + wins) / (a[c] + b[c] + n[c] + wins + losses)
                    go = q * value[after[i, 2 * c]] + (1.0 - q) * value[after[i, 2 * c + 1]]
                    if choice < 0 or go > top + TIE * abs(top):
                        top, choice = go, c
            value[i] = top
    return choice


@kernel()
def _outcome(s: NDArray, n: NDArray, room: NDArray, by_n: NDArray, drawn: NDArray) -> float:
    total = 0.0
    for c in range(s.size):
        wins, losses = drawn[2 * c], drawn[2 * c + 1]
        if wins + losses > room[c]:
            return -np.inf
        total += by_n[n[c] + wins + losses, s[c] + wins]
    return total


@kernel()
def index_leaders(index: NDArray, s: NDArray, n: NDArray, how_many: int) -> NDArray:
    """The prompts of largest index, best first. Near ties go to the first state in the order (n, s), then the lowest
    number; an index of -inf marks a prompt that may not have more."""
    leaders = np.empty(min(how_many, index.size), dtype=np.int64)
    taken = np.isneginf(index)
    for place in range(leaders.size):
        best = -1
        for i in range(index.size):
            if taken[i]:
                continue
            margin = TIE * abs(index[best]) if best >= 0 else 0.0
            ahead = best < 0 or index[i] > index[best] + margin
            level = best >= 0 and not ahead and index[i] >= index[best] - margin
            if ahead or (level and (n[i] < n[best] or (n[i] == n[best] and s[i] < s[best]))):
                best = i
        if best < 0:
            return leaders[:place]
        leaders[place] = best
        taken[best] = True
    return leaders


@kernel()
def choose(
    index: NDArray,
    s: NDArray,
    n: NDArray,
    a: NDArray,
    b: NDArray,
    room: NDArray,
    left: int,
    by_n: NDArray,
    first: NDArray,
    drawn: NDArray,
    after: NDArray,
) -> int:
    """The prompt that gets the next of `left` rollouts, given each prompt's index."""
    if left > ENDGAME:
        return index_leaders(index, s, n, 1)[0]
    c = index_leaders(index, s, n, CANDIDATES)
    return c[endgame_choice(s[c], n[c], a[c], b[c], room[c], left, by_n, first, drawn, after)]
