"""The paper's policy to the letter: exact value iteration over small blocks of prompts, played side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product
from math import comb
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..solver.joint import JointTable, solve_joint
from ..solver.round_values import polya_step
from ..solver.store import TableStore
from ..utilities import Utility, UtilityFunction, as_utility
from .base import AllocationState, Allocator

Counts: TypeAlias = tuple[int, ...]

_MOST_SPLITS = 256  # with more ways to split a block's draws, they are chosen one after the other


class AdaRollJointAllocator(Allocator):
    """Value iteration over Beta beliefs (Algorithm 1 of the AdaRoll-GRPO paper, October 2026), in blocks of prompts.

    With a rollout left, V(x) = max over i of E[V(x with one more outcome of prompt i)], where x are all counts of
    successes and failures; with none, V(x) is the sum of U(s, f). Ours, as exact tables for a whole batch do not fit:
    the batch is cut into blocks of `block_size` prompts, in order. A block's table covers its share of the budget.
    After the first `min_rollouts` each, a round gives every block `draws_per_round` rollouts: those with the largest
    expected table value after them, with outcomes in flight integrated out. All blocks play side by side in one
    generation call. It does not stream: it plays the algorithm to the letter, one decision after the outcomes of the
    one before; `adaroll` has a rule for rollouts in flight.

    It needs as many rounds as a block has rollouts to draw, and one prior for all prompts: no carried beliefs
    (`belief_decay` 0) and no `prior_column`.

    Args:
        utility (`str`, callable or `Utility`): what a group's outcomes are worth.
        block_size (`int`): prompts a block; tables grow steeply with it.
        draws_per_round (`int`): rollouts a block gets in a round; 1 is fully sequential.
        table_cache_dir (`str`, *optional*): where tables are kept; None is the user's cache folder.
    """

    name = "adaroll_joint"
    reads_rounds = False
    waits_for = "the outcomes of a block's last draws, since its tables value a block whose outcomes are all known"

    def __init__(
        self,
        utility: str | UtilityFunction | Utility = "mixed",
        block_size: int = 4,
        draws_per_round: int = 1,
        table_cache_dir: str | None = None,
    ) -> None:
        if block_size < 1 or draws_per_round < 1:
            raise ValueError(f"block_size={block_size} and draws_per_round={draws_per_round} must be at least 1.")
        self.utility = as_utility(utility)
        self.block_size = block_size
        self.draws_per_round = draws_per_round
        self.store = TableStore(table_cache_dir)
        self._tables: dict[tuple[int, int, tuple[float, float], int, int | None], _Block] = {}

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        """One round for the minimum, then as many as the blocks need; `rounds` is not used."""
        blocks = -(-num_prompts // self.block_size)
        after_minimum = budget - num_prompts * min_rollouts
        return (1 if min_rollouts else 0) + -(-after_minimum // (blocks * self.draws_per_round)) or 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> NDArray[np.int64]:
        spent = np.asarray(state.rollouts, dtype=np.int64)
        counts = np.maximum(state.min_rollouts - spent, 0)
        blocks = self._blocks(state.num_prompts, int(spent.sum()) + rollouts_left)
        left = np.array([budget - spent[block].sum() - counts[block].sum() for block, budget in blocks])
        draws = np.zeros(len(blocks), dtype=np.int64) if counts.any() else np.minimum(self.draws_per_round, left)
        target = int(counts.sum() + draws.sum())
        target = rollouts_left if rounds_left == 1 else target + -target % state.multiple_of
        for _ in range(target - int(counts.sum() + draws.sum())):
            draws[np.argmax(left - draws)] += 1
        for (block, budget), draw in zip(blocks, draws.tolist(), strict=True):
            if draw:
                counts[block] += self._draw(state, block, budget, counts[block], draw)
        return counts

    def expected_utility(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> float:
        """The tables' value, exact with one draw a round on one process; nan where draws are made in parallel."""
        if self.draws_per_round > 1 or state.multiple_of > 1:
            return float("nan")
        total = 0.0
        for block, budget in self._blocks(state.num_prompts, int(np.asarray(state.rollouts).sum()) + rollouts_left):
            table = self._table(state, block.stop - block.start, budget).table
            total += float(table.expected_value(state.successes[block], state.failures[block]))
        return total

    def _blocks(self, num_prompts: int, total: int) -> list[tuple[slice, int]]:
        """Each block's prompts and its share of the batch's rollouts; what does not divide goes to the first ones."""
        edges = [*range(0, num_prompts, self.block_size), num_prompts]
        shares = [total * edge // num_prompts for edge in edges]
        return [
            (slice(first, end), before - after)
            for (first, end), (after, before) in zip(pairwise(edges), pairwise(shares), strict=True)
        ]

    def _draw(
        self, state: AllocationState, block: slice, budget: int, given: NDArray[np.int64], draws: int
    ) -> NDArray[np.int64]:
        """How a block splits `draws` rollouts over its prompts, on top of `given` ones that are in flight already."""
        spent = np.asarray(state.rollouts)[block]
        room = np.full(given.size, draws)
        if state.max_rollouts is not None:
            room = np.minimum(room, state.max_rollouts - spent - given)
        outcomes = (np.asarray(counts)[block].tolist() for counts in (state.successes, state.failures))
        table = self._table(state, given.size, budget)
        return table.split(*(tuple(int(x) for x in row) for row in (*outcomes, given, room)), draws)

    def _table(self, state: AllocationState, size: int, budget: int) -> _Block:
        alpha, beta = np.asarray(state.prior_alpha), np.asarray(state.prior_beta)
        if (alpha != alpha[0]).any() or (beta != beta[0]).any():
            raise ValueError(
                "allocator 'adaroll_joint' needs one prior for all prompts, but prior_alpha spans "
                f"{alpha.min():g} to {alpha.max():g} and prior_beta {beta.min():g} to {beta.max():g}. Set "
                "belief_decay=0, or use allocator='adaroll', which takes a prior for each prompt."
            )
        bounds = (state.min_rollouts, state.max_rollouts)
        key = (size, budget, (float(alpha[0]), float(beta[0])), *bounds)
        if key not in self._tables:
            table = solve_joint(size, budget, self.utility, key[2], *bounds, keep_values=True, store=self.store)
            self._tables[key] = _Block(table)
        return self._tables[key]


class _Block:
    """Splits of a round's draws over a block, from its exact table; the same question is answered once."""

    def __init__(self, table: JointTable) -> None:
        self.table = table
        self.split = lru_cache(maxsize=65536)(self._split)

    def _split(self, s: Counts, f: Counts, given: Counts, room: Counts, draws: int) -> NDArray[np.int64]:
        """The best split, ties to the pair first in the order (n, s) and then to the lowest number."""
        order = sorted(range(len(s)), key=lambda i: (s[i] + f[i], s[i], i))
        if comb(draws + len(s) - 1, len(s) - 1) <= _MOST_SPLITS:
            return self._best(s, f, given, list(_splits(draws, [room[i] for i in order])), order)
        chosen = np.zeros(len(s), dtype=np.int64)
        for _ in range(draws):
            flight = tuple(int(g + c) for g, c in zip(given, chosen, strict=True))
            open_ = [r - int(c) for r, c in zip(room, chosen, strict=True)]
            chosen += self._best(s, f, flight, list(_splits(1, [open_[i] for i in order])), order)
        return chosen

    def _best(
        self, s: Counts, f: Counts, given: Counts, splits: list[tuple[int, ...]], order: list[int]
    ) -> NDArray[np.int64]:
        best, value = np.zeros(len(s), dtype=np.int64), -np.inf
        for split in splits:
            extra = np.zeros(len(s), dtype=np.int64)
            extra[order] = split
            found = self._value_after(s, f, extra + np.array(given))
            if found > value + 1e-9 * abs(value) or value == -np.inf:
                best, value = extra, found
        return best

    def _value_after(self, s: Counts, f: Counts, draws: NDArray[np.int64]) -> float:
        """Expected table value once these draws have come in: their outcomes are integrated out."""
        a, b = self.table.prior
        pmfs = []
        for i, m in enumerate(draws.tolist()):
            pmf = np.zeros(m + 1)
            pmf[0] = 1.0
            for drawn in range(m):
                polya_step(pmf, drawn, a + s[i], b + f[i])
            pmfs.append(pmf)
        wins = np.array(list(product(*(range(m + 1) for m in draws.tolist()))))
        chance = np.prod([pmf[wins[:, i]] for i, pmf in enumerate(pmfs)], axis=0)
        values = self.table.expected_value(np.array(s) + wins, np.array(f) + draws - wins)
        return float(chance @ np.atleast_1d(values))


def _splits(total: int, room: list[int]) -> Iterator[tuple[int, ...]]:
    """All ways to split `total` within `room`, those that favour the first places first."""
    if len(room) == 1:
        if total <= room[0]:
            yield (total,)
        return
    for first in range(min(total, room[0]), -1, -1):
        for rest in _splits(total - first, room[1:]):
            yield (first, *rest)
