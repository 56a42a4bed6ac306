r"""Compiled backward induction for the joint problem: one layer of states at a time, block by block.

A block holds the states of one profile of sizes (see `states`). Its sizes are groups m_0 < m_1 < ... with c_g prompts
each; the index of a state within the block is (((r_0) R_1 + r_1) R_2 + r_2) ..., r_g being the rank of the multiset of
classes of group g among its R_g. For every group g in turn, and for every class x in its multiset, an action moves one
prompt from (m_g, x) to size m_g + 1:

    V[state] = max(V[state], q V'[state after a success] + (1 - q) V'[state after a failure] + reward)

    r_g     -> rank without x                 table `members`
    r_{g+1} -> rank with x_up or x_down       table `inserted`; R_{g+1} = 1 where no prompt has size m_g + 1
    digits of larger sizes, the `below` fastest ones, keep their place: the innermost loop walks three arrays in step

No division and no search is left in the loops: a state costs two loads for each of its distinct pairs. Actions are
visited from the last to the first in the order (n, s), and one replaces the choice so far if it is within `tolerance`
of the best so far. What is left at the end is the first action within tolerance of the maximum, whatever the order of
floating point noise; values are always the exact maximum.

Every state is computed by the same operations in the same order, wherever the layer is cut: the tables have the same
bytes for any number of threads. The kernels release the GIL and are called from plain threads (`joint`), so they need
no threading layer, compile faster than with `parallel=True`, and do not meet OpenMP in a forked process.

They are compiled in about four seconds for each dtype, in the process that builds a table and in no other: a table
that is found on disk needs none of them. Numba's own disk cache, which is not safe when many processes compile at
once, is therefore not used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .joint_table import ONLY_SETTLED
from .reductions import SETTLED, PairClasses
from .states import Layout, multiset_counts

FloatLayer = NDArray[Any]  # float32 or float64


class Moves(NamedTuple):
    """What a rollout does to the classes of one size, and the tables that follow it through a multiset's rank.

    Attributes:
        steps (int64, shape (B + 1, W, 2)): class after a success and after a failure, by size and class.
        odds (shape (B + 1, W, 3), dtype of the values): their probabilities, and the reward.
        utility (shape (B + 1, W), dtype of the values): U of each class.
        members (int32, two columns): row `starts[c, 0] + r c + i` has the i-th class of multiset r of c classes, and
            the rank of the multiset without it.
        inserted (int32): `inserted[starts[c, 1] + r starts[c, 2] + x]` is the rank of multiset r of c classes with
            class x added.
        starts (int64, shape (n + 1, 3)): where the tables for c copies begin, and the row length of `inserted`.
    """

    steps: NDArray[np.int64]
    odds: FloatLayer
    utility: FloatLayer
    members: NDArray[np.int32]
    inserted: NDArray[np.int32]
    starts: NDArray[np.int64]


def _multisets(copies: int, width: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """All multisets of `copies` classes out of `width`, sorted, in colexicographic order: one a row."""
    rows = np.empty((1, 0), dtype=np.int64)
    for c in range(1, copies + 1):
        # Those whose largest class is x are the multisets of c - 1 classes 0 .. x, which are a prefix of the list.
        prefix = [rows[: counts[c - 1, x + 1]] for x in range(width)]
        rows = np.concatenate([np.column_stack([head, np.full(len(head), x)]) for x, head in enumerate(prefix)])
    return rows


def _colex_rank(rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks of sorted multisets, one a row: sum_i C(x_i + i - 1, i)."""
    return counts[np.arange(1, rows.shape[1] + 1), rows].sum(axis=1)


