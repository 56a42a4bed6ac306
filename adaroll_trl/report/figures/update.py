"""What the update sees, how well beliefs foretell, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...plots import COLOURS, draw_weight_curve, logged_weight_curve
from ...values import finite_array, is_number
from ..run import Run
from .drawing import MARKERS, MUTED, FloatArray, Picture, finish, label_of, picture, plain_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_weights(runs: Sequence[Run]) -> Iterator[Picture]:
    curves, colours = {}, []
    for run in runs:
        numbers = (
            {k: value for k, value in entry.items() if is_number(value)} for entry in reversed(run.files.history)
        )
        newest = next((entry for entry in numbers if any("prompt_weight/curve/" in name for name in entry)), None)
        if newest is not None:
            curves[label_of(run, runs, f"at step {newest.get('step', '?')}")] = logged_weight_curve(newest)
            colours.append(COLOURS[run.colour])
    if not curves:
        return

    def draw(axes: Axes) -> None:
        draw_weight_curve(axes, curves, title="", colours=colours)
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        axes.yaxis.set_major_formatter(plain_number)
        axes.yaxis.set_minor_formatter(plain_number)
        finish(axes, "weight w(p)", "pass rate p")

    alt = "Weight of the update by pass rate. " + "; ".join(
        f"{name}: " + ", ".join(f"{weight:.2f} at {rate:.2f}" for rate, weight in zip(*curve, strict=True))
        for name, curve in curves.items()
    )
    caption = (
        "w(p): how much the update leans to prompts of pass rate p, over its average. 1 everywhere is GRPO with "
        "unscaled advantages. The option prompt_weighting changes it."
    )
    yield picture("weights", "Realised prompt weights w(p)", caption, alt, draw)


def draw_calibration(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = []
    for run in runs:
        bins = _calibration_bins(run.files.state)
        if bins.any():
            lines.append((run, bins[bins[:, 0] > 0]))
    if not lines:
        return

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1)
        for run, bins in lines:
            rollouts, predicted, successes = bins.T
            colour, mark = COLOURS[run.colour], MARKERS[run.colour]
            axes.plot(predicted / rollouts, successes / rollouts, color=colour, linewidth=1)
            size = 15 + 150 * rollouts / rollouts.max()
            axes.scatter(predicted / rollouts, successes / rollouts, s=size, color=colour, marker=mark, label=run.name)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        finish(axes, "what came", "predicted chance of a success")

    words = [
        f"{run.name}: " + ", ".join(f"{s / n:.2f} came of {q / n:.2f} predicted" for n, q, s in bins)
        for run, bins in lines
    ]
    caption = (
        "Beliefs carried from earlier visits against the outcomes of each batch's first round, from the newest "
        "checkpoint; the size is the number of rollouts. On the diagonal beliefs are right."
    )
    yield picture("calibration", "Beliefs against outcomes", caption, "Calibration. " + "; ".join(words), draw)


def _calibration_bins(state: Mapping[str, Any]) -> FloatArray:
    """Rollouts, predicted and realised successes of each bin, shape (bins, 3); none where a checkpoint has no such."""
    calibration = state.get("calibration")
    bins = calibration.get("bins") if isinstance(calibration, Mapping) else None
    try:
        return finite_array("bins", bins, (None, 3))
    except ValueError:
        return np.zeros((0, 3))


def draw_time(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = []
    for run in runs:
        names = ["step_time", *run.files.names(r"adaroll/time/.+")]
        lines += [(run, name, *run.files.series(name), place) for place, name in enumerate(names)]
    lines = [line for line in lines if line[2].size and (line[3] > 0).any()]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, name, steps, values, place in lines:
            kept = values > 0
            colour = COLOURS[run.colour] if len(runs) > 1 else COLOURS[place % len(COLOURS)]
            style = ("-", "--", ":", "-.")[place % 4]
            label = label_of(run, runs, name.removeprefix("adaroll/"))
            axes.plot(steps[kept], values[kept], color=colour, linestyle=style, linewidth=1.4, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(plain_number)
        finish(axes, "seconds")

    alt = "Seconds over steps. " + "; ".join(
        f"{label_of(run, runs, name)}: median {np.median(values):.3g} s" for run, name, _, values, _ in lines
    )
    caption = (
        "step_time is that of an optimiser step, with its generation where one falls into it; time/... are parts of a "
        "generation batch. The first batch compiles and builds tables."
    )
    yield picture("time", "Time", caption, alt, draw)
