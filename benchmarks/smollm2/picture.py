"""The picture of the arithmetic benchmark: what was learned, and what there was to learn from, a line a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from summary import ARMS, Run, accuracy, groups_of, mixed

from adaroll_trl.plots import COLOURS, Curve, draw_curves, moving_average, require_matplotlib, save_figure

WINDOW = 10  # steps of the moving averages


def draw(before: Run, runs: Mapping[int, Mapping[str, Run]], path: Path) -> None:
    """Held-out pass@1, the success rate in training and the share of prompts with signal, a line a run."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    held_out, success, shares = figure.subplots(1, 3)
    curves: list[dict[str, Curve]] = [{}, {}, {}]
    for seed, arms in runs.items():
        for arm, run in arms.items():
            label = f"{ARMS[arm]}, seed {seed}"
            curves[0][label] = _held_out_curve(before, run)
            groups = groups_of(run)
            rates = np.full(groups["rollouts"].shape, np.nan)  # of prompts without rollouts
            np.divide(groups["successes"], groups["rollouts"], out=rates, where=groups["rollouts"] > 0)
            for place, column in ((1, rates), (2, mixed(groups))):
                steps = np.unique(groups["step"])
                means = [float(np.nanmean(column[groups["step"] == step])) for step in steps]
                curves[place][label] = Curve(steps, moving_average(means, WINDOW))
    draw_curves(held_out, curves[0], title="Held-out pass@1", ylabel="pass@1")
    draw_curves(success, curves[1], title="Training prompts", ylabel=f"success rate, mean of {WINDOW} steps")
    draw_curves(shares, curves[2], title="Prompts with signal", ylabel=f"share, mean of {WINDOW} steps")
    for axes in (held_out, success, shares):
        axes.spines[["top", "right"]].set_visible(False)
        for number, line in enumerate(axes.get_lines()):  # colour says the arm, the dash the seed
            line.set_color(COLOURS[number % 2])
            line.set_linestyle(("-", "--", ":", "-.")[number // 2 % 4])
        for number, band in enumerate(axes.collections):
            band.set_color(COLOURS[number % 2])
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _held_out_curve(before: Run, run: Run) -> Curve:
    steps: list[int] = [0, *sorted(int(step) for step in run["evaluations"])]
    evaluations: list[Any] = [before, *(run["evaluations"][str(step)] for step in steps[1:])]
    estimates = [accuracy(one) for one in evaluations]
    errors = [one.half_width / 1.96 for one in estimates]
    return Curve(steps, [one.value for one in estimates], errors)
