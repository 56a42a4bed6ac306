"""The page of the learning benchmark: tables of paired differences, what explains them, and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from design import SEEDS, STAGES
from regimes import REGIMES
from summary import (
    FEWEST,
    HARD,
    PASS_K,
    Difference,
    Run,
    area,
    by_cell,
    compare,
    curve,
    final,
    final_hard,
    final_pass_at_k,
    group_sums,
    half_way,
    hard_levels,
    read_runs,
    rollouts_to,
    weight_by_level,
)

from adaroll_trl.markdown import markdown_table

Cells = Mapping[tuple[str, str, str], Mapping[int, Run]]
GRPO = "grpo"

HEAD = """# The learning benchmark

Does adaptive allocation learn more from the same number of rollouts? Printed from the stored runs by
`python benchmarks/learning/run.py --report-only`; the runs are made by `python benchmarks/learning/run.py` (2 CPU
cores, 24 GiB, no GPU). What was run, and why, was written down beforehand:
[PLAN.md](../../benchmarks/learning/PLAN.md). Each run is a file in [learning/](learning/).

Read the tables like this: a number is the mean over paired seeds of an arm less GRPO at the same number of rollouts,
± half the 95 % interval (Student's t over seeds). **Bold** where the interval that holds for all arms of the table at
once (Bonferroni) does not contain 0 either, from four seeds on; anything else is not a finding. Accuracies are in
percentage points. Processor time is of whole trainings, on cores that other work shared: a rough figure.
"""


def write_report(results: Path) -> None:
    runs = read_runs(results)
    if not runs:
        print(f"nothing is stored in {results}")
        return
    page = results.with_suffix(".md")
    text = "\n".join([HEAD, *_page(runs, results)]) + "\n"
    page.write_text(text, encoding="utf-8")
    print(text)
    try:
        from picture import draw
    except ImportError:
        return
    draw(by_cell(runs), results.with_suffix(".png"))


def _page(runs: Sequence[Run], results: Path) -> Iterator[str]:
    cells = by_cell(runs)
    seeds = {len(of) for of in cells.values()}
    hours = sum(run["cpu_seconds"] for run in runs) / 3600
    of = f"{len(runs)} runs of {len(cells)} cells, {min(seeds)} to {max(seeds)} seeds each"
    planned = len({(cell.name, seed) for stage in STAGES.values() for cell in stage for seed in SEEDS})
    yield f"{of}, {hours:.1f} hours of processor time. Stages `{'`, `'.join(STAGES)}` are {planned} runs."
    if len(runs) < planned:
        stored = {(cell, seed) for cell, of in cells.items() for seed in of}
        due: dict[str, set[Any]] = {name: set() for name in REGIMES}
        for cell in (cell for stage in STAGES.values() for cell in stage):
            due[cell.regime] |= {((cell.regime, cell.arm, cell.factor), seed) for seed in SEEDS}
        complete = [name for name, cells_due in due.items() if cells_due <= stored]
        rest = [name for name in due if name not in complete]
        yield f"\n**Complete: {', '.join(complete) or 'none'}. Under way, and no verdict yet: {', '.join(rest)}.**"
    yield "\n![Learning curves](learning.png)\n" if results.with_suffix(".png").exists() else ""
    yield from _verdict(cells)
    yield from _regimes(cells)
    yield from _gain(cells)
    for name in REGIMES:
        yield from _arms(cells, name)
    for factor in _factors(cells):
        yield from _factor(cells, factor)
    yield from _diagnostics(cells)
    yield from _weights(cells)
    yield from _kappa(results / "kappa.json")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(heads, rows)
    yield ""


def _cell_text(difference: Difference, scale: float, digits: int = 1) -> str:
    if difference.seeds == 0 or not np.isfinite(difference.mean):
        return ""
    mean = f"{scale * difference.mean:+.{digits}f}"
    text = f"{mean} ± {scale * difference.half:.{digits}f}" if difference.seeds > 1 else f"{mean} (one seed)"
    return f"**{text}**" if difference.found else text


def _arms_of(cells: Cells, regime: str, factor: str = "") -> list[str]:
    return [arm for r, arm, f in cells if r == regime and f == factor and arm != GRPO]


def _factors(cells: Cells) -> list[str]:
    """What was changed from the base point for any arm besides GRPO."""
    return sorted({factor for _, arm, factor in cells if factor and arm != GRPO})


def _baseline(cells: Cells, regime: str, factor: str) -> Mapping[int, Run]:
    """GRPO's runs to compare with: those of the base point where it does not know the factor (rounds, minimum)."""
    return cells.get((regime, GRPO, factor)) or cells.get((regime, GRPO, ""), {})


def _hard(cells: Cells, regime: str) -> Any:
    runs = [run for key, of in cells.items() if key[0] == regime for run in of.values()]
    return hard_levels(runs, np.array([problem.level for problem in REGIMES[regime].held_out()]))


def _outcomes(
    cells: Cells, regime: str, grpo: Mapping[int, Run]
) -> list[tuple[str, Callable[[Run], float], float, int]]:
    """Heading, outcome, scale and digits."""
    return [
        ("final pass@1", final, 100, 1),
        ("area under the curve", area, 100, 1),
        ("hard levels", final_hard(_hard(cells, regime)), 100, 1),
        (f"pass@{PASS_K}", final_pass_at_k, 100, 1),
        ("thousand rollouts to half-way", lambda run: rollouts_to(run, half_way(grpo[run["seed"]])), 1, 1),
    ]


def _verdict(cells: Cells) -> Iterator[str]:
    """What the simultaneous intervals say about the primary outcomes, in words."""
    better, worse, total = [], [], 0
    for regime in REGIMES:
        for factor in ("", *_factors(cells)):
            grpo, arms = _baseline(cells, regime, factor), _arms_of(cells, regime, factor)
            for arm in arms:
                for label, outcome in (("final pass@1", final), ("area", area)):
                    difference = compare(cells[regime, arm, factor], grpo, outcome, len(arms))
                    if difference.seeds < FEWEST:
                        continue
                    total += 1
                    name = (
                        f"`{arm}` in {regime}{f' ({factor})' if factor else ''}: {label} {100 * difference.mean:+.1f}"
                    )
                    if difference.found:
                        (better if difference.mean > 0 else worse).append(name)
    yield "## Verdict\n"
    yield (
        f"Of {total} comparisons with GRPO (final pass@1 and area under the curve), after correction for the "
        "arms of a table:\n"
    )
    yield f"- better than GRPO: {'; '.join(better) or 'none'}."
    yield f"- worse than GRPO: {'; '.join(worse) or 'none'}.\n"


def _regimes(cells: Cells) -> Iterator[str]:
    yield "## Regimes\n"
    rows = []
    for name, regime in REGIMES.items():
        grpo = cells.get((name, GRPO, ""), {})
        if not grpo:
            continue
        curves = np.array([curve(run)[1] for run in grpo.values()])
        start = [np.mean([100 * curves[:, 0]]), np.mean([100 * curves[:, -1]])]
        hard = _hard(cells, name).mean()
        rows.append([f"{name}: {regime.description}", f"{start[0]:.1f}", f"{start[1]:.1f}", f"{100 * hard:.0f} %"])
    yield from _table(
        ["regime", "pass@1 before", "after GRPO", f"held-out prompts of hard levels (below {HARD})"], rows
    )


def _gain(cells: Cells) -> Iterator[str]:
    yield "## Do more rollouts help GRPO?\n"
    yield (
        "Final pass@1 with half and with twice the rollouts a prompt, less that with 8; same prompts, same number of "
        "steps.\n"
    )
    rows = []
    for regime in REGIMES:
        base = cells.get((regime, GRPO, ""), {})
        row = [regime]
        for factor in ("G4", "G16"):
            of = cells.get((regime, GRPO, factor), {})
            row.append(_cell_text(compare(of, base, final, 1), 100) if base else "")
        rows.append(row)
    yield from _table(["regime", "4 rollouts", "16 rollouts"], rows)


def _arms(cells: Cells, regime: str) -> Iterator[str]:
    grpo, arms = cells.get((regime, GRPO, ""), {}), _arms_of(cells, regime)
    if not grpo or not arms:
        return
    yield f"## {regime}: {REGIMES[regime].description}\n"
    yield from _comparison(cells, regime, "", grpo, arms)


def _comparison(cells: Cells, regime: str, factor: str, grpo: Mapping[int, Run], arms: Sequence[str]) -> Iterator[str]:
    outcomes = _outcomes(cells, regime, grpo)
    rows = []
    for arm in arms:
        of = cells[regime, arm, factor]
        texts = [
            _cell_text(compare(of, grpo, outcome, len(arms)), scale, digits) for _, outcome, scale, digits in outcomes
        ]
        ratio = [np.log(of[seed]["cpu_seconds"] / grpo[seed]["cpu_seconds"]) for seed in of if seed in grpo]
        slower = f"{np.exp(np.mean(ratio)):.2f}" if ratio else ""
        rows.append([f"`{arm}`", str(len(of)), *texts, slower])
    yield from _table(["arm", "seeds", *(o[0] for o in outcomes), "processor time / GRPO"], rows)


def _factor(cells: Cells, factor: str) -> Iterator[str]:
    yield f"## One factor changed: {factor}\n"
    for regime in REGIMES:
        arms = _arms_of(cells, regime, factor)
        if not arms:
            continue
        yield f"{regime}:\n"
        yield from _comparison(cells, regime, factor, _baseline(cells, regime, factor), arms)


def _diagnostics(cells: Cells) -> Iterator[str]:
    yield "## What explains it\n"
    yield (
        "Means over seeds. Effective rollouts: (sum of absolute advantages)^2 over the sum of their squares, as a "
        "share of the batch's rollouts. The gradient norm is before clipping at 1.\n"
    )
    rows = []
    for regime in REGIMES:
        for arm in [GRPO, *_arms_of(cells, regime)]:
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
                    *(f"{mean[key]:.2f}" for key in ("gradient norm", "step seconds")),
                ]
            )
    heads = ["arm", "prompts with signal", "rollouts with signal", "effective rollouts", "gradient norm", "step, s"]
    yield from _table(heads, rows)


def _weights(cells: Cells) -> Iterator[str]:
    yield "## Realised prompt weights\n"
    yield (
        "w = E[s f / n] / (p (1 - p)) in the first third of the training in H, by length; GRPO's equal groups of 8 "
        "have 7. Before `prompt_weighting`, which multiplies it.\n"
    )
    lengths = (3, 6, 9, 12, 14)
    rows = []
    for arm in [GRPO, *_arms_of(cells, "H")]:
        weights = [weight_by_level(run) for run in cells.get(("H", arm, ""), {}).values()]
        row = [f"`{arm}`"]
        for length in lengths:
            found = [one[length] for one in weights if length in one]
            row.append(
                f"{np.mean([w for _, w in found]):.1f} (p {np.mean([p for p, _ in found]):.2f})" if found else ""
            )
        rows.append(row)
    yield from _table(["arm", *(f"{length} digits" for length in lengths)], rows)


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.1f}"


def _kappa(path: Path) -> Iterator[str]:
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
    yield from _table(["start", "pass rate", "prompts below .1", "above .9", "kappa", "kappa, scaled"], rows)