def _copy_tables(copies: int, width: int, counts: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
    """(members, ranks without each, ranks of the multisets of one class fewer with each class added)."""
    rows = _multisets(copies, width, counts)
    removed = np.column_stack([_colex_rank(np.delete(rows, i, axis=1), counts) for i in range(copies)])
    shorter = _multisets(copies - 1, width, counts)
    grown = [np.sort(np.column_stack([shorter, np.full(len(shorter), x)]), axis=1) for x in range(width)]
    inserted = np.column_stack([_colex_rank(row, counts) for row in grown])
    return rows, removed, inserted


def make_moves(layout: Layout, classes: PairClasses, dtype: np.dtype[Any]) -> Moves:
    """The tables for `layout`. c copies of a size m need c m <= B, which keeps them far smaller than a layer."""
    tables = []
    for copies in range(1, layout.num_prompts + 1):
        width = max(1, int(layout.width[: layout.budget // copies + 1].max()))
        tables.append(_copy_tables(copies, width, multiset_counts(layout.num_prompts, width)))
    members, removed, inserted = zip(*tables, strict=True)
    starts = np.zeros((layout.num_prompts + 1, 3), dtype=np.int64)
    starts[2:, 0] = np.cumsum([table.size for table in members[:-1]])
    starts[1:, 1] = np.cumsum([table.size for table in inserted])
    starts[:-1, 2] = [table.shape[1] for table in inserted]
    flat = [np.concatenate([table.ravel() for table in which]) for which in (members, removed, inserted)]
    return Moves(
        steps=np.stack([classes.up, classes.down], axis=-1),
        odds=np.stack([classes.chance_up, classes.chance_down, classes.reward], axis=-1).astype(dtype),
        utility=classes.utility.astype(dtype),
        members=np.column_stack(flat[:2]).astype(np.int32),
        inserted=flat[2].astype(np.int32),
        starts=starts,
    )


# The helpers below take arrays one by one. Taking an array out of a tuple counts a reference to it, atomically, on a
# line of memory that all threads share; so the two kernels do that once, before their loops.


@njit(nogil=True)
def _partial_ranks(partitions, sizes, parts, total, left, lower, upper):  # type: ignore[no-untyped-def]
    """Shares of the profile's rank, so that its successors need not be ranked from scratch.

    `left[i]` is the sum of the parts 0 .. i, `lower[i]` the share of the parts below i, and `upper[i]` what the parts
    above i contribute once a part up to i has grown by one.
    """
    rest = total
    above = 0
    for i in range(parts - 1, -1, -1):
        left[i] = rest
        upper[i] = above
        above += partitions[i + 1, rest + 1, sizes[i]]
        rest -= sizes[i]
    lower[0] = 0
    for i in range(parts - 1):
        lower[i + 1] = lower[i] + partitions[i + 1, left[i], sizes[i]]


@njit(nogil=True)
def _rank_grown(partitions, sizes, i, left, lower, upper):  # type: ignore[no-untyped-def]
    """Rank of the profile whose part i has grown by one."""
    return upper[i] + partitions[i + 1, left[i] + 1, sizes[i] + 1] + lower[i]


@njit(nogil=True)
def _rank_without(partitions, sizes, parts, i, left, lower):  # type: ignore[no-untyped-def]
    """Rank of the profile without part i."""
    rank = lower[i]
    for j in range(i + 1, parts):
        rank += partitions[j, left[j] - sizes[i], sizes[j]]
    return rank


@njit(nogil=True)
def _group_sizes(profiles, block, parts, multisets, width, sizes, group):  # type: ignore[no-untyped-def]
    """Reads the sizes of a block and fills the rows of `group`: size, copies, first position, multisets, stride.

    Returns the numbers of groups and of states.
    """
    count = 0
    for i in range(parts):
        sizes[i] = profiles[block, i]
        if i == 0 or sizes[i] != sizes[i - 1]:
            group[0, count] = sizes[i]
            group[1, count] = 0
            group[2, count] = i
            count += 1
        group[1, count - 1] += 1
    states = 1
    for g in range(count - 1, -1, -1):
        group[3, g] = multisets[group[1, g], width[group[0, g]]]
        group[4, g] = states
        states *= group[3, g]
    return count, states


@njit(nogil=True, inline="always")
def _relax(values, actions, after_up, after_down, q, p, reward, position, tolerance):  # type: ignore[no-untyped-def]
    """One action in neighbouring states: its value from those after a success and a failure, kept where better."""
    for x in range(len(values)):
        value = q * after_up[x] + p * after_down[x] + reward
        best = values[x]
        best = value if value > best else best
        values[x] = best
        if value >= best - tolerance * abs(best):
            actions[x] = position


@njit(nogil=True)
def _act_on_group(  # type: ignore[no-untyped-def]
    multisets, width, steps, odds, members, inserted, starts, group, g, count, base, states, moved, sunk,
    values, actions, shift, after, tolerance,
):  # fmt: skip
    """All actions on the prompts of group `g` in every state of a block that starts at `base`.

    `moved` and `sunk` are the first states of the profiles where one prompt of the group has grown, or has settled.
    """
    size, copies, first, ranks = group[0, g], group[1, g], group[2, g], group[3, g]
    joins = g + 1 < count and group[0, g + 1] == size + 1
    next_copies = group[1, g + 1] if joins else 0
    next_ranks = group[3, g + 1] if joins else 1
    below = group[4, g + 1] if joins else group[4, g]
    next_grown = multisets[next_copies + 1, width[size + 1]]
    fewer = multisets[copies - 1, width[size]]
    first_line, line_length = starts[next_copies, 1], starts[next_copies, 2]
    for outer in range(states // (ranks * group[4, g])):
        for rank in range(ranks):
            row = starts[copies, 0] + rank * copies
            source = base + (outer * ranks + rank) * group[4, g]
            for i in range(copies - 1, -1, -1):
                x = members[row + i, 0]
                if i > 0 and members[row + i - 1, 0] == x:
                    continue
                rest = outer * fewer + members[row + i, 1]
                up, down = steps[size, x, 0], steps[size, x, 1]
                q, p, reward = odds[size, x, 0], odds[size, x, 1], odds[size, x, 2]
                for r in range(next_ranks):
                    here = source + r * below
                    line = first_line + r * line_length
                    to_up = sunk + (rest * next_ranks + r) * below
                    to_down = to_up
                    if up != SETTLED:
                        to_up = moved + (rest * next_grown + inserted[line + up]) * below
                    if down != SETTLED:
                        to_down = moved + (rest * next_grown + inserted[line + down]) * below
                    if below == 1:  # spares every other call the set-up of a vectorised loop
                        value = q * after[to_up] + p * after[to_down] + reward
                        best = values[here]
                        best = value if value > best else best
                        values[here] = best
                        if value >= best - tolerance * abs(best):
                            actions[here + shift] = first + i
                        continue
                    _relax(
                        values[here : here + below],
                        actions[here + shift : here + shift + below],
                        after[to_up : to_up + below],
                        after[to_down : to_down + below],
                        q, p, reward, first + i, tolerance,
                    )  # fmt: skip


@njit(nogil=True)
def _start_block(values, actions, after, base, shift, states, waste):  # type: ignore[no-untyped-def]
    """Values before any action: those of spending on a settled prompt where that can be done (waste >= 0)."""
    for x in range(states):
        values[base + x] = after[waste + x] if waste >= 0 else -np.inf
        actions[base + shift + x] = ONLY_SETTLED


@njit(nogil=True)
def _mark_settled_ties(values, actions, after, base, shift, states, waste, tolerance):  # type: ignore[no-untyped-def]
    """Where a settled prompt is as good as the action chosen, store ~action: the order (n, s) decides on use."""
    for x in range(states):
        best = values[base + x]
        if actions[base + shift + x] >= 0 and after[waste + x] >= best - tolerance * abs(best):
            actions[base + shift + x] = ~actions[base + shift + x]


@njit(nogil=True)
def _lack(sizes, parts, low):  # type: ignore[no-untyped-def]
    """Rollouts that the unsettled prompts need to come to the minimum."""
    lack = 0
    for i in range(parts):
        lack += max(0, low - sizes[i])
    return lack


@njit(nogil=True)
def solve_blocks(layout, moves, t, begin, end, values, after, actions, shift, tolerance):  # type: ignore[no-untyped-def]
    """Values and actions of the blocks begin .. end - 1 of layer t, from those `after` it in layer t + 1.

    `values` and `after` are whole layers; the actions of layer t start at `shift` in `actions` (int8): a position in
    the state's order of pairs, ~position where a settled prompt does as well, or `ONLY_SETTLED`. States without any
    action within the bounds cannot be reached; they get -inf.
    """
    n, low, high, min_settled = layout.num_prompts, layout.min_rollouts, layout.max_rollouts, layout.min_settled
    partitions, multisets, width, profiles = layout.partitions, layout.multisets, layout.width, layout.sizes
    first_block, start, block_size = layout.first_block, layout.start, layout.block_size
    block_parts, block_total = layout.block_parts, layout.block_total
    steps, odds, members, inserted, starts = moves.steps, moves.odds, moves.members, moves.inserted, moves.starts
    full_base, full_after = layout.full_base[t], layout.full_base[t + 1]
    scratch = np.zeros((4, n), dtype=np.int64)
    sizes, sums, lower, upper = scratch[0], scratch[1], scratch[2], scratch[3]
    group = np.zeros((5, n), dtype=np.int64)
    left = layout.budget - t - 1
    for block in range(begin, end):
        if block_size[block] == 0:
            continue
        parts, total = np.int64(block_parts[block]), np.int64(block_total[block])
        count, states = _group_sizes(profiles, block, parts, multisets, width, sizes, group)
        _partial_ranks(partitions, sizes, parts, total, sums, lower, upper)
        base = start[block] + (full_base if parts == n else 0)
        lack = _lack(sizes, parts, low)
        room = (n - parts) * high - (t - total)
        waste = base if room > 0 and lack <= left else np.int64(-1)
        _start_block(values, actions, after, base, shift, states, waste)
        for g in range(count - 1, -1, -1):
            size = group[0, g]
            if size >= high or lack - (size < low) > left:
                continue
            last = group[2, g] + group[1, g] - 1
            rank = _rank_grown(partitions, sizes, last, sums, lower, upper)
            moved = start[first_block[parts, total + 1] + rank] + (full_after if parts == n else 0)
            sunk = np.int64(0)
            if size + 1 >= min_settled:
                rank = _rank_without(partitions, sizes, parts, last, sums, lower)
                sunk = start[first_block[parts - 1, total - size] + rank]
            _act_on_group(
                multisets, width, steps, odds, members, inserted, starts, group, g, count, base, states, moved, sunk,
                values, actions, shift, after, tolerance,
            )  # fmt: skip
        if waste >= 0:
            _mark_settled_ties(values, actions, after, base, shift, states, waste, tolerance)


@njit(nogil=True)
def last_blocks(layout, moves, begin, end, values):  # type: ignore[no-untyped-def]
    """Values of blocks of the last layer: the summed utility of the unsettled pairs."""
    n = layout.num_prompts
    multisets, width, profiles, block_size = layout.multisets, layout.width, layout.sizes, layout.block_size
    block_parts, start, members, starts, utility = (
        layout.block_parts, layout.start, moves.members, moves.starts, moves.utility
    )  # fmt: skip
    full_base = layout.full_base[layout.budget]
    sizes, group = np.zeros(n, np.int64), np.zeros((5, n), dtype=np.int64)
    for block in range(begin, end):
        if block_size[block] == 0:
            continue
        parts = np.int64(block_parts[block])
        count, states = _group_sizes(profiles, block, parts, multisets, width, sizes, group)
        base = start[block] + (full_base if parts == n else 0)
        values[base : base + states] = 0
        for g in range(count):
            size, copies, ranks, below = group[0, g], group[1, g], group[3, g], group[4, g]
            for outer in range(states // below):
                row = starts[copies, 0] + (outer % ranks) * copies
                worth = utility[0, 0] * 0
                for i in range(copies):
                    worth += utility[size, members[row + i, 0]]
                for x in range(base + outer * below, base + (outer + 1) * below):
                    values[x] += worth
