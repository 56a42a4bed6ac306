"""The figures of stored runs, and paired comparisons with GRPO. numpy and scipy only.

All outcomes are per run; a comparison is the mean over seeds of an arm's value less GRPO's, of the same regime, factor
and seed. Two intervals stand beside it: the usual 95 % one (Student's t over seeds), and one that holds for all arms
of a table at once (Bonferroni). A difference counts as found only where the second does not contain 0, and the table
is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from stored import DIGITS, GROUP_COLUMNS, LAST_SAMPLES, SAMPLES

from adaroll_trl.evaluation.statistics import pass_at_k

Run = Mapping[str, Any]
FloatArray = NDArray[np.float64]
HARD = 0.1  # a level is hard if the starts' mean pass rate on it is below
PASS_K = 8


def read_runs(folder: Path) -> list[Run]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/seed*.json"))]


def starts_of(runs: Sequence[Run]) -> dict[tuple[str, int], str]:
    """What the start of each regime and seed got right, which all its runs share.

    Raises:
        ValueError: if runs of one regime and seed began from two models; then they are no pairs.
    """
    found: dict[tuple[str, int], Run] = {}
    for run in runs:
        first = found.setdefault((run["regime"], run["seed"]), run)
        if first["right"]["0"] != run["right"]["0"]:
            raise ValueError(
                f"{run['cell']} and {first['cell']} began from two different models for seed {run['seed']}, so they "
                f"are no pair: remove the runs of {run['regime']} with this seed of the one or the other, and make "
                "those again."
            )
    return {key: run["right"]["0"] for key, run in found.items()}


def right_counts(text: str) -> NDArray[np.int64]:
    return np.array([DIGITS.index(digit) for digit in text])


def samples_of(run: Run, step: str) -> int:
    return LAST_SAMPLES if step in ("0", str(run["steps"])) else SAMPLES


def curve(run: Run, chosen: NDArray[np.bool_] | None = None) -> tuple[FloatArray, FloatArray]:
    """Steps and held-out pass@1."""
    steps = sorted(run["right"], key=int)
    counts = [right_counts(run["right"][step]) for step in steps]
    kept = [count if chosen is None else count[chosen] for count in counts]
    accuracy = [count.mean() / samples_of(run, step) for count, step in zip(kept, steps, strict=True)]
    return np.array([int(step) for step in steps], dtype=float), np.array(accuracy)


def final(run: Run) -> float:
    return float(curve(run)[1][-1])


def area(run: Run) -> float:
    """Mean held-out pass@1 over the training (trapezoids)."""
    steps, accuracy = curve(run)
    return float(np.trapezoid(accuracy, steps) / steps[-1])


def hard_levels(runs: Sequence[Run], levels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which held-out problems are hard, from the starts of all seeds."""
    by_seed = {run["seed"]: right_counts(run["right"]["0"]) / samples_of(run, "0") for run in runs}
    rate = np.mean(list(by_seed.values()), axis=0)
    means = {level: rate[levels == level].mean() for level in np.unique(levels)}
    return np.array([means[level] < HARD for level in levels])


def final_hard(hard: NDArray[np.bool_]) -> Callable[[Run], float]:
    return lambda run: float(curve(run, hard)[1][-1]) if hard.any() else float("nan")


def final_pass_at_k(run: Run) -> float:
    step = str(run["steps"])
    counts = right_counts(run["right"][step])
    return float(pass_at_k(np.full(counts.size, samples_of(run, step)), counts, PASS_K).mean())


def rollouts_to(run: Run, target: float) -> float:
    """Thousand rollouts until held-out pass@1 reaches `target` (linear in between); the whole run's if it does not."""
    steps, accuracy = curve(run)
    per_step = run["prompts"] * run["num_generations"] / 1000
    for k in range(1, steps.size):
        if accuracy[k] >= target:
            share = (
                1.0 if accuracy[k] == accuracy[k - 1] else (target - accuracy[k - 1]) / (accuracy[k] - accuracy[k - 1])
            )
            return float(per_step * (steps[k - 1] + min(max(share, 0.0), 1.0) * (steps[k] - steps[k - 1])))
    return float(per_step * steps[-1])


