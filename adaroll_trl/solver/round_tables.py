"""Tables behind the rounds planner: W_x^k on a grid of prices, for one prior or a mesh of priors.

A table covers the states with n <= size rollouts. One prior for all prompts gets a table of its own and is exact up to
the price grid. For several (carried beliefs) the continuation W^{k-1} is interpolated, bilinearly in (log2 alpha,
log2 beta), between tables on a mesh of ratio 2; the step at hand always uses the prompt's own prior. Measured loss of
utility with priors between 0.2 and 8: at most 0.4 % for `std_mass`, 0.2 % for `balanced`, none seen for the others
(docs/allocation_quality.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..utilities import Utility
from .index import utility_by_n
from .progress import BuildProgress
from .round_values import fill_level, fill_level_at_price
from .store import Arrays, TableStore
from .threads import run_ranges

# Up to this many distinct priors get tables of their own. More would pay where few priors come back in every batch;
# but carried beliefs bring new ones each time, whose tables cost more than the mesh, which is made once, loses.
EXACT_PRIORS = 1
MESH_LOW, MESH_HIGH = -4, 7  # the mesh spans alpha, beta = 2^-4 .. 2^7; priors outside are moved to its edge
DEEPEST = 12  # with more rounds left, the continuation of this many stands for the rest
_PRICES_EXACT, _PRICES_MESH = 160, 64
_EVERY_NEGATIVE = 4  # prices below 0 matter where a maximum leaves little choice: a coarser grid will do
_EVERY_SIZE_TO = 64
_STORED_FROM = 96  # tables for groups this large take seconds and are kept on disk
_KEPT_PRIORS = 16  # sets of priors whose tables are kept in memory
_WIDTH = MESH_HIGH - MESH_LOW + 1

Priors: TypeAlias = tuple[tuple[float, float], ...]
_T = TypeVar("_T")


def price_grid(utility: Utility, size: int, points: int) -> NDArray[np.float64]:
    """Prices from 'always go on' to 'never go on', ascending, denser towards 0.

    One rollout changes the utility by `most` at the most: above that nothing is worth its price, below minus that all.
    """
    table = utility.table(size)
    inside = np.add.outer(np.arange(size), np.arange(size)) < size
    change = np.maximum(np.abs(np.diff(table, axis=0)[:, :-1]), np.abs(np.diff(table, axis=1)[:-1, :]))
    most = float(change[inside].max()) or 1.0  # of a constant utility: any prices do
    positive = np.geomspace(most * 1e-4, most, points)
    return np.concatenate([-positive[::-_EVERY_NEGATIVE], [0.0], positive])


def round_sizes(size: int) -> NDArray[np.int64]:
    """The m among which later rounds choose: every one up to 64 rollouts a prompt, else every one up to 16 and then
    steps of an eighth, since a round's value is flat around its best m and the work grows with the fourth power."""
    if size <= _EVERY_SIZE_TO:
        return np.arange(1, size + 1)
    steps = np.geomspace(16, size, math.ceil(math.log(size / 16) / math.log(9 / 8)) + 1)
    return np.unique(np.concatenate([np.arange(1, 17), np.round(steps).astype(np.int64)]))


