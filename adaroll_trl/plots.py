"""Pictures: learning curves, and where the rollouts of one batch went. Needs the extra `plots` (matplotlib).

The `draw_` functions draw on axes that are passed in, so that they fit into figures of your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BatchAllocation",
    "Curve",
    "comparison_figure",
    "draw_allocation",
    "draw_curves",
    "draw_weight_curve",
    "logged_weight_curve",
    "save_figure",
]

# Okabe and Ito's palette: told apart by colour-blind readers, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_RIGHT, _WRONG, _INK, _MUTED = "#009E73", "#D9D9D9", "#222222", "#777777"


@dataclass(frozen=True)
class Curve:
    """A quantity over steps.

    Attributes:
        steps, values (arrays of shape (points,)): where it was measured, and what it was.
        errors (array of shape (points,), *optional*): standard errors.
    """

    steps: ArrayLike
    values: ArrayLike
    errors: ArrayLike | None = None


@dataclass(frozen=True)
class BatchAllocation:
    """Where one batch's rollouts went.

    Attributes:
        rollouts, successes (arrays of shape (prompts,)): of each prompt.
        success_rates, errors (arrays of shape (prompts,)): its success rate, with a standard error.
        budget_per_prompt (`float`): what GRPO gives each of them.
    """

    rollouts: ArrayLike
    successes: ArrayLike
    success_rates: ArrayLike
    errors: ArrayLike
    budget_per_prompt: float


def require_matplotlib() -> Any:
    """matplotlib with a backend that needs no screen.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib, which is not installed. Install it with `pip install adaroll_trl[plots]`."
        ) from error
    matplotlib.use("Agg", force=False)
    return matplotlib


def moving_average(values: ArrayLike, window: int) -> np.ndarray:
    """The mean of each value and up to `window - 1` before it; float64 of the same length.

    >>> moving_average([0.0, 2.0, 4.0], 2).tolist()
    [0.0, 1.0, 3.0]
    """
    values = np.asarray(values, dtype=np.float64)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    last = np.arange(1, values.size + 1)
    first = np.maximum(last - window, 0)
    return (sums[last] - sums[first]) / (last - first)


def draw_curves(axes: Axes, curves: Mapping[str, Curve], *, title: str, ylabel: str) -> None:
    """One line a curve, with a band of one standard error on each side, and a legend."""
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        steps, values = np.asarray(curve.steps), np.asarray(curve.values, dtype=np.float64)
        axes.plot(
            steps, values, color=colour, linewidth=1.8, label=name, marker="o" if steps.size < 25 else "", ms=3.5
        )
        if curve.errors is not None:
            errors = np.asarray(curve.errors, dtype=np.float64)
            axes.fill_between(steps, values - errors, values + errors, color=colour, alpha=0.15, linewidth=0)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left")
    if curves:
        axes.legend(frameon=False)


def draw_allocation(counts: Axes, rates: Axes, batch: BatchAllocation, *, title: str) -> None:
    """Rollouts of each prompt above, its success rate below; prompts in the order of their success rates."""
    success_rates = np.asarray(batch.success_rates, dtype=np.float64)
    order = np.argsort(success_rates, kind="stable")
    place = np.arange(order.size)
    rollouts, successes = np.asarray(batch.rollouts)[order], np.asarray(batch.successes)[order]
    counts.bar(place, successes, color=_RIGHT, width=0.8, label="right")
    counts.bar(place, rollouts - successes, bottom=successes, color=_WRONG, width=0.8, label="wrong")
    counts.axhline(batch.budget_per_prompt, color=_INK, linestyle="--", linewidth=1, label="GRPO")
    counts.set_ylim(0, max(float(rollouts.max()), batch.budget_per_prompt) * 1.3)
    counts.locator_params(axis="y", integer=True)
    counts.set_ylabel("rollouts")
    counts.set_title(title, loc="left")
    counts.legend(frameon=False, ncols=3, loc="upper right")
    counts.tick_params(labelbottom=False)
    rates.errorbar(
        place,
        success_rates[order],
        yerr=np.asarray(batch.errors, dtype=np.float64)[order],
        fmt="o",
        color=COLOURS[0],
        markersize=4,
        elinewidth=1,
    )
    rates.set_ylim(-0.05, 1.05)
    rates.set_ylabel("success rate")
    rates.set_xlabel("prompts of the batch, by success rate")
    rates.set_xticks([])


def draw_weight_curve(
    axes: Axes,
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    title: str,
    ylabel: str = "weight w(p)",
    colours: Sequence[str] = COLOURS,
) -> None:
    """One line a curve: the weight of the update (logarithmic) over the pass rate; each curve is (rates, weights).

    Rates without a known weight (nan) leave a gap.
    """
    for colour, (name, (rates, weights)) in zip(colours, curves.items(), strict=False):
        rates, weights = np.asarray(rates, dtype=np.float64), np.asarray(weights, dtype=np.float64)
        marker = "o" if rates.size < 25 else ""
        axes.plot(rates, weights, color=colour, linewidth=1.8, label=name, marker=marker, ms=3.5)
    axes.axhline(1, color=_INK, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(0, 1)
    axes.set_xlabel("pass rate p")
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left")
    if curves:
        axes.legend(frameon=False)


def logged_weight_curve(logged: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Pass rates (the middles of the bins) and weights from an entry of `trainer.state.log_history`.

    >>> rates, weights = logged_weight_curve({"adaroll/prompt_weight/curve/0.2-0.4": 1.5, "loss": 0.1})
    >>> rates.round(3).tolist(), weights.tolist()
    ([0.3], [1.5])
    """
    prefix = "adaroll/prompt_weight/curve/"
    points = []
    for name, value in logged.items():
        if name.startswith(prefix):
            low, _, high = name.removeprefix(prefix).partition("-")
            points.append(((float(low) + float(high)) / 2, float(value)))
    found = np.array(sorted(points)).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def tidy(axes: Sequence[Axes]) -> None:
    """The style of all pictures here."""
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#EEEEEE", zorder=0)
        one.set_axisbelow(True)
        one.tick_params(color=_MUTED)


def comparison_figure(
    held_out: Mapping[str, Curve], signal: Mapping[str, Curve], batch: BatchAllocation | None, *, heading: str
) -> Figure:
    """Held-out accuracy and the share of prompts with signal over the steps; beside them one batch's allocation."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5 if batch is not None else 7, 6.4), layout="constrained")
    figure.suptitle(heading, x=0.01, ha="left", fontsize=11, color=_MUTED)
    grid = figure.add_gridspec(2, 2 if batch is not None else 1)
    accuracy, share = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    draw_curves(accuracy, held_out, title="Held-out accuracy", ylabel="accuracy")
    draw_curves(share, signal, title="Prompts with signal (right and wrong rollouts)", ylabel="share of prompts")
    axes = [accuracy, share]
    if batch is not None:
        inner = grid[:, 1].subgridspec(2, 1, height_ratios=(3, 2))
        counts = figure.add_subplot(inner[0])
        rates = figure.add_subplot(inner[1], sharex=counts)
        draw_allocation(counts, rates, batch, title="AdaRoll-GRPO's allocation of the first batch")
        axes += [counts, rates]
    tidy(axes)
    return figure


def picture_formats() -> tuple[str, ...]:
    """Endings of files that `save_figure` can write, without the dot."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    return tuple(sorted(FigureCanvasBase.get_supported_filetypes()))


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, and create its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
