"""The figures of stored runs: what was trained on, what it cost, and held-out accuracy with intervals. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adaroll_trl.evaluation.statistics import Estimate, mean_interval, paired_difference, pass_at_k

ARMS = {"grpo": "GRPO", "adaroll": "AdaRoll-GRPO", "progress_carry": "AdaRoll-GRPO (progress)"}  # in their order
MINIMUM = 2  # rollouts of a prompt, in the adaptive recipes
FloatArray = NDArray[np.float64]
Run = Mapping[str, Any]


def read_runs(folder: Path) -> tuple[Run, dict[int, dict[str, Run]]]:
    """The start's evaluation, and the stored runs by seed and arm, GRPO first; seeds without both arms are left out.

    Raises:
        ValueError: if there is nothing to compare, or more than a pair.
    """
    runs: dict[int, dict[str, Run]] = {}
    for path in sorted(folder.glob("*-seed*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        runs.setdefault(run["seed"], {})[run["arm"]] = run
    pair = [arm for arm in ARMS if any(arm in arms for arms in runs.values())]
    whole = {seed: {arm: arms[arm] for arm in pair} for seed, arms in sorted(runs.items()) if len(arms) == 2}
    before = folder / "before.json"
    if len(pair) != 2 or not whole or not before.exists():
        raise ValueError(f"{folder} needs before.json and both arms of a seed, such as grpo-seed0.json.")
    return json.loads(before.read_text(encoding="utf-8")), whole


def arms_of(runs: Mapping[int, Mapping[str, Run]]) -> list[str]:
    """The pair that was run: GRPO, and what is compared with it."""
    return list(next(iter(runs.values())))


def values(evaluation: Run, k: int) -> FloatArray:
    """pass@k of each held-out problem."""
    return pass_at_k([evaluation["samples"]] * len(evaluation["right"]), evaluation["right"], k)


def accuracy(evaluation: Run, k: int = 1) -> Estimate:
    return mean_interval(values(evaluation, k), evaluation["samples"])


def difference(first: Run, second: Run, k: int = 1) -> tuple[Estimate, float]:
    """Second minus first over the same problems: with the paired 95 % interval, and the standard error.

    Raises:
        ValueError: if the problems are not the same.
    """
    if first["ids"] != second["ids"]:
        raise ValueError("The two evaluations are of different problems and cannot be paired.")
    a, b = values(first, k), values(second, k)
    return paired_difference(a, b), standard_error(b - a)


def over_evaluations(run: Run, k: int = 1) -> FloatArray:
    """pass@k of each held-out problem, the mean over all evaluations of the run: less noisy than its last one."""
    return np.mean([values(one, k) for one in run["evaluations"].values()], axis=0)


def over_seeds(differences: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and half its 95 % interval (Student's t, seeds as the sample); NaN for one seed."""
    size = len(differences)
    if size < 2:
        return float(np.mean(differences)), float("nan")
    return float(np.mean(differences)), float(stats.sem(differences) * stats.t.ppf(0.975, size - 1))


def standard_error(array: FloatArray) -> float:
    return float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else float("nan")


def groups_of(run: Run) -> dict[str, FloatArray]:
    """Rollouts and successes of every group that a run trained on, with the step and the prompt's kind."""
    rows = [(step["step"], *group) for step in run["steps"] for group in step["groups"]]
    return {
        "step": np.array([row[0] for row in rows]),
        "prompt": np.array([row[1] for row in rows]),
        "rollouts": np.array([row[2] for row in rows]),
        "successes": np.array([row[3] for row in rows]),
    }


def visits_of(groups: Mapping[str, Any]) -> NDArray[np.int64]:
    """Which visit of its prompt each group is, from 1."""
    seen: dict[str, int] = {}
    numbers = []
    for prompt in groups["prompt"].tolist():
        seen[prompt] = seen.get(prompt, 0) + 1
        numbers.append(seen[prompt])
    return np.array(numbers)