class RoundTables:
    """W^k tables of one utility up to `size` rollouts a prompt, built as they are asked for and kept in memory."""

    def __init__(self, utility: Utility, size: int) -> None:
        self.utility = utility
        self.size = size
        self.by_n = utility_by_n(utility.table(size))
        n, s = np.tril_indices(size + 1)
        self.terminal = np.ascontiguousarray(self.by_n[n, s])[None, None, :]
        self._sizes = round_sizes(size)
        self._grids: dict[Priors, NDArray[np.float64]] = {}
        self._stacks: dict[Priors, list[NDArray[np.float64]]] = {}  # W^0, W^1, ...
        self._mesh_stacks: dict[int, tuple[NDArray[np.float64], dict[int, int]]] = {}

    def _grid(self, priors: Priors) -> NDArray[np.float64]:
        """Prices for the tables of these priors; () is the mesh.

        The prices at which prompts without rollouts start to be worth it are points of the grid: a batch begins with
        all prompts there, so its best price is one of them whenever only part of the batch is to be started, and
        interpolation across that kink would make waiting look better than it is. They are those of every number of
        rounds, so that a decision does not depend on what was asked before.
        """
        if priors not in self._grids:
            grid = price_grid(self.utility, self.size, _PRICES_EXACT if priors else _PRICES_MESH)
            starts = [self._starting_prices(prior, float(grid[0])) for prior in priors]
            self._keep(self._grids, priors, np.unique(np.concatenate([grid, *starts])))
        return self._grids[priors]

    @staticmethod
    def _keep(kept: dict[Priors, _T], priors: Priors, value: _T) -> None:
        """Remember `value`, and forget the oldest of many: carried beliefs bring new priors with every batch."""
        while len(kept) >= _KEPT_PRIORS:
            kept.pop(next(iter(kept)))
        kept[priors] = value

    def _starting_prices(self, prior: tuple[float, float], lowest: float) -> NDArray[np.float64]:
        """The highest prices at which a prompt is worth starting with 1 .. DEEPEST rounds left, ascending."""

        def build() -> Arrays:
            prices = [lowest]
            for rounds in range(1, DEEPEST + 1):
                prices.append(self._starting_price(prior, rounds, prices[-1]))
            return {"prices": np.array(prices[1:])}

        return self._stored(build, "prices", prior)["prices"]

    def _starting_price(self, prior: tuple[float, float], rounds: int, price: float) -> float:
        """The highest price at which a prompt without rollouts is worth starting with this many rounds left.

        Newton's iteration on the value of starting, a convex function of the price, from a lower bound `price`.
        """
        terminal = self.terminal[0, 0]
        for _ in range(60):
            value, time, start_now = terminal, np.zeros(terminal.size), np.array([-np.inf, 1.0])
            for _ in range(rounds):
                value, time, start_now = self._level_at_price(prior, price, value, time)
            step = float((start_now[0] - terminal[0]) / start_now[1])
            if step <= 1e-13 * max(abs(price), 1e-6):
                break
            price += step
        return price

    def _level_at_price(
        self, prior: tuple[float, float], price: float, value: NDArray[np.float64], time: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """One more round at one price, see `fill_level_at_price`."""
        new_value, new_time, start_now = np.empty_like(value), np.empty_like(time), np.array([-np.inf, 1.0])

        def fill(first: int, end: int) -> None:
            a, b = prior
            fill_level_at_price(
                a, b, price, value, time, self.size, self._sizes, first, end, new_value, new_time, start_now
            )

        self._run(fill)
        return new_value, new_time, start_now

    def _run(self, kernel: Callable[[int, int], object]) -> None:
        """Over all states, on several threads where that pays."""
        states = self.terminal.shape[2]
        run_ranges(kernel, states, states if self.size <= 24 else 64)

    def _stack(self, priors: Priors, rounds: int) -> list[NDArray[np.float64]]:
        """W^0 .. W^rounds (or more) of several priors, each of shape (priors, prices, states)."""
        prices = self._grid(priors)
        if priors not in self._stacks:
            shape = (len(priors), prices.size, self.terminal.shape[2])
            self._keep(self._stacks, priors, [np.ascontiguousarray(np.broadcast_to(self.terminal, shape))])
        stack = self._stacks[priors]
        while len(stack) <= rounds:
            levels = [self._next_level(p, prices, w, len(stack)) for p, w in zip(priors, stack[-1], strict=True)]
            stack.append(np.stack(levels))
        return stack

    def _next_level(
        self, prior: tuple[float, float], prices: NDArray[np.float64], previous: NDArray[np.float64], rounds: int
    ) -> NDArray[np.float64]:
        """W^rounds of one prior from W^(rounds - 1), shape (prices, states); large ones are kept on disk."""

        def build() -> Arrays:
            level = np.empty_like(previous)
            label = f"rounds table, groups of up to {self.size}, {rounds} rounds"
            with BuildProgress(label, previous.shape[1]) as progress:

                def fill(first: int, end: int) -> None:
                    fill_level(*prior, prices, previous, self.size, self._sizes, first, end, level)
                    progress.advance(end - first)

                self._run(fill)
            return {"level": level}

        digest = hashlib.sha256(prices.tobytes()).hexdigest()[:24]
        return self._stored(build, "rounds", prior, rounds=rounds, prices=digest)["level"]

    def _stored(self, build: Callable[[], Arrays], solver: str, prior: tuple[float, float], **key: Any) -> Arrays:
        """What `build` returns, from the disk where it takes seconds and the utility has a name of its own."""
        if self.size < _STORED_FROM or not self.utility.persistent:
            return build()
        digest = hashlib.sha256(self.by_n.tobytes()).hexdigest()[:24]
        key = {"solver": solver, "size": self.size, "prior": list(prior), "utility": digest, **key}
        # Copies: the kernels are compiled for arrays that may be written to.
        return {name: np.array(array) for name, array in TableStore().get(key, build).items()}

    def _mesh_stack(self, nodes: NDArray[np.int64], rounds: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """W^rounds of the mesh points that have been needed so far, and the place of each of `nodes` among them."""
        stack, place = self._mesh_stacks.get(rounds, (self.terminal[:0], {}))
        missing = [node for node in nodes.tolist() if node not in place]
        if missing:
            priors = [(2.0 ** (MESH_LOW + node // _WIDTH), 2.0 ** (MESH_LOW + node % _WIDTH)) for node in missing]
            prices = self._grid(())
            if rounds == 0:
                new = [np.broadcast_to(self.terminal[0], (prices.size, self.terminal.shape[2]))] * len(missing)
            else:
                before, where = self._mesh_stack(np.array(missing), rounds - 1)
                new = [self._next_level(p, prices, before[w], rounds) for p, w in zip(priors, where, strict=True)]
            place = place | {node: len(place) + k for k, node in enumerate(missing)}
            stack = np.concatenate([stack, np.stack(new)]) if len(stack) else np.stack(new)
            self._mesh_stacks[rounds] = (stack, place)
        return stack, np.array([place[node] for node in nodes.tolist()], dtype=np.int64)

    def levels(self, prior: tuple[float, float], rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The prices, and W^0 .. W^(rounds - 1) of one prior, shape (rounds, 1, prices, states)."""
        priors = ((float(prior[0]), float(prior[1])),)
        return self._grid(priors), np.stack(self._stack(priors, rounds - 1)[:rounds])

    def continuation(
        self, alpha: NDArray[np.float64], beta: NDArray[np.float64], rounds: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """What the planner needs for prompts with these priors.

        Returns the prices, the tables of shape (tables, prices, states), and for each prompt the tables that stand for
        it and their weights, both of shape (prompts, 1) or (prompts, 4).
        """
        pairs, inverse = np.unique(np.stack([alpha, beta], axis=1), axis=0, return_inverse=True)
        if len(pairs) <= EXACT_PRIORS:
            priors = tuple((float(a), float(b)) for a, b in pairs)
            nodes = inverse.reshape(-1, 1).astype(np.int64)
            return self._grid(priors), self._stack(priors, rounds)[rounds], nodes, np.ones(nodes.shape)
        numbers, weights = _mesh(alpha, beta)
        used, nodes = np.unique(numbers, return_inverse=True)
        stack, place = self._mesh_stack(used, rounds)
        return self._grid(()), stack, place[nodes].reshape(numbers.shape), weights


def _mesh(alpha: NDArray[np.float64], beta: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The four mesh points around each prior and their bilinear weights, both of shape (prompts, 4)."""
    below, part = [], []
    for values in (alpha, beta):
        place = np.clip(np.log2(values) - MESH_LOW, 0.0, _WIDTH - 1.0)
        floor = np.minimum(place.astype(np.int64), _WIDTH - 2)
        below.append(floor)
        part.append(place - floor)
    corners = [(i, j) for i in (0, 1) for j in (0, 1)]
    numbers = np.stack([(below[0] + i) * _WIDTH + below[1] + j for i, j in corners], axis=1)
    weights = np.stack(
        [(part[0] if i else 1.0 - part[0]) * (part[1] if j else 1.0 - part[1]) for i, j in corners], axis=1
    )
    return numbers, weights


@lru_cache(maxsize=32)
def round_tables(utility: Utility, size: int) -> RoundTables:
    """The tables of a utility, shared by all callers in the process."""
    return RoundTables(utility, size)
