r"""The joint problem solved exactly: which prompt of a batch gets the next rollout, by value iteration.

Prompt i of n succeeds with unknown probability p_i ~ Beta(a, b). With t of B rollouts spent the state is the multiset
of the pairs (s_i, f_i), an action is the prompt that gets the next rollout, and q = (a + s) / (a + b + s + f) is the
chance that it succeeds. From the last rollout back,

    V_B(s, f)      = sum_i U(s_i, f_i)
    Q_t((s, f), j) = q_j V_{t+1}(s + e_j, f) + (1 - q_j) V_{t+1}(s, f + e_j)
    V_t            = max_j Q_t

over the prompts j that the bounds admit: n_j < max_rollouts, and the rollouts left after this one still suffice to
bring every prompt to min_rollouts. Spending is compulsory. Ties go to the pair first in the order (s + f, s), among
prompts in one state to the lowest number, with a relative tolerance of 1e-9 in float64 and 1e-6 in float32.

This is the scheme of Algorithm 1 of "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training"
(AdaRoll-GRPO, October 2026). The paper's utilities and code are not public: the utilities, the use of exchangeability,
the ranking (`states`), the reductions (`reductions`) and the kernels (`joint_kernels`) are this project's own.

Complexity: at most n actions for each of the states that `states.count_layers` counts; one byte a state is kept, and
two layers of values while solving. Tables for 8 prompts and 32 rollouts (142 million states without reductions) are
within reach of a laptop; 8 prompts and 64 rollouts (9e11) are not, and are refused with the numbers.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .index import check_prior, whole_number
from .joint_kernels import last_blocks, make_moves, solve_blocks
from .joint_table import TIE_TOLERANCE, JointSpec, JointTable
from .memory import available_bytes, format_bytes
from .progress import BuildProgress
from .reductions import PairClasses, pair_classes
from .states import StateSpace, count_layers, count_profiles
from .store import Arrays, TableStore

__all__ = ["JointTable", "solve_joint"]

_BYTES_A_PAIR = 64  # of the utility and of `PairClasses`
_STATES_A_TASK = 40_000  # below this, handing work to another thread costs more than it saves
_TASKS_A_LAYER = 64  # enough to keep all threads busy to the end of a layer


def solve_joint(
    num_prompts: int,
    budget: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior: tuple[float, float] = (1.0, 1.0),
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    dtype: str = "float64",
    reductions: str = "auto",
    *,
    keep_values: bool = False,
    store: TableStore | None = None,
    progress: bool | None = None,
) -> JointTable:
    """Solves the joint problem of a batch exactly.

    Args:
        num_prompts (`int`): prompts of a batch, 1 to 127.
        budget (`int`): rollouts of a batch, in all.
        utility (`str`, callable or `Utility`): what a prompt's outcomes are worth in the end (`utilities`).
        prior (pair of positive `float`): alpha and beta of every prompt's Beta belief.
        min_rollouts, max_rollouts (`int`, *optional*): bounds on the rollouts of each prompt.
        dtype (`str`): `float64` or `float32` for the values. float32 halves their memory; the value is then right to
            about six digits.
        reductions (`str`): `auto` solves an equivalent smaller problem where there is one, `none` the plain one.
        keep_values (`bool`): keep the values of all states, for `JointTable.expected_value`: 8 (or 4) more bytes a
            state.
        store (`TableStore`, *optional*): looks the table up there first and keeps it there. Utilities that are not
            `persistent` are solved in memory.
        progress (`bool`, *optional*): show a bar for builds over two seconds. None: if stderr is a terminal.

    Returns:
        `JointTable`.

    Raises:
        ValueError: if an argument is out of range, or the bounds cannot be met with the budget.
        MemoryError: if the table cannot fit in memory, before anything is allocated.

    >>> table = solve_joint(2, 4, "mixed")
    >>> round(table.value, 10)
    0.7111111111
    >>> table.next_prompt(successes=[0, 1], failures=[0, 1])
    0
    """
    resolved = as_utility(utility)
    spec = JointSpec(
        num_prompts=whole_number("num_prompts", num_prompts, 1),
        budget=whole_number("budget", budget, 0),
        utility=resolved.key,
        prior=check_prior(prior),
        min_rollouts=whole_number("min_rollouts", min_rollouts, 0),
        max_rollouts=None if max_rollouts is None else whole_number("max_rollouts", max_rollouts, 0),
        dtype=dtype,
        reductions=reductions,
        keep_values=bool(keep_values),
    )
    spec.check()
    return _find_or_build(spec, resolved, store, progress)


def _find_or_build(spec: JointSpec, utility: Utility, store: TableStore | None, progress: bool | None) -> JointTable:
    pairs, available = _BYTES_A_PAIR * (spec.budget + 1.0) ** 2, available_bytes()
    if available is not None and pairs > available:
        raise MemoryError(
            f"num_prompts={spec.num_prompts}, budget={spec.budget}: the classes of its (successes, failures) pairs "
            f"alone need {format_bytes(pairs)}; {format_bytes(available)} are available. Split the batch into blocks."
        )
    table = utility.table(spec.budget)

    def build() -> Arrays:
        return _Builder(spec, table).build(progress)

    if store is None or not utility.persistent:
        return JointTable(spec, build())
    # The digest stands for the utility with all its parameters: no two functions share a table, whatever their names.
    digest = hashlib.sha256(table.tobytes()).hexdigest()[:24]
    return JointTable(spec, store.get({"solver": "joint", **asdict(spec), "utility_digest": digest}, build))


def _choose_classes(spec: JointSpec, table: NDArray[np.float64]) -> tuple[PairClasses, NDArray[np.float64]]:
    """The classes with the fewest states, and the states of each layer (bounds left aside)."""
    options = [(False, False)] if spec.reductions == "none" else [(True, True), (True, False)]
    found = []
    for lump, settle in options:
        classes = pair_classes(table, spec.prior, spec.min_rollouts, spec.most, lump=lump, settle=settle)
        found.append((classes, count_layers(classes.width, spec.num_prompts, classes.min_settled)))
    return min(found, key=lambda option: float(option[1].sum()))


def _bytes_needed(layers: NDArray[Any], profiles: float, spec: JointSpec) -> float:
    """Bytes for actions, values and layout, from the states of each layer and the number of profiles."""
    itemsize = np.dtype(spec.dtype).itemsize
    neighbours = float(max(layers[:-1] + layers[1:], default=layers[0]))
    values = float(layers.sum()) if spec.keep_values else neighbours
    return float(layers[:-1].sum()) + itemsize * values + (100 + 8 * spec.num_prompts) * profiles


def _refuse(spec: JointSpec, layers: NDArray[Any], classes: PairClasses, available: int) -> None:
    """Raises MemoryError with what the table would take and what would fit instead."""
    n, budget = spec.num_prompts, spec.budget

    def fits(prompts: int, smaller: int) -> bool:
        width = classes.width[: smaller + 1]
        few = count_layers(width, prompts, classes.min_settled)
        return _bytes_needed(few, count_profiles(width, prompts, classes.min_settled)[-1], spec) <= available

    profiles = count_profiles(classes.width, n, classes.min_settled)[-1]
    # Larger problems never fit where smaller ones do not, so bisection finds the last that does.
    fewer = bisect.bisect_left(range(1, budget), True, key=lambda b: not fits(n, b))
    block = bisect.bisect_left(range(1, n), True, key=lambda k: not fits(k, budget * k // n))
    advice = f"What would fit: a budget of {fewer} for {n} prompts"
    if block > 0:
        advice += f", or blocks of {block} with a budget of {budget * block // n}"
    raise MemoryError(
        f"num_prompts={n}, budget={budget} has {float(layers.sum()):,.0f} states and needs "
        f"{format_bytes(_bytes_needed(layers, profiles, spec))}; {format_bytes(available)} are available. {advice}."
    )


class _Builder:
    """One backward induction: chooses the classes, lays out the states, and solves layer after layer."""

    def __init__(self, spec: JointSpec, table: NDArray[np.float64]) -> None:
        self.spec = spec
        self.table = table
        self.classes, estimate = _choose_classes(spec, table)
        available = available_bytes()
        profiles = float(count_profiles(self.classes.width, spec.num_prompts, self.classes.min_settled)[-1])
        # Only a minimum can make layers much smaller than their estimate; then count them, if that is cheap.
        countable = spec.min_rollouts > 0 and profiles < 1e6
        if available is not None and not countable and _bytes_needed(estimate, profiles, spec) > available:
            _refuse(spec, estimate, self.classes, available)
        self.space = StateSpace.build(spec.num_prompts, self.classes, spec.min_rollouts, spec.most)
        self.layers = self.space.layer_sizes()
        if available is not None and _bytes_needed(self.layers, profiles, spec) > available:
            _refuse(spec, self.layers, self.classes, available)
        self.moves = make_moves(self.space.layout, self.classes, np.dtype(spec.dtype))
        self.first = np.concatenate([[0], np.cumsum(self.layers)])

    def build(self, show_progress: bool | None) -> Arrays:
        spec = self.spec
        actions = np.empty(int(self.first[-2]), dtype=np.int8)
        kept = np.empty(int(self.first[-2]) if spec.keep_values else 0, dtype=spec.dtype)
        label = f"joint table, {spec.num_prompts} prompts, {spec.budget} rollouts"
        threads = max(1, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        with (
            ThreadPoolExecutor(threads) as pool,
            BuildProgress(label, int(self.first[-1]), show_progress) as progress,
        ):
            values = self._solve_layers(_Runner(pool, threads, progress), actions, kept)
        found = [self.classes.min_settled, self.classes.lumps, self.classes.settles]
        return {
            "actions": actions,
            "values": kept,
            "value": np.array([float(values[-1])]),
            "class_of": self.classes.class_of,
            "width": self.classes.width,
            "utility": self.table,
            "found": np.array(found, dtype=np.int64),
        }

    def _solve_layers(self, runner: _Runner, actions: NDArray[np.int8], kept: NDArray[Any]) -> NDArray[Any]:
        """Fills `actions` and `kept`; returns the values of layer 0, whose last state is that of no rollouts."""
        spec, layout, moves = self.spec, self.space.layout, self.moves
        tolerance = np.dtype(spec.dtype).type(TIE_TOLERANCE[spec.dtype])
        # Layers take turns in two buffers: the first touch of fresh memory costs time, layer after layer.
        buffers = [np.empty(int(self.layers[parity::2].max(initial=0)), dtype=spec.dtype) for parity in (0, 1)]
        after = buffers[spec.budget % 2][: self.layers[-1]]
        runner.run(self._tasks(spec.budget), lambda a, b: last_blocks(layout, moves, a, b, after))
        for t in range(spec.budget - 1, -1, -1):
            begin, end = int(self.first[t]), int(self.first[t + 1])
            values = kept[begin:end] if spec.keep_values else buffers[t % 2][: end - begin]

            def step(a: int, b: int, t: int = t, values: Any = values, after: Any = after, begin: int = begin) -> None:
                solve_blocks(layout, moves, t, a, b, values, after, actions, begin, tolerance)

            runner.run(self._tasks(t), step)
            after = values
        return after

    def _tasks(self, t: int) -> Iterator[tuple[int, int, int]]:
        """Layer t cut into pieces of alike numbers of states: first block, end block, states."""
        layout = self.space.layout
        share = max(_STATES_A_TASK, int(self.layers[t]) // _TASKS_A_LAYER)
        for first, end in self.space.ranges(t):
            ends = layout.start[first:end] + layout.block_size[first:end]
            states = int(ends[-1])
            cuts = np.searchsorted(ends, np.arange(share, states, share)) + 1
            edges = np.unique(np.concatenate([[0], cuts, [end - first]]))
            for a, b in itertools.pairwise(edges.tolist()):
                yield first + a, first + b, int(ends[b - 1]) - (int(ends[a - 1]) if a else 0)


class _Runner:
    """Runs a layer's pieces on the pool; a layer of one or two runs in place."""

    def __init__(self, pool: ThreadPoolExecutor, threads: int, progress: BuildProgress) -> None:
        self._pool, self._threads, self._progress = pool, threads, progress

    def run(self, tasks: Iterator[tuple[int, int, int]], step: Callable[[int, int], None]) -> None:
        pieces = list(tasks)
        if self._threads == 1 or len(pieces) <= 2:
            for first, end, states in pieces:
                step(first, end)
                self._progress.advance(states)
            return
        pending = {self._pool.submit(step, first, end): states for first, end, states in pieces}
        for future in as_completed(pending):
            future.result()
            self._progress.advance(pending[future])
