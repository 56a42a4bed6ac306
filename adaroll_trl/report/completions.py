"""The batches of a run, read from its completions tables one file at a time.

Kept are counts: of each prompt, of each pair (successes, rollouts) in each phase of the run, of each batch. Texts are
read again for the few prompts that a report shows. Memory thus grows with the number of distinct prompts (some 300
bytes each), not with the number of files or the length of completions.

TRL writes a table at every logging step, with the newest generation batch. So a batch that spans several logging steps
is there several times, of which one counts; and with `logging_steps` above the steps of a batch, batches are missing.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import TABLE_COLUMNS
from .files import RunFiles, step_of

PHASES = 4
TIME_BINS = 40
# Lower ends of bins of success rates: none, eight stretches between, all
RATE_EDGES = np.array([0.0, 1e-9, *np.arange(1, 8) / 8, 1 - 1e-9])
_DEFAULT_THRESHOLD = 0.5  # as in `adaroll_trl.metrics`

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Place = tuple[int, int]  # number of the file, and of the row in it


@dataclass
class Prompt:
    """What became of one prompt over the run.

    Args:
        successes, rollouts (`int`): over all batches; only rollouts with a reward.
        batches (`int`): how often it was in a batch.
        solved (place, *optional*): its first success, at the step `solved_step`.
        last (place): its latest completion.
    """

    last: Place
    successes: int = 0
    rollouts: int = 0
    batches: int = 0
    solved: Place | None = None
    solved_step: int = 0


@dataclass(frozen=True)
class Batch:
    """One generation batch: shares of prompts, and mean successes by prompt and by rollout."""

    step: int
    prompts: int
    rollouts: int
    largest: int
    mixed: float
    all_wrong: float
    all_right: float
    success_by_prompt: float
    success_by_rollout: float


@dataclass
class Completions:
    """What the completions tables of a run say.

    Args:
        rewards (list of `str`): the reward columns that were found.
        success (`str`): what counts as a success, in words.
        prompts (`dict`): by a hash of the prompt's text.
        batches (list of `Batch`): in the order of the steps.
        pairs (`dict`): for each phase how many groups had (successes, scored rollouts, rollouts).
        phase_steps (`dict`): first and last step of each phase.
        cells (float array of shape (2, time bins, rate bins)): summed rollouts and number of groups.
        step_range (pair of `int`): first and last step of a table.
        skipped (list of `str`): files that were left out, and why.
        repeated (`int`): tables that only repeat the one before.
    """

    rewards: list[str] = field(default_factory=list)
    success: str = ""
    prompts: dict[bytes, Prompt] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    pairs: dict[int, Counter[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(Counter))
    phase_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    cells: FloatArray = field(default_factory=lambda: np.zeros((2, TIME_BINS, RATE_EDGES.size)))
    step_range: tuple[int, int] = (0, 0)
    skipped: list[str] = field(default_factory=list)
    repeated: int = 0
    adaptive: bool = False

    @property
    def rollouts(self) -> int:
        return sum(batch.rollouts for batch in self.batches)

    def counts(self) -> tuple[IntArray, IntArray]:
        """Successes and rollouts of each prompt that has any, int64 arrays of shape (prompts,)."""
        known = [(one.successes, one.rollouts) for one in self.prompts.values() if one.rollouts]
        successes, rollouts = np.array(known, dtype=np.int64).reshape(-1, 2).T
        return successes, rollouts


class _Scorer:
    """Which rows of a table succeeded, by the run's settings."""

    def __init__(self, run: RunFiles) -> None:
        self.settings = run.settings
        self.logged = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.names(r"rewards/.+/mean")]
        threshold = self.settings.get("success_threshold")
        self.threshold = _DEFAULT_THRESHOLD if threshold is None else float(threshold)
        self.names: list[str] = []

    def find_rewards(self, table: Any) -> list[str]:
        """The columns that hold rewards: those the log knows, else the numbers between completion and advantage."""
        columns = table.column_names
        if named := [name for name in self.logged if name in columns]:
            return sorted(named, key=columns.index)
        import pyarrow.types as types

        numeric = [name for name in columns if types.is_floating(table.schema.field(name).type)]
        ends = [columns.index(name) for name in (*TABLE_COLUMNS, "advantage") if name in columns]
        return [name for name in numeric if columns.index("completion") < columns.index(name) < min(ends, default=0)]

    def outcomes(self, table: Any) -> FloatArray:
        """1 for a success, 0 for a failure, nan for a row without reward; shape (rows,)."""
        self.names = self.find_rewards(table)
        if not self.names:
            raise ValueError(f"it has no column of rewards, only {', '.join(table.column_names)}")
        values = np.stack([_floats(table, name) for name in self.names], axis=1)
        decides = self.settings.get("success_reward")
        if decides in self.names:
            value = values[:, self.names.index(decides)]
        else:
            weights = self._weights()
            value = np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values * weights, axis=1))
        least = self.threshold - 1e-6 * max(1.0, abs(self.threshold))  # rewards are float32
        return np.where(np.isnan(value), np.nan, value >= least)

    def _weights(self) -> FloatArray:
        given = self.settings.get("reward_weights")
        fits = isinstance(given, list) and len(given) == len(self.names)
        return np.array(given, dtype=np.float64) if fits else np.ones(len(self.names))

    def words(self) -> str:
        decides = self.settings.get("success_reward")
        if decides in self.names:
            what = str(decides)
        else:
            what = self.names[0] if len(self.names) == 1 else f"the weighted sum of {', '.join(self.names)}"
        return f"{what} >= {self.threshold:g}"


