"""The tables of the reports, as Markdown, from the figures of stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from summary import ARMS, MINIMUM, Run, arms_of, by_visit, cost, groups_of, signal, signal_difference

from adaroll_trl.evaluation.statistics import Estimate
from adaroll_trl.markdown import markdown_table


def compared(runs: Mapping[int, Mapping[str, Run]]) -> str:
    """The name of what GRPO is compared with."""
    return ARMS[arms_of(runs)[1]]


def interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """With the first `texts` columns on the left."""
    return "\n".join(markdown_table(header, rows, texts))


def kind_table(arms: Sequence[str], kinds: Mapping[str, Mapping[str, float]]) -> str:
    header = ["kind", "held out", "before"]
    header += [f"{ARMS[arm]}: {what}" for what in ("after", "rollouts each", "with signal") for arm in arms]
    rows = []
    for kind, row in sorted(kinds.items(), key=lambda item: item[1]["before"]):
        cells = [f"`{kind}`", f"{row['problems']:.0f}", f"{row['before']:.2f}"]
        cells += [f"{row[f'{arm} after']:.2f}" for arm in arms]
        cells += [_number(row[f"{arm} rollouts"]) for arm in arms]
        cells += ["-" if np.isnan(row[f"{arm} signal"]) else f"{100 * row[f'{arm} signal']:.0f} %" for arm in arms]
        rows.append(cells)
    return table(header, rows)


def columns_of(runs: Mapping[int, Mapping[str, Run]]) -> tuple[list[str], list[Run]]:
    names = [f"{ARMS[arm]}, seed {seed}" for seed, arms in runs.items() for arm in arms]
    return names, [run for arms in runs.values() for run in arms.values()]


def signal_table(runs: Mapping[int, Mapping[str, Run]]) -> str:
    names, columns = columns_of(runs)
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
    paired = [f"seed {seed}: {signed(signal_difference(*arms.values()))}" for seed, arms in runs.items()]
    return (
        table(["", *names], rows)
        + f"\n\nShare of prompts with signal, {compared(runs)} minus GRPO, paired by step and prompt, with 95 % "
        + "intervals: "
        + "; ".join(paired)
        + "."
    )


def visit_part(runs: Mapping[int, Mapping[str, Run]]) -> list[str]:
    """What the visits before it are worth to a visit; nothing where no prompt comes back."""
    figures = {arm: [by_visit(arms[arm]) for arms in runs.values()] for arm in arms_of(runs)}
    visits = len(figures["grpo"][0])
    if visits == 1:
        return []
    columns = {
        f"{ARMS[arm]}: {what}": [
            f"{100 * np.mean([run[visit][key] for run in of_arm]):.1f} %" for visit in range(visits)
        ]
        for key, what in (
            ("mixed", "prompts with signal"),
            ("rollouts_in_mixed", "rollouts in groups with signal"),
            ("at_minimum", f"prompts with at most {MINIMUM} rollouts"),
        )
        for arm, of_arm in figures.items()
        if not (arm == "grpo" and key == "at_minimum")
    }
    rows = [[str(visit + 1), *(column[visit] for column in columns.values())] for visit in range(visits)]
    return [
        "## By visit\n\nMean over seeds. At a prompt's first visit nothing is known of it.\n\n"
        + table(["visit", *columns], rows)
    ]


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1f}"


def _rate(run: Run, few: int) -> tuple[float, float]:
    """Success rate over prompts, each counting once, of the first and of the last few steps."""
    groups = groups_of(run)
    steps, drawn = np.unique(groups["step"]), groups["rollouts"] > 0
    first, last = (drawn & np.isin(groups["step"], chosen) for chosen in (steps[:few], steps[-few:]))
    first, last = (float((groups["successes"][rows] / groups["rollouts"][rows]).mean()) for rows in (first, last))
    return first, last


def cost_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    """`before`: what was sampled apart from the runs."""
    names, columns = columns_of(runs)
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
