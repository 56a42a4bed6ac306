"""The page of the learning benchmark: tables of paired differences, what explains them, and pictures."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from design import CONFIRM, SEEDS, STAGES
from differences import Cells, arms_of, baseline, cell_text, difference, table
from explanations import diagnostics, kappa, kappa_in_training, weights
from planned import GRPO, complete, planned_arms, planned_runs, tables
from regimes import REGIMES
from summary import (
    HARD,
    PASS_K,
    Run,
    area,
    by_cell,
    compare,
    curve,
    final,
    final_hard,
    final_pass_at_k,
    half_way,
    hard_levels,
    read_runs,
    rollouts_to,
    starts_of,
)
from verdict import against_control, fallen, verdict

HEAD = """# The learning benchmark

Does adaptive allocation learn more from the same number of rollouts? Printed from the stored runs by
`python benchmarks/learning/run.py --report-only`; the runs are made by `python benchmarks/learning/run.py` (2 CPU
cores, 24 GiB, no GPU). What was run, and why, was written down beforehand:
[PLAN.md](../../benchmarks/learning/PLAN.md). Each run is a file in [learning/](learning/).

Read the tables like this: a number is the mean over paired seeds of an arm less GRPO at the same number of rollouts,
± half the 95 % interval (Student's t over seeds). **Bold** where the interval that holds for all planned arms of the
table at once (Bonferroni) does not contain 0 either, in tables whose runs are complete; anything else is not a
finding. Accuracies are in percentage points. Processor time is of whole trainings, wall clock the median of a step, on
cores that other work shared: rough figures, the second more so.
"""


def write_report(results: Path) -> None:
    runs = read_runs(results)
    if not runs:
        print(f"nothing is stored in {results}")
        return
    starts_of(runs)  # pairs are pairs
    text = page(runs, results)
    results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    try:
        from picture import draw
    except ImportError:
        return
    draw(by_cell(runs), results.with_suffix(".png"))


def page(runs: Sequence[Run], results: Path) -> str:
    """Of the runs that are stored in `results`, in Markdown."""
    return "\n".join([HEAD, *_parts(runs, results)]) + "\n"


def _parts(runs: Sequence[Run], results: Path) -> Iterator[str]:
    cells = by_cell(runs)
    seeds = {len(of) for of in cells.values()}
    hours = sum(run["cpu_seconds"] for run in runs) / 3600
    of = f"{len(runs)} runs of {len(cells)} cells, {min(seeds)} to {max(seeds)} seeds each"
    planned = planned_runs()
    yield (
        f"{of}, {hours:.1f} hours of processor time; printed on {datetime.date.today()}. "
        f"Stages `{'`, `'.join(STAGES)}` are {len(planned)} runs."
    )
    if not all(complete(cells, *due) for due in tables()):
        done, rest = (
            [name for name in REGIMES if complete(cells, name, "") == whether] or ["none"] for whether in (True, False)
        )
        yield f"\n**Complete at the base point: {', '.join(done)}. Under way, and no verdict yet: {', '.join(rest)}.**"
    yield "\n![Learning curves](learning.png)\n" if results.with_suffix(".png").exists() else ""
    yield from verdict(cells)
    yield from fallen(cells)
    yield from _regimes(cells)
    yield from _gain(cells)
    for name in REGIMES:
        yield from _arms(cells, name)
    for factor in factors(cells):
        yield from _factor(cells, factor)
    yield from against_control(cells)
    yield from diagnostics(cells)
    yield from weights(cells)
    yield from kappa(results / "kappa.json")
    yield from kappa_in_training(cells)


def factors(cells: Cells) -> list[str]:
    """What was changed from the base point for any arm besides GRPO."""
    return sorted({factor for _, arm, factor in cells if factor and arm != GRPO})


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
    yield from table(
        ["regime", "pass@1 before", "after GRPO", f"held-out prompts of hard levels (below {HARD})"], rows
    )


def _gain(cells: Cells) -> Iterator[str]:
    yield "## Do more rollouts help GRPO?\n"
    yield (
        "Final pass@1 with half and with twice the rollouts a prompt, less that with 8; same prompts, same number of "
        "steps. Bold as above, for the two columns of a regime.\n"
    )
    sizes = ("G4", "G16")
    rows = []
    for regime in REGIMES:
        base = cells.get((regime, GRPO, ""), {})
        row = [regime]
        for factor in sizes:
            of = cells.get((regime, GRPO, factor), {})
            finished = len(of) == len(base) == len(SEEDS)
            row.append(cell_text(compare(of, base, final, len(sizes)), 100, finished=finished) if base else "")
        rows.append(row)
    yield from table(["regime", "4 rollouts", "16 rollouts"], rows)


def _arms(cells: Cells, regime: str) -> Iterator[str]:
    grpo, arms = cells.get((regime, GRPO, ""), {}), arms_of(cells, regime)
    if not grpo or not arms:
        return
    yield f"## {regime}: {REGIMES[regime].description}\n"
    yield from _comparison(cells, regime, "", grpo, arms)


def _comparison(cells: Cells, regime: str, factor: str, grpo: Mapping[int, Run], arms: Sequence[str]) -> Iterator[str]:
    outcomes = _outcomes(cells, regime, grpo)
    # An arm that was stopped early is shown and is no finding, however near to each other its seeds are
    finished = planned_arms(regime, factor) if complete(cells, regime, factor) else []
    rows = []
    late = 0
    for arm in arms:
        of = cells[regime, arm, factor]
        texts = [
            cell_text(difference(cells, regime, arm, factor, outcome), scale, digits, arm in finished)
            for _, outcome, scale, digits in outcomes
        ]
        slower = [_times(of, grpo, key) for key in ("cpu_seconds", "step_seconds")]
        late += sum(curve(of[seed])[1].max() < half_way(grpo[seed]) for seed in of if seed in grpo)
        rows.append([f"`{arm}`", str(len(of)), *texts, *slower])
    heads = ["arm", "seeds", *(o[0] for o in outcomes), "processor time / GRPO", "wall clock / GRPO"]
    yield from table(heads, rows)
    if late:
        yield f"Runs that never got half-way, and count with all their rollouts there: {late}.\n"


def _times(arm: Mapping[int, Run], grpo: Mapping[int, Run], key: str) -> str:
    """The geometric mean over seeds of the ratio of a time; what was stored without it is passed over."""
    ratios = [np.log(arm[seed][key] / grpo[seed][key]) for seed in arm if seed in grpo and key in arm[seed]]
    return f"{np.exp(np.mean(ratios)):.2f}" if ratios else ""


def _factor(cells: Cells, factor: str) -> Iterator[str]:
    again = "Again, with seeds on which nothing was chosen"
    yield f"## {again if factor == CONFIRM else f'One factor changed: {factor}'}\n"
    for regime in REGIMES:
        arms = arms_of(cells, regime, factor)
        if not arms:
            continue
        yield f"{regime}:\n"
        yield from _comparison(cells, regime, factor, baseline(cells, regime, factor), arms)
