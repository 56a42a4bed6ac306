"""Where the rollouts went: against success rates and over time, and how hard the prompts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from ...plots import COLOURS
from ...simulation.pass_counts import PassCounts
from ..completions import PHASES, RATE_EDGES, TIME_BINS
from ..run import Run
from .drawing import MARKERS, FloatArray, Picture, finish, label_of, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIFFICULTY_BINS = np.linspace(0.0, 1.0, 11)


def draw_phases(runs: Sequence[Run]) -> Iterator[Picture]:
    """Rollouts against success rate, one picture a phase with the same axes."""
    pairs = [run.completions.pairs for run in runs]
    if not any(run.adaptive and one for run, one in zip(runs, pairs, strict=True)):
        return
    largest = max(n for one in pairs for phase in one.values() for _, _, n in phase)
    for phase in range(PHASES):
        counters = [one.get(phase, Counter()) for one in pairs]
        if not any(counters):
            continue

        def draw(axes: Axes, counters: list[Counter[tuple[int, int, int]]] = counters) -> None:
            for run, counter in zip(runs, counters, strict=True):
                _bubbles(axes, run, counter, run.name if len(runs) > 1 else "mean")
            axes.set_xlim(-0.06, 1.06)
            axes.set_ylim(0, 1.05 * largest)
            finish(axes, "rollouts of the prompt", "its success rate in the batch", "upper right")

        text = f"{100 * phase // PHASES} to {100 * (phase + 1) // PHASES} % of the run"
        alt = f"Rollouts against success rate, {text}. " + "; ".join(
            f"{run.name}: {_thirds(counter)}" for run, counter in zip(runs, counters, strict=True) if counter
        )
        yield picture(f"allocation_{phase + 1}", text, "", alt, draw)


def _bubbles(axes: Axes, run: Run, counter: Counter[tuple[int, int, int]], label: str) -> None:
    """Groups as dots whose area is their number, and the mean rollouts by success rate as a line."""
    rates, rollouts, many = _rates(counter)
    if not rates.size:
        return
    colour = COLOURS[run.colour]
    shift = 0.008 * (2 * run.colour - 1)
    spots, where = np.unique(np.stack([rates, rollouts], axis=1), axis=0, return_inverse=True)
    area = np.bincount(where.reshape(-1), weights=many)
    axes.scatter(
        spots[:, 0] + shift,
        spots[:, 1],
        s=2 + 160 * area / area.max(),
        color=colour,
        alpha=0.45,
        linewidth=0,
        marker=MARKERS[run.colour],
    )
    place = np.searchsorted(RATE_EDGES, rates, side="right") - 1
    size = RATE_EDGES.size
    total = np.bincount(place, weights=many, minlength=size)
    middle = np.bincount(place, weights=many * rates, minlength=size)[total > 0] / total[total > 0]
    mean = np.bincount(place, weights=many * rollouts, minlength=size)[total > 0] / total[total > 0]
    axes.plot(middle, mean, color=colour, linewidth=2, marker=MARKERS[run.colour], ms=4, label=label)


def _rates(counter: Counter[tuple[int, int, int]]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Success rates, rollouts and number of groups, of those with a reward."""
    rows = np.array([(s / m, n, many) for (s, m, n), many in counter.items() if m], dtype=np.float64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _thirds(counter: Counter[tuple[int, int, int]]) -> str:
    rates, rollouts, many = _rates(counter)
    parts = {
        "no success": rates == 0,
        "some": (rates > 0) & (rates < 1),
        "all": rates == 1,
    }
    means = [
        f"{name} {np.average(rollouts[part], weights=many[part]):.1f}" for name, part in parts.items() if part.any()
    ]
    return "mean rollouts of prompts with " + ", ".join(means)


def draw_time_map(runs: Sequence[Run]) -> Iterator[Picture]:
    """Mean rollouts by success rate and time, a picture for each adaptive run with one scale of colours."""
    adaptive = [run for run in runs if run.adaptive and run.completions.batches]
    means = [
        np.divide(total, many, out=np.full(total.shape, np.nan), where=many > 0)
        for total, many in (run.completions.cells for run in adaptive)
    ]
    if not means:
        return
    highest = max(float(np.nanmax(one)) for one in means)
    labels = ["0", *(f"to {high:g}" for high in np.arange(1, 8) / 8), "below 1", "1"]
    for run, cells in zip(adaptive, means, strict=True):
        used = np.flatnonzero(~np.isnan(cells).all(axis=1))
        files = len(run.files.completions)
        first, last = run.completions.step_range

        def draw(axes: Axes, cells: FloatArray = cells[used], ends: tuple[int, int] = (first, last)) -> None:
            image = axes.imshow(
                cells.T, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=highest, interpolation="nearest"
            )
            axes.figure.colorbar(image, ax=axes, label="mean rollouts")
            axes.grid(False)
            axes.set_yticks(range(len(labels)), labels)
            ticks = np.linspace(0, len(cells) - 1, min(5, len(cells)))
            axes.set_xticks(ticks, [f"{step:.0f}" for step in np.linspace(*ends, len(ticks))])
            finish(axes, "success rate in the batch")

        alt = (
            f"Mean rollouts by success rate and step of {run.name}, from {first} to {last}. Over the whole run: "
            + _thirds(sum(run.completions.pairs.values(), Counter()))
        )
        name = f"allocation_over_time_{run.colour + 1}" if len(runs) > 1 else "allocation_over_time"
        caption = "Blank: no prompt had this success rate." + (
            "" if files > TIME_BINS else " A column is a completions table."
        )
        yield picture(name, label_of(run, runs, "Rollouts over the run"), caption, alt, draw)


def draw_difficulty(runs: Sequence[Run]) -> Iterator[Picture]:
    known = [(run, *run.completions.counts()) for run in runs]
    known = [one for one in known if one[1].size]
    if not known:
        return

    def draw(axes: Axes) -> None:
        width = 0.08 / len(known)
        for place, (run, successes, rollouts) in enumerate(known):
            colour = COLOURS[run.colour]
            shares = np.histogram(successes / rollouts, DIFFICULTY_BINS)[0] / successes.size
            left = DIFFICULTY_BINS[:-1] + 0.01 + place * width
            axes.bar(
                left, shares, width, align="edge", color=colour, alpha=0.45, label=label_of(run, runs, "observed")
            )
            axes.stairs(
                _shrunk(successes, rollouts),
                DIFFICULTY_BINS,
                color=colour,
                linewidth=2,
                linestyle=("-", "--")[run.colour],
                label=label_of(run, runs, "shrunk"),
            )
        axes.set_xticks(np.linspace(0, 1, 6))
        finish(axes, "share of prompts", "success rate of a prompt over the run")

    words = []
    for run, successes, rollouts in known:
        never, always = (successes == 0).mean(), (successes == rollouts).mean()
        words.append(f"{run.name}: {successes.size:,} prompts, {never:.0%} never solved, {always:.0%} always")
    caption = (
        "Bars: each prompt's successes over its rollouts, as observed. Few rollouts spread these rates too wide, and "
        "adaptive stopping bends them. Lines: shrunk, the mean of the prompts' posteriors under a Beta prior fitted "
        "to all counts, which knows of both. Both are over the whole run, while the policy changes."
    )
    yield picture("difficulty", "Difficulty of the prompts", caption, "Success rates. " + "; ".join(words), draw)


def _shrunk(successes: NDArray[np.int64], rollouts: NDArray[np.int64]) -> FloatArray:
    """Shares of the bins, by the mean of the prompts' posteriors; shape (bins,)."""
    a, b = PassCounts(successes, rollouts).fit_beta()
    pairs, many = np.unique(np.stack([successes, rollouts], axis=1), axis=0, return_counts=True)
    s, n = pairs.T[:, :, None]
    masses = np.diff(betainc(a + s, b + n - s, DIFFICULTY_BINS), axis=1)
    return np.asarray(many @ masses / many.sum())
