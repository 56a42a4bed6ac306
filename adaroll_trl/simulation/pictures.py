"""Pictures of comparisons and plans. Needs the extra `plots` (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..plots import COLOURS, require_matplotlib
from ..utilities import as_utility, make_utility
from .compare import BOUND, Row, Setting
from .entropy import GainPoint
from .planning import EDGES, ExpectedRollouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def comparison_figure(found: Sequence[tuple[Setting, Sequence[Row]]]) -> Figure:
    """For each setting a panel of points, the allocators' utility per prompt with two standard errors on each side."""
    require_matplotlib()
    from matplotlib.figure import Figure

    height = 0.6 + 0.26 * sum(len(rows) + 2 for _, rows in found)
    figure = Figure(figsize=(8, height), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axes, (setting, rows) in zip(panels, found, strict=True):
        points = [row for row in rows if row.allocator != BOUND]
        points.sort(key=lambda row: row.utility.value)
        place = np.arange(len(points))
        values = [row.utility.value for row in points]
        errors = [2 * row.utility.error for row in points]
        axes.errorbar(values, place, xerr=errors, fmt="o", color=COLOURS[0], markersize=5, elinewidth=1.2)
        axes.set_yticks(place, [row.allocator for row in points])
        uniform = points[0].utility.value - points[0].gain.value
        bound = [row.utility.value for row in rows if row.allocator == BOUND]
        axes.axvline(uniform, color="#222222", linestyle="--", linewidth=1, label="equal groups")
        axes.axvline(bound[0], color=COLOURS[1], linewidth=1, label="bound")
        edge = [uniform, *bound, *values]
        room = 0.1 * (max(edge) - min(edge)) or 0.1
        axes.set_xlim(min(edge) - room, max(edge) + room)
        axes.set_title(setting.text, loc="left", fontsize=10)
        axes.set_xlabel("utility of a prompt")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plan_figure(found: Sequence[ExpectedRollouts]) -> Figure:
    """A line of panels for each plan: prompts with signal and utility over rollouts per prompt, and rollouts by pass
    rate for its last setting."""
    require_matplotlib()
    from matplotlib.figure import Figure

    chosen = as_utility(found[0].setting.utility)
    quantities = ["signal"] if chosen == make_utility("mixed") else ["signal", "utility"]
    figure = Figure(figsize=(1 + 5 * (len(quantities) + 1), 4 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), len(quantities) + 1, squeeze=False)
    for line, expected in zip(panels, found, strict=True):
        for axes, quantity in zip(line, quantities, strict=False):
            _draw_expectation(axes, expected, quantity)
            axes.set_ylabel("prompts with signal" if quantity == "signal" else f"utility of a prompt, {chosen.key}")
        _draw_rollouts(line[-1], expected)
        line[0].set_title(expected.setting.known.removeprefix(", "), loc="left", fontsize=10)
        for axes in line:
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_expectation(axes: Axes, expected: ExpectedRollouts, quantity: str) -> None:
    rows = sorted(expected.rows, key=lambda row: row.num_generations)
    points = [(row.num_generations, row.rounds, getattr(row, quantity)) for row in rows]
    equal = {generations: one for generations, _, one in points}
    axes.plot(list(equal), [one.uniform for one in equal.values()], "o--", color="#222222", label="uniform")
    axes.plot(list(equal), [one.bound for one in equal.values()], ".:", color="#777777", label="bound")
    for colour, rounds in zip(COLOURS, sorted({row.rounds for row in expected.rows}), strict=False):
        some = [(generations, one.adaptive) for generations, several, one in points if several == rounds]
        axes.errorbar(
            [generations for generations, _ in some],
            [adaptive.value for _, adaptive in some],
            yerr=[2 * adaptive.error for _, adaptive in some],
            fmt="o-",
            color=colour,
            label=f"adaroll, {rounds} round{'s' * (rounds > 1)}",
        )
    axes.set_xlabel("rollouts per prompt")
    axes.legend(frameon=False)


def _draw_rollouts(axes: Axes, expected: ExpectedRollouts) -> None:
    last = expected.rows[-1]
    place = np.arange(len(EDGES) - 1)
    heights = [one.value if np.isfinite(one.value) else 0.0 for one in last.rollouts]
    errors = [2 * one.error if np.isfinite(one.error) else 0.0 for one in last.rollouts]
    axes.bar(place, heights, yerr=errors, color=COLOURS[0], alpha=0.8)
    axes.axhline(last.num_generations, color="#222222", linestyle="--", linewidth=1, label="uniform")
    axes.set_xticks(place, [f"{100 * low:g}-{100 * high:g}" for low, high in pairwise(EDGES)])
    axes.set_xlabel("pass rate, %")
    axes.set_ylabel(f"rollouts, G = {last.num_generations}, {last.rounds} round{'s' * (last.rounds > 1)}")
    axes.legend(frameon=False)


def draw_gain(
    axes: Axes, curves: Mapping[str, Sequence[GainPoint]], *, line: bool = True, first_colour: int = 0
) -> None:
    """Relative gain, in percent, over entropy, in nats: a line for each name, or points without one; bars show two
    standard errors on each side."""
    for colour, (name, points) in zip(COLOURS[first_colour:], curves.items(), strict=False):
        axes.errorbar(
            [point.entropy for point in points],
            [100 * point.gain.value for point in points],
            yerr=[200 * point.gain.error for point in points],
            fmt="o-" if line else "D",
            color=colour,
            markersize=4,
            linewidth=1.4,
            label=name,
        )
    axes.set_xlabel("entropy of the histogram of pass rates, nats")
    axes.set_ylabel("relative gain, %")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
