"""What a demo measured, as tables, sentences and curves: figures with their errors, and no conclusion beyond them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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
        ("wall clock, evaluation apart", [f"{arm.seconds:.1f} s" for arm in arms]),
    ]
    for label, cells in rows:
        table.add_row(label, *cells)
    return table


def _rollout_share(groups: Groups, chosen: NDArray[np.bool_]) -> str:
    return f"{groups.rollouts[chosen].sum() / groups.rollouts.sum():.1%}"


def difficulty_table(result: DemoResult) -> Table:
    """Held-out accuracy, and where the training rollouts went, by difficulty level."""
    arms = list(result.arms)
    table = Table(
        title=f"By difficulty ({result.problems.level_name}): held-out accuracy, and training rollouts per prompt",
        title_justify="left",
        title_style="bold",
    )
    table.add_column(result.problems.level_name)
    for heading in ("before", *(ARMS[arm] for arm in arms)):
        table.add_column(heading, justify="right")
    if len(arms) == 2:
        table.add_column("difference", justify="right")
    for arm in arms:
        table.add_column(f"rollouts, {ARMS[arm]}", justify="right")
    levels = [*result.held_out_levels.tolist(), *next(iter(result.arms.values())).groups.level.tolist()]
    bins = level_bins([level for level in levels if level >= 0])
    for one in bins:
        table.add_row(*_difficulty_row(result, one.label, one))
    table.add_section()
    table.add_row(*_difficulty_row(result, "all", None))
    return table


def _difficulty_row(result: DemoResult, label: str, one: LevelBin | None) -> Sequence[str]:
    levels = result.held_out_levels
    chosen = np.ones(levels.size, dtype=bool) if one is None else one.holds(levels)
    after = [result.after(arm)[chosen] if result.after(arm).size else np.zeros(0) for arm in result.arms]
    cells = [label, with_error(result.before[chosen]), *(with_error(accuracy) for accuracy in after)]
    if len(after) == 2:
        cells.append(with_error(after[1] - after[0], signed=True))
    for arm in result.arms.values():
        rollouts = arm.groups.rollouts if one is None else arm.groups.rollouts[one.holds(arm.groups.level)]
        cells.append(f"{rollouts.mean():.1f}" if rollouts.size else "-")
    return cells


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