def mixed(groups: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Whether a group has both outcomes, and with that a gradient."""
    return (groups["successes"] > 0) & (groups["successes"] < groups["rollouts"])


def signal(run: Run) -> dict[str, float]:
    """Shares of prompts and of rollouts over a whole run."""
    groups = groups_of(run)
    has_signal, rollouts = mixed(groups), groups["rollouts"]
    return {
        "prompts": float(rollouts.size),
        "rollouts": float(rollouts.sum()),
        "steps_without": float(
            sum(not has_signal[groups["step"] == step].any() for step in np.unique(groups["step"]))
        ),
        "mixed": float(has_signal.mean()),
        "all_wrong": float(((groups["successes"] == 0) & (rollouts > 0)).mean()),
        "all_right": float(((groups["successes"] == rollouts) & (rollouts > 0)).mean()),
        "rollouts_in_mixed": float(rollouts[has_signal].sum() / rollouts.sum()),
        "size_of_mixed": float(rollouts[has_signal].mean()) if has_signal.any() else float("nan"),
        "fewest": float(rollouts.min()),
        "most": float(rollouts.max()),
    }


def by_visit(run: Run) -> list[dict[str, float]]:
    """From the first visit on: shares of prompts at the minimum of rollouts and with signal, and of its rollouts."""
    groups = groups_of(run)
    visits, has_signal, rollouts = visits_of(groups), mixed(groups), groups["rollouts"]
    rows = []
    for visit in range(1, int(visits.max()) + 1):
        here = visits == visit
        rows.append(
            {
                "at_minimum": float((rollouts[here] <= MINIMUM).mean()),
                "mixed": float(has_signal[here].mean()),
                "rollouts_in_mixed": float(rollouts[here & has_signal].sum() / rollouts[here].sum()),
            }
        )
    return rows


def signal_difference(first: Run, second: Run) -> Estimate:
    """Share of prompts with signal, second minus first, paired by step and prompt.

    Raises:
        ValueError: if the two runs did not see the same prompts at the same steps.
    """
    pairs = []
    for run in (first, second):
        groups = groups_of(run)
        keys = zip(groups["step"].tolist(), groups["prompt"].tolist(), strict=True)
        pairs.append(dict(zip(keys, mixed(groups).astype(float).tolist(), strict=True)))
    if pairs[0].keys() != pairs[1].keys():
        raise ValueError("The two runs did not train on the same prompts at the same steps and cannot be paired.")
    return paired_difference(list(pairs[0].values()), [pairs[1][key] for key in pairs[0]])


def cost(run: Run) -> dict[str, float]:
    """Tokens and time; seconds are wall clock but for those called CPU. The first step, which compiles, is left out
    of the medians."""
    steps = run["steps"]
    later = steps[1:] or steps
    decided = [step["log"].get("adaroll/time/allocate", 0.0) for step in later]
    evaluations = run["evaluations"].values()
    return {
        "tokens": float(sum(step["tokens"] for step in steps)),
        "step": float(np.median([step["seconds"] for step in later])),
        "rollouts": float(np.median([step["rollout_seconds"] for step in later])),
        "update": float(np.median([step["seconds"] - step["rollout_seconds"] for step in later])),
        "allocate": float(np.median(decided)),
        "cpu_minutes": sum(step["cpu_seconds"] for step in steps) / 60,
        "wall_minutes": sum(step["seconds"] for step in steps) / 60,
        "evaluation_cpu_minutes": sum(one["cpu_seconds"] for one in evaluations) / 60,
    }


def by_kind(
    kind_of: Callable[[str], str], before: Run, runs: Sequence[Mapping[str, Run]]
) -> dict[str, dict[str, float]]:
    """By kind of problem, over all seeds: held-out accuracy, rollouts a prompt, and share of prompts with signal."""
    kinds = np.array([kind_of(prompt) for prompt in before["ids"]])
    arms = list(runs[0])
    training = {arm: [groups_of(seed[arm]) for seed in runs] for arm in arms}
    table = {}
    for kind in sorted(set(kinds)):
        chosen = kinds == kind
        row = {"problems": float(chosen.sum()), "before": float(values(before, 1)[chosen].mean())}
        for arm in arms:
            ends = [values(last_evaluation(seed[arm]), 1)[chosen] for seed in runs]
            here = [np.array([kind_of(prompt) == kind for prompt in groups["prompt"]]) for groups in training[arm]]
            pairs = list(zip(training[arm], here, strict=True))
            row[f"{arm} after"] = float(np.mean(ends))
            row[f"{arm} rollouts"] = _mean([groups["rollouts"][mask] for groups, mask in pairs])
            row[f"{arm} signal"] = _mean([mixed(groups)[mask] for groups, mask in pairs])
        table[kind] = row
    return table


def _mean(parts: Sequence[Any]) -> float:
    together = np.concatenate(parts)
    return float(together.mean()) if together.size else float("nan")


def last_evaluation(run: Run) -> Run:
    return run["evaluations"][max(run["evaluations"], key=int)]
