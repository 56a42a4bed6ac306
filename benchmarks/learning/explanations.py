"""What explains the comparisons: signal, effective rollouts, realised weights, kappa."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from differences import Cells, arms_of, table
from planned import GRPO
from regimes import REGIMES
from summary import group_sums, weight_by_level

SHOWN_LENGTHS = {"H": (3, 6, 9, 12, 14), "U": (3, 4, 5, 13, 14), "HH": (12, 13, 14)}


def diagnostics(cells: Cells) -> Iterator[str]:
    yield "## What explains it\n"
    yield (
        "Means over seeds. Effective rollouts: (sum of absolute advantages)^2 over the sum of their squares, as a "
        "share of the batch's rollouts. The gradient norm is before clipping at 1. Prompts a step: those with "
        "rollouts.\n"
    )
    rows = []
    for regime in REGIMES:
        for arm in [GRPO, *arms_of(cells, regime)]:
            sums = [group_sums(run) for run in cells.get((regime, arm, ""), {}).values()]
            if not sums:
                continue
            mean = {key: float(np.mean([one[key] for one in sums])) for key in sums[0]}
            rows.append(
                [
                    f"{regime} `{arm}`",
                    *(
                        f"{100 * mean[key]:.0f} %"
                        for key in ("mixed prompts", "rollouts with signal", "effective rollouts")
                    ),
                    f"{mean['gradient norm']:.2f}",
                    f"{mean['prompts a step']:.1f}",
                ]
            )
    heads = ["arm", "prompts with signal", "rollouts with signal", "effective rollouts", "gradient norm"]
    heads += ["prompts a step"]
    yield from table(heads, rows)


def weights(cells: Cells) -> Iterator[str]:
    yield "## Realised prompt weights\n"
    yield (
        "E[s f / n] by length of the strings, over that of GRPO's equal groups with the same seed, in the first third "
        "of the training, where the policies differ little: w(p) in units of GRPO's. Before `prompt_weighting`, which "
        "multiplies it.\n"
    )
    for regime in REGIMES:
        lengths = SHOWN_LENGTHS[regime.removesuffix("R")]
        grpo = {seed: weight_by_level(run) for seed, run in cells.get((regime, GRPO, ""), {}).items()}
        rows = []
        for arm in arms_of(cells, regime):
            own = {seed: weight_by_level(run) for seed, run in cells[regime, arm, ""].items() if seed in grpo}
            row = [f"{regime} `{arm}`"]
            for length in lengths:  # one that no prompt of a short trial had is left out
                pairs = [(found.get(length), grpo[seed].get(length)) for seed, found in own.items()]
                ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
                row.append(f"{np.mean(ratios):.2f}" if ratios else "")
            rows.append(row)
        if rows:
            yield from table(["arm", *(f"{length} digits" for length in lengths)], rows)


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.1f}"


def kappa(path: Path) -> Iterator[str]:
    if not path.exists():
        return
    yield "## kappa at the start\n"
    yield (
        "The noise of one rollout against the spread between prompts, from exact gradients "
        "(`python benchmarks/learning/kappa.py`), with its interval of about 95 %; with Adam's scaling of the "
        "parameters approximated in the last column.\n"
    )
    rows = [
        [
            f"{one['regime']}, seed {one['seed']}",
            f"{one['pass_rate']:.2f}",
            f"{100 * one['below_0.1']:.0f} %",
            f"{100 * one['above_0.9']:.0f} %",
            *("{} [{}, {}]".format(*map(_number, one[key])) for key in ("kappa", "kappa_adam")),
        ]
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]
    yield from table(["start", "pass rate", "prompts below .1", "above .9", "kappa", "kappa, scaled"], rows)


def kappa_in_training(cells: Cells) -> Iterator[str]:
    """What `kappa_every` measured on the way, where an arm asked for it."""
    rows = [
        [f"{regime} `{arm}` {factor}".strip(), str(seed), ", ".join(f"{one:g}" for one in run["kappa"])]
        for (regime, arm, factor), of in cells.items()
        for seed, run in sorted(of.items())
        if run.get("kappa")
    ]
    if rows:
        yield "## kappa in training\n"
        yield "As `kappa_every` measured it, in the order of the steps.\n"
        yield from table(["arm", "seed", "kappa"], rows)
