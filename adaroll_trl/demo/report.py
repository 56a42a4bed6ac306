"""What a demo measured, as tables, sentences and curves: figures with their errors, and no conclusion beyond them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ..plots import BatchAllocation, Curve, moving_average
from .evaluation import mean_and_error
from .problems import LevelBin, ProblemSet, level_bins
from .record import ArmResult, Groups
from .settings import ARMS, Settings

FloatArray = NDArray[np.float64]


@dataclass
class DemoResult:
    """All that a demo measured.

    Args:
        before (float array of shape (held-out prompts,)): accuracy before any reinforcement learning.
        arms (`dict` of `ArmResult`): by the arm's name.
        probe (`BatchAllocation`, *optional*): the first batch of the AdaRoll arm, with success rates of its prompts
            under the policy that generated it.
    """

    settings: Settings
    problems: ProblemSet
    before: FloatArray
    arms: dict[str, ArmResult] = field(default_factory=dict)
    probe: BatchAllocation | None = None

    def after(self, arm: str) -> FloatArray:
        held_out = self.arms[arm].held_out
        return held_out[-1][1] if held_out else np.zeros(0)

    @property
    def held_out_levels(self) -> NDArray[np.int64]:
        return np.array([-1 if problem.level is None else problem.level for problem in self.problems.held_out])


def with_error(values: FloatArray, signed: bool = False) -> str:
    """`0.412 ± 0.013`: mean and standard error."""
    mean, error = mean_and_error(values)
    if math.isnan(mean):
        return "-"
    text = f"{mean:+.3f}" if signed else f"{mean:.3f}"
    return text if math.isnan(error) else f"{text} ± {error:.3f}"


def training_table(result: DemoResult) -> Table:
    """What the rollouts of each arm bought in training."""
    table = Table(title="Training", title_justify="left", title_style="bold")
    table.add_column("")
    arms = list(result.arms.values())
    for arm in arms:
        table.add_column(ARMS[arm.arm], justify="right")
    groups = [arm.groups for arm in arms]
    rows: list[tuple[str, list[str]]] = [
        ("steps", [f"{result.settings.steps:,}" for _ in arms]),
        ("rollouts", [f"{one.rollouts.sum():,}" for one in groups]),
        ("prompts", [f"{one.prompt.size:,}" for one in groups]),
        ("prompts with signal", [f"{one.mixed.mean():.1%}" for one in groups]),
        ("  all rollouts wrong", [f"{np.mean(one.success_share == 0):.1%}" for one in groups]),
        ("  all rollouts right", [f"{np.mean(one.success_share == 1):.1%}" for one in groups]),
        ("rollouts spent on prompts with signal", [_rollout_share(one, one.mixed) for one in groups]),
        ("rollouts per prompt, least to most", [f"{one.rollouts.min()} to {one.rollouts.max()}" for one in groups]),
        ("completion tokens", [f"{arm.tokens:,}" for arm in arms]),
        ("wall clock of all steps", [f"{sum(arm.step_seconds):.1f} s" for arm in arms]),
        ("  the first step", [f"{arm.step_seconds[0]:.2f} s" for arm in arms]),
        ("  the median step", [f"{np.median(arm.step_seconds):.2f} s" for arm in arms]),
    ]
    for label, cells in rows:
        table.add_row(label, *cells)
    return table


def _rollout_share(groups: Groups, chosen: NDArray[np.bool_]) -> str:
    return f"{groups.rollouts[chosen].sum() / groups.rollouts.sum():.1%}"


def accuracy_table(result: DemoResult) -> Table:
    """Held-out accuracy by difficulty, before and after training."""
    headings = ["before", *(ARMS[arm] for arm in result.arms)] + ["difference"] * (len(result.arms) == 2)
    table = _table("Held-out accuracy", result, headings)
    for label, (chosen,) in _by_level(result, result.held_out_levels):
        after = [accuracy[chosen] for accuracy in map(result.after, result.arms)]
        cells = [with_error(result.before[chosen]), *(with_error(accuracy) for accuracy in after)]
        if len(after) == 2:
            cells.append(with_error(after[1] - after[0], signed=True))
        _add_row(table, label, cells)
    return table


def rollout_table(result: DemoResult) -> Table:
    """Where the training rollouts went by difficulty, and what share of the prompts came to have signal."""
    arms = [(ARMS[name], arm.groups) for name, arm in result.arms.items()]
    headings = [f"rollouts each,\n{name}" for name, _ in arms] + [f"with signal,\n{name}" for name, _ in arms]
    table = _table("Training prompts", result, headings)
    for label, chosen in _by_level(result, *(groups.level for _, groups in arms)):
        these = [groups.where(mask) for (_, groups), mask in zip(arms, chosen, strict=True)]
        cells = [_mean(one.rollouts, "{:.1f}") for one in these] + [_mean(one.mixed, "{:.1%}") for one in these]
        _add_row(table, label, cells)
    return table


def _table(title: str, result: DemoResult, headings: Sequence[str]) -> Table:
    heading = f"{title}, by {result.problems.level_name}" if _bins(result) else title
    table = Table(title=heading, title_justify="left", title_style="bold")
    table.add_column("")
    for one in headings:
        table.add_column(one, justify="right", no_wrap=True)
    return table


def _add_row(table: Table, label: str, cells: Sequence[str]) -> None:
    if label == "all":
        table.add_section()
    table.add_row(label, *cells)


def _bins(result: DemoResult) -> list[LevelBin]:
    groups = next(iter(result.arms.values())).groups
    levels = [*result.held_out_levels.tolist(), *groups.level.tolist()]
    return level_bins([level for level in levels if level >= 0])


def _by_level(result: DemoResult, *levels: NDArray[np.int64]) -> Iterator[tuple[str, list[NDArray[np.bool_]]]]:
    """For each bin of levels its label, and a mask for each of the arrays given; "all" comes last."""
    for one in _bins(result):
        yield one.label, [one.holds(array) for array in levels]
    yield "all", [np.ones(array.size, dtype=bool) for array in levels]


def _mean(values: NDArray[Any], form: str) -> str:
    return form.format(values.mean()) if values.size else "-"


def verdict(result: DemoResult) -> str:
    """One sentence on the difference in held-out accuracy, and what it is worth."""
    if len(result.arms) < 2 or result.before.size < 2:
        return "No comparison: it takes both arms and at least two held-out prompts."
    difference = result.after("adaroll") - result.after("grpo")
    mean, error = mean_and_error(difference)
    text = (
        f"AdaRoll minus GRPO, held-out accuracy: {mean:+.3f} ± {error:.3f} "
        f"(standard error over {difference.size} held-out prompts)."
    )
    if abs(mean) <= 2 * error or error == 0:
        return f"{text} One run, one seed: not evidence of a difference."
    return (
        f"{text} One run, one seed: more than chance among these prompts, but the error holds nothing of what another "
        "seed would change."
    )


def held_out_curves(result: DemoResult) -> dict[str, Curve]:
    """Held-out accuracy of each arm over the steps, from their common start."""
    curves = {}
    for name, arm in result.arms.items():
        points = [(0, result.before), *arm.held_out]
        moments = [mean_and_error(accuracy) for _, accuracy in points]
        curves[ARMS[name]] = Curve(
            [step for step, _ in points], [mean for mean, _ in moments], np.nan_to_num([error for _, error in moments])
        )
    return curves


def signal_curves(result: DemoResult) -> dict[str, Curve]:
    """The share of each batch's prompts with signal, averaged over the batches before."""
    window = max(1, result.settings.steps // 12)
    curves = {}
    for name, arm in result.arms.items():
        batches = np.bincount(arm.groups.step)
        shares = np.bincount(arm.groups.step, weights=arm.groups.mixed) / np.maximum(batches, 1)
        curves[ARMS[name]] = Curve(np.arange(1, shares.size + 1), moving_average(shares, window))
    return curves


def probe_sentence(batch: BatchAllocation) -> str:
    """Where the first batch's rollouts went, in words."""
    rates, rollouts = np.asarray(batch.success_rates), np.asarray(batch.rollouts)
    order = np.argsort(rates, kind="stable")
    thirds = np.array_split(order, 3)
    means = ", ".join(f"{rollouts[third].mean():.1f}" for third in thirds if third.size)
    return (
        f"The first batch: prompts from the lowest to the highest success rate, in three parts, got {means} rollouts "
        f"each (GRPO: {batch.budget_per_prompt:g})."
    )
