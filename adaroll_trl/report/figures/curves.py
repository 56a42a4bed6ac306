"""Rewards, held-out results, signal and utility over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...plots import COLOURS
from ..run import Run
from .drawing import MARKERS, Picture, draw_line, ends_of, finish, label_of, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
            draw_line(axes, run, steps, values, label_of(run, runs, text), linestyle=style)
        finish(axes, "mean reward")

    alt = "Mean reward over steps. " + "; ".join(f"{label_of(r, runs, t)}: {ends_of(v)}" for r, t, (_, v), _ in lines)
    caption = (
        "Training reward, smoothed over a twelfth of the run. An adaptive run gives some prompts more rollouts than "
        "others, so the mean over rollouts leans to those prompts; compare runs by the mean over prompts."
    )
    yield picture("reward", "Training reward", caption, alt, draw)


def draw_held_out(runs: Sequence[Run]) -> Iterator[Picture]:
    lines = [(run, name, *run.files.series(name)) for run in runs if (name := run.held_out())]
    lines = [line for line in lines if line[2].size]
    if not lines:
        return

    def draw(axes: Axes) -> None:
        for run, name, steps, values in lines:
            colour = COLOURS[run.colour]
            axes.plot(steps, values, color=colour, marker=MARKERS[run.colour], ms=5, label=label_of(run, runs, name))
        finish(axes, "held-out result")

    alt = "Held-out results over steps. " + "; ".join(
        f"{label_of(run, runs, name)}: {values[0]:.3f} at step {steps[0]:.0f}, "
        f"{values[-1]:.3f} at step {steps[-1]:.0f}"
        for run, name, steps, values in lines
    )
    caption = (
        "Results on prompts that were not trained on, as the run logged them. One run: no error of a seed is known."
    )
    yield picture("held_out", "Held-out results", caption, alt, draw)


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
            draw_line(axes, run, steps, values, label_of(run, runs, words[name]), linestyle=style, linewidth=width)
        for run in estimated:
            label = label_of(run, runs, "equal groups, by outcomes")
            for phase, share in run.equal_groups.items():
                ends = run.completions.phase_steps[phase]
                axes.hlines(share, *ends, color=COLOURS[run.colour], linestyle="--", linewidth=1.8, label=label)
                label = ""
        axes.set_ylim(0, 1)
        finish(axes, "share of prompts")

    alt = "Share of prompts with signal over steps. " + "; ".join(
        f"{label_of(run, runs, words[name])}: mean {values.mean():.3f}" for run, name, (_, values), _ in lines
    )
    for run in estimated:
        shares = ", ".join(f"{share:.3f}" for share in run.equal_groups.values())
        alt += f"; {label_of(run, runs, 'equal groups by outcomes, in parts of the run')}: {shares}"
    caption = (
        "Prompts whose rollouts show both outcomes; the others give no gradient. By outcomes: what equal groups would "
        "show of prompts with the success rates that this run's outcomes tell of, in parts of the run. By beliefs: "
        "what the run expected beforehand (adaroll/utility/uniform and bound), which is off where its prior is."
    )
    yield picture("signal", "Prompts with signal", caption, alt, draw)


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
            draw_line(axes, run, steps, values, label_of(run, runs, name), linestyle=style)
        finish(axes, "utility of a prompt")

    alt = "Utility per prompt over steps. " + "; ".join(
        f"{label_of(r, runs, n)}: {v.mean():.3f}" for r, n, _, v, _ in lines
    )
    yield picture("utility", "Utility against equal groups", "The utility that the run allocates by.", alt, draw)
