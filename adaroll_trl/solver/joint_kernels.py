r"""Compiled backward induction for the joint problem: one layer of states at a time, block by block.

A block holds the states of one profile of sizes (see `states`). Its sizes are groups m_0 < m_1 < ... with c_g prompts
each; the index of a state within the block is (((r_0) R_1 + r_1) R_2 + r_2) ..., r_g being the rank of the multiset of
classes of group g among its R_g. For every group g in turn, and for every class x in its multiset, an action moves one
prompt from (m_g, x) to size m_g + 1:

    V[state] = max(V[state], q V'[state after a success] + (1 - q) V'[state after a failure] + reward)

    r_g     -> rank without x                 table `removed`
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

    `member[member_start[c] + r c + i]` is the i-th class of multiset r of c classes, `removed[...]` at the same place
    the rank of the other c - 1, and `inserted[inserted_start[c] + r inserted_width[c] + x]` the rank of multiset r of
    c classes with x added. The float arrays have the dtype of the value layers.
    """

    up: NDArray[np.int64]
    down: NDArray[np.int64]
    chance_up: FloatLayer
    chance_down: FloatLayer
    reward: FloatLayer
    utility: FloatLayer
    member: NDArray[np.int16]
    removed: NDArray[np.int32]
    member_start: NDArray[np.int64]
    inserted: NDArray[np.int32]
    inserted_start: NDArray[np.int64]
    inserted_width: NDArray[np.int64]


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
    return Moves(
        up=classes.up,
        down=classes.down,
        chance_up=classes.chance_up.astype(dtype),
        chance_down=classes.chance_down.astype(dtype),
        reward=classes.reward.astype(dtype),
        utility=classes.utility.astype(dtype),
        member=np.concatenate([table.ravel() for table in members]).astype(np.int16),
        removed=np.concatenate([table.ravel() for table in removed]).astype(np.int32),
        member_start=np.cumsum([0, 0] + [table.size for table in members[:-1]]),
        inserted=np.concatenate([table.ravel() for table in inserted]).astype(np.int32),
        inserted_start=np.cumsum([0] + [table.size for table in inserted[:-1]]),
        inserted_width=np.array([table.shape[1] for table in inserted], dtype=np.int64),
    )


@njit(nogil=True)
def _partial_ranks(layout, sizes, parts, total, left, lower, upper):  # type: ignore[no-untyped-def]
    """Shares of the profile's rank, so that its successors need not be ranked from scratch.

    `left[i]` is the sum of the parts 0 .. i, `lower[i]` the share of the parts below i, and `upper[i]` what the parts
    above i contribute once a part up to i has grown by one.
    """
    rest = total
    above = 0
    for i in range(parts - 1, -1, -1):
        left[i] = rest
        upper[i] = above
        above += layout.partitions[i + 1, rest + 1, sizes[i]]
        rest -= sizes[i]
    lower[0] = 0
    for i in range(parts - 1):
        lower[i + 1] = lower[i] + layout.partitions[i + 1, left[i], sizes[i]]


@njit(nogil=True)
def _first_state(layout, parts, total, rank, t):  # type: ignore[no-untyped-def]
    """First state, in layer t, of profile number `rank` of `parts` parts that sum to `total`."""
    full = layout.full_base[t] if parts == layout.num_prompts else 0
    return full + layout.start[layout.first_block[parts, total] + rank]


@njit(nogil=True)
def _grown(layout, sizes, parts, total, i, left, lower, upper, t):  # type: ignore[no-untyped-def]
    """First state, in layer t, of the profile whose part i has grown by one."""
    rank = upper[i] + layout.partitions[i + 1, left[i] + 1, sizes[i] + 1] + lower[i]
    return _first_state(layout, parts, total + 1, rank, t)


@njit(nogil=True)
def _without(layout, sizes, parts, total, i, left, lower, t):  # type: ignore[no-untyped-def]
    """First state, in layer t, of the profile without part i."""
    rank = lower[i]
    for j in range(i + 1, parts):
        rank += layout.partitions[j, left[j] - sizes[i], sizes[j]]
    return _first_state(layout, parts - 1, total - sizes[i], rank, t)


@njit(nogil=True)
def _read_sizes(layout, block, sizes):  # type: ignore[no-untyped-def]
    """Sizes of `block`, ascending, into `sizes`; returns how many there are."""
    parts = layout.block_parts[block]
    for i in range(parts):
        sizes[i] = layout.sizes[block, i]
    return parts


