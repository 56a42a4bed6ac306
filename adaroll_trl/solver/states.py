r"""States of the joint problem as integers: ranking and unranking multisets of (s, f) pairs, layer by layer.

Prompts are exchangeable, so with t rollouts spent a state is a multiset of n pairs (s_i, f_i) whose sizes
m_i = s_i + f_i sum to t. The number of states of layer t is the coefficient of x^t y^n in prod_m (1 - x^m y)^-(m + 1):
for 4 prompts and t <= 32 there are 3,410,459, for 8 prompts 142,402,919.

The rank of a state has two levels.

1. *Profile.* The sizes alone are a partition of t into at most n parts. Partitions are ranked in lexicographic order
   of their decreasing parts: the part y with p parts left and a total of T left contributes the number of partitions
   of T into p parts that are all smaller than y,

       N[p, T, y] = N[p, T, y - 1] + N[p - 1, T - y + 1, y].

   This is a combinatorial number system with a constraint on the sum. `start` holds the first state of each profile.

2. *Successes.* Within a profile, the c prompts of one size m form a multiset of c classes out of w(m) (the m + 1
   success counts, or fewer under `reductions`). Sorted x_1 <= ... <= x_c it has colexicographic rank
   sum_i C(x_i + i - 1, i), the usual combinatorial number system, in 0 .. C(w + c - 1, c) - 1. The ranks of a
   profile's sizes are the digits of a mixed radix number, the largest size being the fastest digit.

An action turns one prompt of size m into one of size m + 1, so all states of a profile that act on that size go to ONE
other profile, only the digits of m and m + 1 change, and the digits of the larger sizes keep their place and stride:
successors are found with two small table lookups and then run through memory in step (`joint_kernels`).

Settled prompts (`reductions`) are not part of the state: layer t then also holds profiles of k < n parts with a
total of at most t - (smallest settled size). Those come first in a layer, at the same place in each, and the profiles
of all n prompts behind them.

Bounds on a prompt's rollouts depend on the sizes alone, so profiles that cannot occur have no states at all: parts
above the maximum, or a lack of sum_i max(0, min - m_i) larger than the rollouts left. References: Knuth, TAOCP 4A,
7.2.1.3 (combinations) and 7.2.1.4 (partitions).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reductions import SETTLED, PairClasses

_OUT_OF_REACH = 2**62  # stands for counts that no table of this size ever reads
Pair = tuple[int, int]


def count_multisets(width: NDArray[np.int64], num_prompts: int) -> NDArray[np.float64]:
    """States by number of prompts and total size: float64 of shape (num_prompts + 1, budget + 1).

    Entry [k, T] counts multisets of k classes with sizes that sum to T, when `width[m]` classes have size m. Exact
    below 2^53. Multiplies out the generating function in O(n B^2 log B) operations, without enumerating anything.
    """
    budget = len(width) - 1
    counts = np.zeros((num_prompts + 1, budget + 1))
    counts[0, 0] = 1.0
    for size in range(budget + 1):
        new = counts.copy()
        most = num_prompts if size == 0 else min(num_prompts, budget // size)
        for copies in range(1, most + 1):
            ways = float(comb(int(width[size]) + copies - 1, copies)) if width[size] else 0.0
            new[copies:, copies * size :] += ways * counts[: num_prompts + 1 - copies, : budget + 1 - copies * size]
        counts = new
    return counts


def count_layers(width: NDArray[np.int64], num_prompts: int, min_settled: int) -> NDArray[np.float64]:
    """States of each layer t = 0 .. budget, before bounds take any away: float64 of shape (budget + 1,)."""
    counts = count_multisets(width, num_prompts)
    layers = counts[num_prompts].copy()
    shared = counts[:num_prompts].sum(axis=0).cumsum()
    if min_settled < len(width):
        layers[min_settled:] += shared[: len(width) - min_settled]
    return layers


def count_profiles(width: NDArray[np.int64], num_prompts: int, min_settled: int) -> NDArray[np.float64]:
    """Profiles that a layout for each budget 0 .. B lists, before bounds: float64 of shape (budget + 1,)."""
    counts = count_multisets(np.ones_like(width), num_prompts)
    profiles = counts[num_prompts].cumsum()
    shared = counts[:num_prompts].sum(axis=0).cumsum()
    if min_settled < len(width):
        profiles[min_settled:] += shared[: len(width) - min_settled]
    return profiles


def partition_counts(num_parts: int, total: int) -> NDArray[np.int64]:
    """N[p, T, y], the partitions of T into p parts of 0 .. y - 1 each; shape (num_parts + 1, total + 1, total + 2)."""
    counts = np.zeros((num_parts + 1, total + 1, total + 2), dtype=np.int64)
    counts[0, 0] = 1
    for parts in range(1, num_parts + 1):
        for limit in range(1, total + 2):
            counts[parts, :, limit] = counts[parts, :, limit - 1]
            counts[parts, limit - 1 :, limit] += counts[parts - 1, : total + 2 - limit, limit]
    return counts


def partitions_in_order(counts: NDArray[np.int64]) -> list[list[NDArray[np.int16]]]:
    """[p][T]: every partition of T into p parts, ascending parts in a row, in the order of their ranks."""
    num_parts, budget = counts.shape[0] - 1, counts.shape[1] - 1
    empty = np.empty((0, 0), dtype=np.int16)
    lists = [[np.empty((1, 0), dtype=np.int16)] + [empty] * budget]
    for p in range(1, num_parts + 1):
        lists.append([])
        for total in range(budget + 1):
            # With largest part y, the others are a partition of T - y into parts up to y: a prefix of that list.
            number = [int(counts[p - 1, total - y, y + 1]) for y in range(total + 1)]
            rows = np.empty((sum(number), p), dtype=np.int16)
            rows[:, -1] = np.repeat(np.arange(total + 1), number)
            if p > 1:
                rows[:, :-1] = np.concatenate([lists[p - 1][total - y][:k] for y, k in enumerate(number)])
            lists[p].append(rows)
    return lists


def multiset_counts(num_items: int, width: int) -> NDArray[np.int64]:
    """C(w + c - 1, c), the multisets of c classes out of w, at [c, w]; shape (num_items + 1, width + 1)."""
    rows = [
        [min(comb(w + c - 1, c), _OUT_OF_REACH) if w else int(c == 0) for w in range(width + 1)]
        for c in range(num_items + 1)
    ]
    return np.array(rows, dtype=np.int64)


class Layout(NamedTuple):
    """The arrays that map a state to its rank, in the form that compiled kernels take. Blocks are profiles.

    Attributes:
        num_prompts, budget, min_rollouts, max_rollouts, min_settled (int): the problem.
        partitions (int64): N of `partition_counts`.
        multisets (int64): C of `multiset_counts`.
        width (int64, shape (B + 1,)): classes of each size.
        first_block (int64, shape (n + 1, B + 1)): first block with k parts and total T, -1 where there is none.
        block_parts, block_total (int16): k and T of each block.
        sizes (int16, shape (blocks, n)): the k sizes of each block, ascending, then -1.
        start (int64): first state of each block; for k = n counted from `full_base` of its layer.
        block_size (int64): number of states of each block.
        full_base (int64, shape (B + 1,)): states with settled prompts in layer t, which come first.
        shared_blocks (int64, shape (B + 1,)): and the number of their blocks.
    """

    num_prompts: int
    budget: int
    min_rollouts: int
    max_rollouts: int
    min_settled: int
    partitions: NDArray[np.int64]
    multisets: NDArray[np.int64]
    width: NDArray[np.int64]
    first_block: NDArray[np.int64]
    block_parts: NDArray[np.int16]
    block_total: NDArray[np.int16]
    sizes: NDArray[np.int16]
    start: NDArray[np.int64]
    block_size: NDArray[np.int64]
    full_base: NDArray[np.int64]
    shared_blocks: NDArray[np.int64]


def _segments(num_prompts: int, budget: int, min_settled: int) -> list[tuple[int, int]]:
    """(k, T) in the order of their blocks: with settled prompts by total, then all prompts by total."""
    shared = [(k, total) for total in range(budget - min_settled + 1) for k in range(num_prompts)]
    return shared + [(num_prompts, total) for total in range(budget + 1)]


def _profiles(layout: Layout, segments: list[tuple[int, int]]) -> NDArray[np.int16]:
    """Sizes of every block, ascending and filled up with -1: shape (blocks, n)."""
    lists = partitions_in_order(layout.partitions)
    sizes = np.full((len(layout.block_parts), layout.num_prompts), -1, dtype=np.int16)
    for k, total in segments:
        first, rows = layout.first_block[k, total], lists[k][total]
        sizes[first : first + len(rows), :k] = rows
    return sizes


def _block_sizes(layout: Layout, sizes: NDArray[np.int16]) -> NDArray[np.int64]:
    """States of every block: the product of its multisets, or none where bounds rule the profile out."""
    count = np.ones(len(sizes), dtype=np.int64)
    run = np.zeros(len(sizes), dtype=np.int64)
    for column in range(layout.num_prompts):
        size = sizes[:, column].astype(np.int64)
        inside = size >= 0
        run = np.where(inside & (column > 0) & (size == sizes[:, column - 1]), run + 1, 1)
        last = inside & (np.append(sizes[:, column + 1 :], np.full((len(sizes), 1), -1), axis=1)[:, 0] != size)
        count[last] *= layout.multisets[run[last], layout.width[size[last]]]
    lack = np.where(sizes >= 0, np.maximum(layout.min_rollouts - sizes, 0), 0).sum(axis=1)
    impossible = (layout.block_parts == layout.num_prompts) & (lack > layout.budget - layout.block_total)
    impossible |= sizes.max(axis=1) > layout.max_rollouts
    count[impossible] = 0
    return count


def make_layout(
    num_prompts: int, budget: int, width: NDArray[np.int64], min_settled: int, min_rollouts: int, max_rollouts: int
) -> Layout:
    """Lays out all layers: O(n) numpy passes over the profiles, of which there are far fewer than plain states."""
    partitions = partition_counts(num_prompts, budget)
    segments = _segments(num_prompts, budget, min_settled)
    lengths = np.array([partitions[k, total, -1] for k, total in segments], dtype=np.int64)
    firsts = np.concatenate([[0], np.cumsum(lengths)])
    first_block = np.full((num_prompts + 1, budget + 1), -1, dtype=np.int64)
    for (k, total), first in zip(segments, firsts[:-1], strict=True):
        first_block[k, total] = first
    layout = Layout(
        num_prompts=num_prompts,
        budget=budget,
        min_rollouts=min_rollouts,
        max_rollouts=max_rollouts,
        min_settled=min_settled,
        partitions=partitions,
        multisets=multiset_counts(num_prompts, int(width.max())),
        width=width,
        first_block=first_block,
        block_parts=np.repeat(np.array([k for k, _ in segments], dtype=np.int16), lengths),
        block_total=np.repeat(np.array([total for _, total in segments], dtype=np.int16), lengths),
        sizes=np.empty((0, num_prompts), dtype=np.int16),
        start=np.empty(0, dtype=np.int64),
        block_size=np.empty(0, dtype=np.int64),
        full_base=np.zeros(budget + 1, dtype=np.int64),
        shared_blocks=np.zeros(budget + 1, dtype=np.int64),
    )
    return _place_blocks(layout._replace(sizes=_profiles(layout, segments)))


def _place_blocks(layout: Layout) -> Layout:
    """Fills in where each block starts: shared blocks once for all layers, full ones from 0 within their layer."""
    block_size = _block_sizes(layout, layout.sizes)
    ends = np.cumsum(block_size)
    start = ends - block_size
    n, budget = layout.num_prompts, layout.budget
    full_first = layout.first_block[n]
    is_full = layout.block_parts == n
    start[is_full] -= start[full_first][layout.block_total[is_full]]
    full_base, shared_blocks = layout.full_base.copy(), layout.shared_blocks.copy()
    for t in range(layout.min_settled, budget + 1):
        # Totals up to t - min_settled: they end where the next total, or the first full profile, begins.
        following = t - layout.min_settled + 1
        end = layout.first_block[0, following] if t < budget else full_first[0]
        shared_blocks[t] = end
        full_base[t] = ends[end - 1]
    return layout._replace(start=start, block_size=block_size, full_base=full_base, shared_blocks=shared_blocks)


@dataclass(frozen=True)
class StateSpace:
    """All layers of states of `num_prompts` prompts: counts, ranks, and states from ranks.

    Args:
        layout (`Layout`): see there; `StateSpace.build` makes it.
        class_of (int16, shape (B + 1, B + 1)): class of each pair (`reductions.PairClasses`).
    """

    layout: Layout
    class_of: NDArray[np.int16]

    @classmethod
    def build(cls, num_prompts: int, classes: PairClasses, min_rollouts: int, max_rollouts: int) -> StateSpace:
        """The state space of a budget of `len(classes.width) - 1` rollouts."""
        widths = classes.width, classes.min_settled
        return cls.of_widths(num_prompts, *widths, min_rollouts, max_rollouts, classes.class_of)

    @classmethod
    def of_widths(
        cls,
        num_prompts: int,
        width: NDArray[np.int64],
        min_settled: int,
        min_rollouts: int,
        max_rollouts: int,
        class_of: NDArray[np.int16],
    ) -> StateSpace:
        """The same, from the three fields of `PairClasses` that a table on disk keeps."""
        return cls(make_layout(num_prompts, len(width) - 1, width, min_settled, min_rollouts, max_rollouts), class_of)

    def layer_sizes(self) -> NDArray[np.int64]:
        """States of each layer t = 0 .. budget: int64 of shape (budget + 1,)."""
        layout = self.layout
        full = layout.block_parts == layout.num_prompts
        counts = np.zeros(layout.budget + 1, dtype=np.int64)
        np.add.at(counts, layout.block_total[full], layout.block_size[full])
        return counts + layout.full_base

    def ranges(self, t: int) -> list[tuple[int, int]]:
        """Blocks of layer t, as one or two half-open ranges in the order of their states."""
        layout = self.layout
        first = int(layout.first_block[layout.num_prompts, t])
        full = (first, first + int(layout.partitions[layout.num_prompts, t, -1]))
        return [(0, int(layout.shared_blocks[t])), full] if layout.shared_blocks[t] else [full]

    def order(self, successes: NDArray[np.int64], failures: NDArray[np.int64]) -> NDArray[np.intp]:
        """Prompts in the order of a state: unsettled before settled, by size, by class, by successes, by number.

        Both arguments are int arrays of shape (..., n); so is the result.
        """
        size = successes + failures
        label = self.class_of[successes, failures]
        return np.lexsort((successes, label, size, label == SETTLED), axis=-1)

    def rank(self, successes: NDArray[np.int64], failures: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ranks within their layers of states given as int arrays of shape (..., n), prompts in any order.

        The caller sees to it that the states lie within budget and bounds. O(n) numpy passes over all states at once.
        """
        layout = self.layout
        order = self.order(successes, failures)
        size = np.take_along_axis(successes + failures, order, axis=-1)
        label = np.take_along_axis(self.class_of[successes, failures], order, axis=-1).astype(np.int64)
        inside = label != SETTLED
        parts = inside.sum(axis=-1)
        size = np.where(inside, size, 0)
        total = size.sum(axis=-1)
        block = layout.first_block[parts, total] + self._profile_rank(size, inside, total)
        full = np.where(parts == layout.num_prompts, layout.full_base[total], 0)
        return full + layout.start[block] + self._digits(size, np.where(inside, label, 0), inside)

    def _profile_rank(
        self, size: NDArray[np.int64], inside: NDArray[np.bool_], total: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        rank = np.zeros_like(total)
        left = total.copy()
        for column in range(self.layout.num_prompts - 1, -1, -1):
            part = size[..., column]
            smaller = self.layout.partitions[column + 1, left, part]
            rank += np.where(inside[..., column], smaller, 0)
            left -= part
        return rank

    def _digits(
        self, size: NDArray[np.int64], label: NDArray[np.int64], inside: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        layout = self.layout
        value = np.zeros(size.shape[:-1], dtype=np.int64)
        copies = np.zeros_like(value)
        digit = np.zeros_like(value)
        for column in range(layout.num_prompts):
            here, m = inside[..., column], size[..., column]
            again = here & (copies > 0) & (m == size[..., column - 1])
            copies = np.where(again, copies + 1, 1)
            digit = np.where(again, digit, 0) + layout.multisets[copies, label[..., column]]
            last = here
            if column + 1 < layout.num_prompts:
                last = here & ~(inside[..., column + 1] & (size[..., column + 1] == m))
            value = np.where(last, value * layout.multisets[copies, layout.width[m]] + digit, value)
        return value

    def unrank(self, t: int, index: int) -> tuple[tuple[int, int], ...]:
        """The (size, class) pairs of state `index` of layer `t`, ascending; settled prompts are left out."""
        layout = self.layout
        shared, full_first = int(layout.full_base[t]), layout.first_block[layout.num_prompts, t]
        if index < shared:
            block = int(np.searchsorted(layout.start[: layout.shared_blocks[t]], index, side="right")) - 1
            digit = index - int(layout.start[block])
        else:
            starts = layout.start[full_first : full_first + layout.partitions[layout.num_prompts, t, -1]]
            block = int(full_first + np.searchsorted(starts, index - shared, side="right")) - 1
            digit = index - shared - int(layout.start[block])
        return self._unrank_digits([m for m in layout.sizes[block].tolist() if m >= 0], digit)

    def _unrank_digits(self, sizes: list[int], digit: int) -> tuple[tuple[int, int], ...]:
        multisets = self.layout.multisets
        groups: list[tuple[int, int]] = []
        for size in sorted(set(sizes), reverse=True):
            copies = sizes.count(size)
            digit, rank = divmod(digit, int(multisets[copies, self.layout.width[size]]))
            for c in range(copies, 0, -1):
                label = int(np.searchsorted(multisets[c], rank, side="right")) - 1
                rank -= int(multisets[c, label])
                groups.append((size, label))
        return tuple(sorted(groups))
