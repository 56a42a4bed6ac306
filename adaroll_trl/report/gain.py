"""Two finished runs as a point of relative gain against entropy, see `adaroll_trl.simulation.entropy`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from ..simulation.entropy import GainPoint, measured_gain
from ..simulation.measured import Measured, mean_of
from ..simulation.pass_counts import PassCounts
from .run import Run, load_runs

_LAST = 0.1  # of a log: the share of its entries that a metric is averaged over


def gain_of_runs(
    grpo: Path | str,
    adaroll: Path | str,
    *,
    metric: str | None = None,
    label: str | None = None,
    fit: str = "beta",
    bins: int = 10,
) -> GainPoint:
    """The gain of a run over one with equal groups, against the entropy of the latter's pass rates.

    What counts as a success is read from the runs' settings, as for `adaroll report`.

    Args:
        grpo, adaroll (`Path` or `str`): `output_dir` of the run with equal groups, and of the other. Both need their
            completions (`log_completions=True`): a prompt's pass rate is that of all its completions.
        metric (`str`, *optional*): a number in the trainers' logs, such as `"eval_reward"`; its mean over the last
            tenth of the entries is compared, with errors as if they were independent. None compares the share of
            groups with both outcomes.
        label (`str`, *optional*): of the point. None names the runs.
        fit (`str`), bins (`int`): of the pass rates (`PassCounts.difficulty`) and their entropy.

    Raises:
        ValueError: if a folder holds no run, or a run no completions or no such number.
    """
    runs = load_runs([Path(grpo), Path(adaroll)])
    for run in runs:
        if not run.completions.counts()[0].size:
            raise ValueError(
                f"{run.files.folder} has no completions with rewards, which tell how hard its prompts were: train "
                "with log_completions=True."
            )
    base, other = (_signal(run) if metric is None else _last_values(run, metric) for run in runs)
    counts = PassCounts(*runs[0].completions.counts())
    return measured_gain(label or f"{runs[1].name} / {runs[0].name}", counts, base, other, fit, bins)


def _signal(run: Run) -> Measured:
    """Share of groups with both outcomes among those with a reward; groups taken as independent."""
    groups: Counter[bool] = Counter()
    for pairs in run.completions.pairs.values():
        for (successes, scored, _), many in pairs.items():
            groups[0 < successes < scored] += many if scored else 0
    return mean_of(np.repeat([0.0, 1.0], [groups[False], groups[True]]))


def _last_values(run: Run, metric: str) -> Measured:
    values = run.files.series(metric)[1]
    if not values.size:
        known = ", ".join(run.files.names(".*(reward|accuracy|pass@|adaroll/frac).*")) or "none like it"
        raise ValueError(f"{run.files.folder} has never logged {metric!r}; it has {known}.")
    last = values[-max(2, round(_LAST * values.size)) :]
    return mean_of(last) if last.size > 1 else Measured(float(last[0]))