@njit(nogil=True)
def _group_sizes(layout, sizes, parts, group):  # type: ignore[no-untyped-def]
    """Fills the rows of `group`: size, copies, first position, multisets, stride. Returns (groups, states)."""
    count = 0
    for position in range(parts):
        if position == 0 or sizes[position] != sizes[position - 1]:
            group[0, count] = sizes[position]
            group[1, count] = 0
            group[2, count] = position
            count += 1
        group[1, count - 1] += 1
    states = 1
    for g in range(count - 1, -1, -1):
        group[3, g] = layout.multisets[group[1, g], layout.width[group[0, g]]]
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
def _act_on_group(layout, moves, group, g, count, base, states, moved, sunk, values, actions, shift, after, tolerance):  # type: ignore[no-untyped-def]
    """All actions on the prompts of group `g` in every state of a block that starts at `base`.

    `moved` and `sunk` are the first states of the profiles where one prompt of the group has grown, or has settled.
    """
    size, copies, first, ranks = group[0, g], group[1, g], group[2, g], group[3, g]
    joins = g + 1 < count and group[0, g + 1] == size + 1
    next_copies = group[1, g + 1] if joins else 0
    next_ranks = group[3, g + 1] if joins else 1
    below = group[4, g + 1] if joins else group[4, g]
    next_grown = layout.multisets[next_copies + 1, layout.width[size + 1]]
    fewer = layout.multisets[copies - 1, layout.width[size]]
    member_start, stride = moves.member_start[copies], moves.inserted_width[next_copies]
    inserted_start = moves.inserted_start[next_copies]
    # Taken out of the tuple once: each access in the loops below would count a reference, atomically, on a line of
    # memory that all threads share.
    member, removed, inserted = moves.member, moves.removed, moves.inserted
    step_up, step_down, chance_up = moves.up[size], moves.down[size], moves.chance_up[size]
    chance_down, rewards = moves.chance_down[size], moves.reward[size]
    for outer in range(states // (ranks * group[4, g])):
        for rank in range(ranks):
            row = member_start + rank * copies
            source = base + (outer * ranks + rank) * group[4, g]
            for i in range(copies - 1, -1, -1):
                x = member[row + i]
                if i > 0 and member[row + i - 1] == x:
                    continue
                rest = outer * fewer + removed[row + i]
                up, down = step_up[x], step_down[x]
                q, p, reward = chance_up[x], chance_down[x], rewards[x]
                for r in range(next_ranks):
                    here = source + r * below
                    line = inserted_start + r * stride
                    to_up = sunk + (rest * next_ranks + r) * below
                    to_down = to_up
                    if up != SETTLED:
                        to_up = moved + (rest * next_grown + inserted[line + up]) * below
                    if down != SETTLED:
                        to_down = moved + (rest * next_grown + inserted[line + down]) * below
                    if below == 1:
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
def solve_blocks(layout, moves, t, first_block, end_block, values, after, actions, shift, tolerance):  # type: ignore[no-untyped-def]
    """Values and actions of the blocks first_block .. end_block - 1 of layer t, from those `after` it in layer t + 1.

    `values` and `after` are whole layers; the actions of layer t start at `shift` in `actions` (int8): a position in
    the state's order of pairs, ~position where a settled prompt does as well, or `ONLY_SETTLED`. States without any
    action within the bounds cannot be reached; they get -inf.
    """
    n = layout.num_prompts
    sizes = np.zeros(n, dtype=np.int64)
    group = np.zeros((5, n + 1), dtype=np.int64)
    left_sums, lower, upper = np.zeros((3, n), dtype=np.int64)
    left = layout.budget - t - 1
    for block in range(first_block, end_block):
        if layout.block_size[block] == 0:
            continue
        parts = _read_sizes(layout, block, sizes)
        total = np.int64(layout.block_total[block])
        count, states = _group_sizes(layout, sizes, parts, group)
        _partial_ranks(layout, sizes, parts, total, left_sums, lower, upper)
        base = layout.start[block] + (layout.full_base[t] if parts == n else 0)
        lack = 0
        for position in range(parts):
            lack += max(0, layout.min_rollouts - sizes[position])
        room = (n - parts) * layout.max_rollouts - (t - total)
        waste = base if room > 0 and lack <= left else np.int64(-1)
        _start_block(values, actions, after, base, shift, states, waste)
        for g in range(count - 1, -1, -1):
            size = group[0, g]
            if size >= layout.max_rollouts or lack - (size < layout.min_rollouts) > left:
                continue
            last = group[2, g] + group[1, g] - 1
            moved = _grown(layout, sizes, parts, total, last, left_sums, lower, upper, t + 1)
            sunk = np.int64(0)
            if size + 1 >= layout.min_settled:
                sunk = _without(layout, sizes, parts, total, last, left_sums, lower, t + 1)
            _act_on_group(
                layout, moves, group, g, count, base, states, moved, sunk, values, actions, shift, after, tolerance
            )  # fmt: skip
        if waste >= 0:
            _mark_settled_ties(values, actions, after, base, shift, states, waste, tolerance)


@njit(nogil=True)
def last_blocks(layout, moves, first_block, end_block, values):  # type: ignore[no-untyped-def]
    """Values of blocks of the last layer: the summed utility of the unsettled pairs."""
    n = layout.num_prompts
    sizes = np.zeros(n, dtype=np.int64)
    group = np.zeros((5, n + 1), dtype=np.int64)
    for block in range(first_block, end_block):
        parts = _read_sizes(layout, block, sizes)
        count, states = _group_sizes(layout, sizes, parts, group)
        base = layout.start[block] + (layout.full_base[layout.budget] if parts == n else 0)
        if layout.block_size[block] == 0:
            continue
        values[base : base + states] = 0
        for g in range(count):
            size, copies, ranks, below = group[0, g], group[1, g], group[3, g], group[4, g]
            for outer in range(states // below):
                row = moves.member_start[copies] + (outer % ranks) * copies
                worth = values[base] * 0
                for i in range(copies):
                    worth += moves.utility[size, moves.member[row + i]]
                for x in range(base + outer * below, base + (outer + 1) * below):
                    values[x] += worth