def half_way(grpo: Run) -> float:
    """The level for `rollouts_to`: half of what GRPO gains with this seed."""
    accuracy = curve(grpo)[1]
    return float((accuracy[0] + accuracy[-1]) / 2)


def group_sums(run: Run) -> dict[str, float]:
    """What was trained on, over the whole run."""
    columns = dict(zip(GROUP_COLUMNS, np.array(run["groups"], dtype=float).T, strict=True))
    return {
        "mixed prompts": float(columns["mixed"].sum() / columns["prompts"].sum()),
        "rollouts with signal": float(columns["rollouts_in_mixed"].sum() / columns["rollouts"].sum()),
        "effective rollouts": float(run["effective_rollouts"]),
        "gradient norm": float(np.mean(run["grad_norm"])),
        "prompts a step": float(columns["prompts"].sum() / run["steps"]),
    }


def weight_by_level(run: Run) -> dict[int, float]:
    """By level, in the first third of the training: the mean of s f / n, a prompt's weight w(p) times p (1 - p)."""
    table = np.array(run["groups"], dtype=float)
    columns = dict(zip(GROUP_COLUMNS, table[table[:, 0] == 0].T, strict=True))
    levels = np.unique(columns["level"])
    here = [columns["level"] == level for level in levels]
    return {
        int(level): float(columns["mass"][of].sum() / columns["prompts"][of].sum())
        for level, of in zip(levels, here, strict=True)
    }


@dataclass(frozen=True)
class Difference:
    """An arm less GRPO over paired seeds.

    Attributes:
        mean (`float`): of the differences.
        half, simultaneous (`float`): half widths of the 95 % interval, and of the one for all arms of a table at once.
        p (`float`): two-sided, of the paired t-test, uncorrected; nan where there are fewer than two seeds.
        seeds (`int`): how many.
    """

    mean: float
    half: float
    simultaneous: float
    p: float
    seeds: int

    @property
    def found(self) -> bool:
        return abs(self.mean) > self.simultaneous


def compare(arm: Mapping[int, Run], grpo: Mapping[int, Run], outcome: Callable[[Run], float], arms: int) -> Difference:
    """Paired over the seeds that both have; `arms` is the number of comparisons of the table."""
    seeds = sorted(arm.keys() & grpo.keys())
    differences = np.array([outcome(arm[seed]) - outcome(grpo[seed]) for seed in seeds])
    return interval(differences, arms)


def interval(differences: FloatArray, comparisons: int) -> Difference:
    n = differences.size
    if n < 2:
        return Difference(float(differences.mean()) if n else np.nan, np.nan, np.nan, np.nan, n)
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(n))
    plain, together = (float(stats.t.ppf(1 - 0.025 / k, n - 1) * error) for k in (1, max(comparisons, 1)))
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else float(mean == 0)
    return Difference(mean, plain, together, p, n)


def holm(p_values: Sequence[float]) -> FloatArray:
    """Holm's adjusted p-values (1979): below 0.05 is found, whatever the others are, with an error in 5 % at most."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)
    adjusted = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def fell(run: Run) -> bool:
    """Whether a run ended below its start."""
    accuracy = curve(run)[1]
    return bool(accuracy[-1] < accuracy[0])


def by_cell(runs: Sequence[Run]) -> dict[tuple[str, str, str], dict[int, Run]]:
    """(regime, arm, factor) -> seed -> run."""
    found: dict[tuple[str, str, str], dict[int, Run]] = {}
    for run in runs:
        found.setdefault((run["regime"], run["arm"], run["factor"]), {})[run["seed"]] = run
    return found
