"""The pictures of a report. Each `draw` function returns None where the runs lack what it shows."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from ..plots import COLOURS, draw_weight_curve, logged_weight_curve, require_matplotlib, tidy
from ..simulation.pass_counts import PassCounts
from ..values import finite_array, is_number
from .completions import PHASES, RATE_EDGES, TIME_BINS
from .run import Run, smooth, smoothing_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]

_SIZE = (4.8, 3.5)  # inches: text stays readable where a page is 360 pixels wide
_DPI = 220
_LEGEND_WIDTH = 50  # characters
_MUTED = "#777777"
_MARKERS = ("o", "^")
DIFFICULTY_BINS = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True)
class Picture:
    """A drawn figure.

    Args:
        name (`str`): of its file, without the ending.
        title, caption, alt (`str`): what it shows, how to read it, and what is seen in it.
        png (`bytes`): the image.
    """

    name: str
    title: str
    caption: str
    alt: str
    png: bytes
    width: int
    height: int


def _picture(name: str, title: str, caption: str, alt: str, draw: Callable[[Axes], None]) -> Picture:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from PIL import Image

    raw = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # names of runs and rewards may hold any sign
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        tidy([axes])
        draw(axes)
        figure.savefig(raw, format="png", dpi=_DPI)
    image = Image.open(raw).convert("RGB").quantize(128)  # a third of the size, alike to the eye
    packed = io.BytesIO()
    image.save(packed, format="PNG", optimize=True)
    return Picture(name, title, caption, alt, packed.getvalue(), image.width, image.height)


def pictures(runs: Sequence[Run]) -> tuple[dict[str, list[Picture]], list[str]]:
    """All pictures by section, and what is missing and why.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    require_matplotlib()
    found: dict[str, list[Picture]] = {}
    missing: list[str] = []
    for section, draws in _SECTIONS.items():
        for draw, without in draws:
            drawn = list(draw(runs))
            found.setdefault(section, []).extend(drawn)
            missing += [without] if without and not drawn else []
    return {section: drawn for section, drawn in found.items() if drawn}, missing


# Curves over the steps


def _line(axes: Axes, run: Run, steps: FloatArray, values: FloatArray, label: str, **style: Any) -> None:
    """The smoothed values as a line, the values themselves faint behind it."""
    style = {"color": COLOURS[run.colour], "linewidth": 1.8, **style}
    if smoothing_window(values.size) > 1:
        axes.plot(steps, values, color=style["color"], linewidth=0.7, alpha=0.22)
    axes.plot(steps, smooth(values), label=label, **style)


def _finish(axes: Axes, ylabel: str, xlabel: str = "step", legend: Literal["best", "upper right"] = "best") -> None:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    labels = [textwrap.fill(label, _LEGEND_WIDTH) for label in labels]
    if len(labels) > 2 or longest > _LEGEND_WIDTH // 2:  # below the axes, where it hides nothing
        columns = 1 if longest > _LEGEND_WIDTH // 2 else 2
        axes.figure.legend(handles, labels, frameon=False, fontsize=8.5, loc="outside lower center", ncols=columns)
    elif labels:
        axes.legend(handles, labels, frameon=False, fontsize=9, loc=legend)


def _number(value: float, place: float | None = None) -> str:
    """A tick of a logarithmic axis: 0.01 and not a power of ten."""
    return f"{value:g}"


def _label(run: Run, runs: Sequence[Run], text: str) -> str:
    return f"{run.name}: {text}" if len(runs) > 1 else text