def _floats(table: Any, name: str) -> FloatArray:
    column = table.column(name).to_numpy(zero_copy_only=False)
    return np.asarray(column, dtype=np.float64)


def read_tables(run: RunFiles) -> Completions:
    """Go through the completions tables of a run."""
    found = Completions()
    if not run.completions:
        return found
    scorer = _Scorer(run)
    steps = [step_of(path) for path in run.completions]
    found.step_range = (steps[0], steps[-1])
    before: Any = None
    for number, path in enumerate(run.completions):
        try:
            table = _read(path)
            content = table.drop_columns(["step"]) if "step" in table.column_names else table
            repeats, before = before is not None and content.equals(before), content
            if repeats:
                found.repeated += 1
                continue
            if reason := _not_training(table, steps[number] in run.evaluation_steps):
                found.skipped.append(f"{path.name}: {reason}")
                continue
            _count(found, table, scorer, run.settings, number, steps[number], len(steps))
        except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own are among these
            found.skipped.append(f"{path.name}: it cannot be read ({_first_line(error)})")
    found.rewards = scorer.names
    found.success = scorer.words() if scorer.names else ""
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _read(path: Path, columns: Sequence[str] | None = None) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path).read(columns=columns)


def _not_training(table: Any, at_evaluation: bool) -> str | None:
    """Why a table is not a batch of training, or None if it is."""
    if missing := [name for name in ("prompt", "completion") if name not in table.column_names]:
        return f"it has no column {missing[0]}, so it is no completions table"
    if at_evaluation or ("group" in table.column_names and table.column("group").null_count):
        return "an evaluation ran at this step, and its completions replaced those of training"
    return None if table.num_rows else "it has no rows"


def _groups(table: Any, prompts: Sequence[str], group_size: Any) -> IntArray:
    """A number for each row's group: AdaRoll's column, or runs of one prompt, of at most `group_size` rows."""
    if "group" in table.column_names:
        return np.unique(table.column("group").to_numpy(), return_inverse=True)[1].reshape(-1)
    numbers, size = [0], 1
    for last, this in pairwise(prompts):
        new = this != last or (isinstance(group_size, int) and size >= group_size)
        numbers.append(numbers[-1] + new)
        size = 1 if new else size + 1
    return np.array(numbers)


def _count(
    found: Completions, table: Any, scorer: _Scorer, settings: Mapping[str, Any], file: int, step: int, files: int
) -> None:
    outcomes = scorer.outcomes(table)
    prompts = [str(value) for value in table.column("prompt").to_pylist()]
    group = _groups(table, prompts, settings.get("num_generations"))
    found.adaptive |= "group" in table.column_names
    rollouts = np.bincount(group)
    scored = np.bincount(group, weights=~np.isnan(outcomes)).astype(np.int64)
    successes = np.bincount(group, weights=outcomes == 1).astype(np.int64)
    phase = min(PHASES * file // files, PHASES - 1)
    found.pairs[phase].update(zip(successes.tolist(), scored.tolist(), rollouts.tolist(), strict=True))
    found.phase_steps[phase] = (found.phase_steps.get(phase, (step, step))[0], step)
    known = scored > 0
    rates = successes[known] / scored[known]
    place = np.searchsorted(RATE_EDGES, rates, side="right") - 1
    moment = TIME_BINS * file // files
    found.cells[0, moment] += np.bincount(place, weights=rollouts[known], minlength=RATE_EDGES.size)
    found.cells[1, moment] += np.bincount(place, minlength=RATE_EDGES.size)
    if rates.size:
        found.batches.append(
            Batch(
                step=step,
                prompts=rollouts.size,
                rollouts=int(rollouts.sum()),
                largest=int(rollouts.max()),
                mixed=float(((successes > 0) & (successes < scored)).sum() / rollouts.size),
                all_wrong=float((known & (successes == 0)).sum() / rollouts.size),
                all_right=float((known & (successes == scored)).sum() / rollouts.size),
                success_by_prompt=float(rates.mean()),
                success_by_rollout=float(np.nanmean(outcomes)),
            )
        )
    _count_prompts(found, prompts, group, outcomes, file, step)


def _count_prompts(
    found: Completions, prompts: Sequence[str], group: IntArray, outcomes: FloatArray, file: int, step: int
) -> None:
    seen: set[int] = set()
    keys: dict[int, bytes] = {}
    for row, (number, outcome) in enumerate(zip(group.tolist(), outcomes.tolist(), strict=True)):
        key = keys.get(number)
        if key is None:
            text = prompts[row].encode("utf-8", "surrogatepass")
            key = keys[number] = hashlib.blake2b(text, digest_size=12).digest()
        one = found.prompts.get(key)
        if one is None:
            one = found.prompts[key] = Prompt((file, row))
        one.batches += number not in seen
        seen.add(number)
        one.last = (file, row)
        if outcome == outcome:
            one.rollouts += 1
            one.successes += outcome == 1
            if outcome == 1 and one.solved is None:
                one.solved, one.solved_step = (file, row), step


def read_texts(run: RunFiles, places: Sequence[Place]) -> dict[Place, tuple[Any, Any]]:
    """Prompt and completion of the rows at `places`."""
    by_file: dict[int, list[int]] = defaultdict(list)
    for file, row in places:
        by_file[file].append(row)
    texts = {}
    for file, rows in by_file.items():
        table = _read(run.completions[file], ["prompt", "completion"])
        for row in rows:
            texts[file, row] = (table.column("prompt")[row].as_py(), table.column("completion")[row].as_py())
    return texts