def _ends(values: FloatArray) -> str:
    """First and last fifth, in words for those who do not see the line."""
    part = max(1, values.size // 5)
    return f"{values[:part].mean():.3f} in the first fifth, {values[-part:].mean():.3f} in the last"


def draw_rewards(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = []
    for run in runs:
        lines.append((run, "each prompt once", run.reward_by_prompt(), "-"))
        if run.adaptive:
            lines.append((run, "each rollout once", run.files.series("reward"), "--"))
    lines = [line for line in lines if line[2][0].size]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, text, (steps, values), style in lines:
            _line(axes, run, steps, values, _label(run, runs, text), linestyle=style)
        _finish(axes, "mean reward")

    alt = "Mean reward over steps. " + "; ".join(f"{_label(r, runs, t)}: {_ends(v)}" for r, t, (_, v), _ in lines)
    caption = (
        "Training reward, smoothed over a twelfth of the run. An adaptive run gives some prompts more rollouts than "
        "others, so the mean over rollouts leans to those prompts; compare runs by the mean over prompts."
    )
    yield _picture("reward", "Training reward", caption, alt, draw)


def draw_held_out(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = [(run, name, *run.files.series(name)) for run in runs if (name := run.held_out())]
    lines = [line for line in lines if line[2].size]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, name, steps, values in lines:
            colour = COLOURS[run.colour]
            axes.plot(steps, values, color=colour, marker=_MARKERS[run.colour], ms=5, label=_label(run, runs, name))
        _finish(axes, "held-out result")

    alt = "Held-out results over steps. " + "; ".join(
        f"{_label(run, runs, name)}: {values[0]:.3f} at step {steps[0]:.0f}, {values[-1]:.3f} at step {steps[-1]:.0f}"
        for run, name, steps, values in lines
    )
    caption = (
        "Results on prompts that were not trained on, as the run logged them. One run: no error of a seed is known."
    )
    yield _picture("held_out", "Held-out results", caption, alt, draw)


def draw_signal(runs: Sequence[Run]) -> Iterator[Picture]:
    words = {"realised": "realised", "uniform": "equal groups, by beliefs", "bound": "bound, by beliefs"}
    lines = [(run, "realised", run.signal(), "-") for run in runs]
    for run in runs:
        if run.utility == "mixed":
            for name, style in (("uniform", "-."), ("bound", ":")):
                lines.append((run, name, run.files.series(f"adaroll/utility/{name}"), style))
    lines = [line for line in lines if line[2][0].size]
    estimated = [run for run in runs if run.adaptive and run.equal_groups]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, name, (steps, values), style in lines:
            width = 1.8 if name == "realised" else 1.0
            _line(axes, run, steps, values, _label(run, runs, words[name]), linestyle=style, linewidth=width)
        for run in estimated:
            label = _label(run, runs, "equal groups, by outcomes")
            for phase, share in run.equal_groups.items():
                ends = run.completions.phase_steps[phase]
                axes.hlines(share, *ends, color=COLOURS[run.colour], linestyle="--", linewidth=1.8, label=label)
                label = ""
        axes.set_ylim(0, 1)
        _finish(axes, "share of prompts")

    alt = "Share of prompts with signal over steps. " + "; ".join(
        f"{_label(run, runs, words[name])}: mean {values.mean():.3f}" for run, name, (_, values), _ in lines
    )
    for run in estimated:
        shares = ", ".join(f"{share:.3f}" for share in run.equal_groups.values())
        alt += f"; {_label(run, runs, 'equal groups by outcomes, in parts of the run')}: {shares}"
    caption = (
        "Prompts whose rollouts show both outcomes; the others give no gradient. By outcomes: what equal groups would "
        "show of prompts with the success rates that this run's outcomes tell of, in parts of the run. By beliefs: "
        "what the run expected beforehand (adaroll/utility/uniform and bound), which is off where its prior is."
    )
    yield _picture("signal", "Prompts with signal", caption, alt, draw)


def draw_utility(runs: Sequence[Run]) -> Iterator[Picture]:
    """The chosen utility, where it is not the share of prompts with signal."""
    styles = {"realised": "-", "planned": "-.", "uniform": "--", "bound": ":"}
    lines = [
        (run, name, *run.files.series(f"adaroll/utility/{name}"), style)
        for run in runs
        if run.utility != "mixed"
        for name, style in styles.items()
    ]
    lines = [line for line in lines if line[2].size]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, name, steps, values, style in lines:
            _line(axes, run, steps, values, _label(run, runs, name), linestyle=style)
        _finish(axes, "utility of a prompt")

    alt = "Utility per prompt over steps. " + "; ".join(
        f"{_label(r, runs, n)}: {v.mean():.3f}" for r, n, _, v, _ in lines
    )
    yield _picture("utility", "Utility against equal groups", "The utility that the run allocates by.", alt, draw)


# Where the rollouts went


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
            _finish(axes, "rollouts of the prompt", "its success rate in the batch", "upper right")

        text = f"{100 * phase // PHASES} to {100 * (phase + 1) // PHASES} % of the run"
        alt = f"Rollouts against success rate, {text}. " + "; ".join(
            f"{run.name}: {_thirds(counter)}" for run, counter in zip(runs, counters, strict=True) if counter
        )
        yield _picture(f"allocation_{phase + 1}", text, "", alt, draw)


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
        marker=_MARKERS[run.colour],
    )
    place = np.searchsorted(RATE_EDGES, rates, side="right") - 1
    size = RATE_EDGES.size
    total = np.bincount(place, weights=many, minlength=size)
    middle = np.bincount(place, weights=many * rates, minlength=size)[total > 0] / total[total > 0]
    mean = np.bincount(place, weights=many * rollouts, minlength=size)[total > 0] / total[total > 0]
    axes.plot(middle, mean, color=colour, linewidth=2, marker=_MARKERS[run.colour], ms=4, label=label)


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
            _finish(axes, "success rate in the batch")

        alt = (
            f"Mean rollouts by success rate and step of {run.name}, from {first} to {last}. Over the whole run: "
            + _thirds(sum(run.completions.pairs.values(), Counter()))
        )
        name = f"allocation_over_time_{run.colour + 1}" if len(runs) > 1 else "allocation_over_time"
        caption = "Blank: no prompt had this success rate." + (
            "" if files > TIME_BINS else " A column is a completions table."
        )
        yield _picture(name, _label(run, runs, "Rollouts over the run"), caption, alt, draw)


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
            axes.bar(left, shares, width, align="edge", color=colour, alpha=0.45, label=_label(run, runs, "observed"))
            axes.stairs(
                _shrunk(successes, rollouts),
                DIFFICULTY_BINS,
                color=colour,
                linewidth=2,
                linestyle=("-", "--")[run.colour],
                label=_label(run, runs, "shrunk"),
            )
        axes.set_xticks(np.linspace(0, 1, 6))
        _finish(axes, "share of prompts", "success rate of a prompt over the run")

    words = []
    for run, successes, rollouts in known:
        never, always = (successes == 0).mean(), (successes == rollouts).mean()
        words.append(f"{run.name}: {successes.size:,} prompts, {never:.0%} never solved, {always:.0%} always")
    caption = (
        "Bars: each prompt's successes over its rollouts, as observed. Few rollouts spread these rates too wide, and "
        "adaptive stopping bends them. Lines: shrunk, the mean of the prompts' posteriors under a Beta prior fitted "
        "to all counts, which knows of both. Both are over the whole run, while the policy changes."
    )
    yield _picture("difficulty", "Difficulty of the prompts", caption, "Success rates. " + "; ".join(words), draw)


def _shrunk(successes: NDArray[np.int64], rollouts: NDArray[np.int64]) -> FloatArray:
    """Shares of the bins, by the mean of the prompts' posteriors; shape (bins,)."""
    a, b = PassCounts(successes, rollouts).fit_beta()
    pairs, many = np.unique(np.stack([successes, rollouts], axis=1), axis=0, return_counts=True)
    s, n = pairs.T[:, :, None]
    masses = np.diff(betainc(a + s, b + n - s, DIFFICULTY_BINS), axis=1)
    return np.asarray(many @ masses / many.sum())


# What the update sees, beliefs, time


def draw_weights(runs: Sequence[Run]) -> Iterator[Picture]:
    curves, colours = {}, []
    for run in runs:
        numbers = (
            {k: value for k, value in entry.items() if is_number(value)} for entry in reversed(run.files.history)
        )
        newest = next((entry for entry in numbers if any("prompt_weight/curve/" in name for name in entry)), None)
        if newest is not None:
            curves[_label(run, runs, f"at step {newest.get('step', '?')}")] = logged_weight_curve(newest)
            colours.append(COLOURS[run.colour])
    if not curves:
        return

    def draw(axes: Axes) -> None:
        draw_weight_curve(axes, curves, title="", colours=colours)
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        axes.yaxis.set_major_formatter(_number)
        axes.yaxis.set_minor_formatter(_number)
        _finish(axes, "weight w(p)", "pass rate p")

    alt = "Weight of the update by pass rate. " + "; ".join(
        f"{name}: " + ", ".join(f"{weight:.2f} at {rate:.2f}" for rate, weight in zip(*curve, strict=True))
        for name, curve in curves.items()
    )
    caption = (
        "w(p): how much the update leans to prompts of pass rate p, over its average. 1 everywhere is GRPO with "
        "unscaled advantages. The option prompt_weighting changes it."
    )
    yield _picture("weights", "Realised prompt weights w(p)", caption, alt, draw)


def draw_calibration(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = []
    for run in runs:
        bins = _calibration_bins(run.files.state)
        if bins.any():
            lines.append((run, bins[bins[:, 0] > 0]))
    if not lines:
        return

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=_MUTED, linestyle="--", linewidth=1)
        for run, bins in lines:
            rollouts, predicted, successes = bins.T
            colour, mark = COLOURS[run.colour], _MARKERS[run.colour]
            axes.plot(predicted / rollouts, successes / rollouts, color=colour, linewidth=1)
            size = 15 + 150 * rollouts / rollouts.max()
            axes.scatter(predicted / rollouts, successes / rollouts, s=size, color=colour, marker=mark, label=run.name)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        _finish(axes, "what came", "predicted chance of a success")

    words = [
        f"{run.name}: " + ", ".join(f"{s / n:.2f} came of {q / n:.2f} predicted" for n, q, s in bins)
        for run, bins in lines
    ]
    caption = (
        "Beliefs carried from earlier visits against the outcomes of each batch's first round, from the newest "
        "checkpoint; the size is the number of rollouts. On the diagonal beliefs are right."
    )
    yield _picture("calibration", "Beliefs against outcomes", caption, "Calibration. " + "; ".join(words), draw)


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
            label = _label(run, runs, name.removeprefix("adaroll/"))
            axes.plot(steps[kept], values[kept], color=colour, linestyle=style, linewidth=1.4, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_number)
        _finish(axes, "seconds")

    alt = "Seconds over steps. " + "; ".join(
        f"{_label(run, runs, name)}: median {np.median(values):.3g} s" for run, name, _, values, _ in lines
    )
    caption = (
        "step_time is that of an optimiser step, with its generation where one falls into it; time/... are parts of a "
        "generation batch. The first batch compiles and builds tables."
    )
    yield _picture("time", "Time", caption, alt, draw)


_Draw = Callable[[Sequence[Run]], Iterator[Picture]]
_LOG = "completions with rewards (log_completions=True)"
_SECTIONS: dict[str, tuple[tuple[_Draw, str], ...]] = {
    "Learning": (
        (draw_rewards, "Training reward: there is no trainer_state.json, or nothing is logged in it yet."),
        (draw_held_out, "Held-out results: the log has none (no evaluation while training)."),
    ),
    "Signal and difficulty": (
        (draw_signal, "Prompts with signal: neither a log nor completions tell of them."),
        (draw_utility, ""),
        (draw_difficulty, f"Difficulty: it needs {_LOG}."),
    ),
    "Where the rollouts went": (
        (draw_phases, f"Rollouts against success rate: they need {_LOG} of a run with unequal groups."),
        (draw_time_map, ""),
    ),
    "Weights, beliefs, time": (
        (
            draw_weights,
            "Prompt weights: AdaRoll's trainer logs them (adaroll/prompt_weight/curve); this log has none.",
        ),
        (
            draw_calibration,
            "Beliefs: they need a checkpoint of AdaRoll's trainer with belief_decay above 0, or with a prior_column.",
        ),
        (draw_time, "Time: the log has neither step_time nor adaroll/time."),
    ),
}
