"""Relative gain of adaptive allocation against the entropy of the difficulty, simulated and from finished runs.

The paper (AdaRoll-GRPO, October 2026) has such a figure, its fourth; how it defines entropy and gain is not public.
Here

    entropy         of the histogram of pass rates over equal bins (10 by default), in nats: 0 where all prompts fall
                    into one bin, log(bins) where they are spread evenly
    relative gain   utility of a batch above that of equal groups, as a share of the latter; for runs, the same of the
                    share of groups with both outcomes, or of a metric in the trainers' logs
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare import Setting
from .difficulty import Difficulty
from .measured import Measured, mean_of
from .pass_counts import PassCounts, read_completions, success_column

_LAST = 0.1  # of a log: the share of its entries that a metric is averaged over


@dataclass(frozen=True)
class GainPoint:
    """One difficulty: its entropy in nats, and the relative gain there."""

    label: str
    entropy: float
    gain: Measured


def simulated_gain(setting: Setting, num_batches: int = 4000, seed: int = 0, bins: int = 10) -> GainPoint:
    """The gain of `adaroll` over equal groups in a setting (`Setting`), paired on the same outcomes."""
    result = setting.play("adaroll", num_batches, seed)
    difficulty: Difficulty = setting.difficulty
    gain = result.gain / result.uniform_mean if result.uniform_mean > 0 else Measured(float("nan"), float("nan"))
    return GainPoint(difficulty.label, difficulty.entropy(bins), gain)


@dataclass(frozen=True)
class Groups:
    """The groups of a run, arrays of shape (groups,): each group's prompt, its rollouts and its successes."""

    prompts: Sequence[str]
    rollouts: NDArray[np.int64]
    successes: NDArray[np.int64]

    @property
    def signal(self) -> Measured:
        """Share of groups with both outcomes; groups taken as independent."""
        return mean_of(((self.successes > 0) & (self.successes < self.rollouts)).astype(np.float64))

    def pass_counts(self) -> PassCounts:
        """The counts of each prompt, all its groups together."""
        names, which = np.unique(np.array(self.prompts), return_inverse=True)
        return PassCounts(
            *(np.bincount(which, x, names.size).astype(np.int64) for x in (self.successes, self.rollouts))
        )


def read_groups(path: Path | str, *, reward: str | None = None, threshold: float = 0.5) -> Groups:
    """The groups of a run.

    Args:
        path (`Path` or `str`): completions tables (`read_pass_counts`), whose groups are a step's completions of one
            prompt, or of one `group` where there is that column; or JSON with `steps`, each with `groups` of
            [prompt, rollouts, successes].
        reward, threshold: as for `read_pass_counts`.

    Raises:
        ValueError: if it is neither.
    """
    path = Path(path)
    try:
        if path.suffix == ".json":
            steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
            found = [group for step in steps for group in step["groups"]]
        else:
            found = _groups_of_table(read_completions(path), reward, threshold)
        prompts, rollouts, successes = zip(*found, strict=True)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no groups of a run: {error}") from error
    return Groups(prompts, np.array(rollouts, dtype=np.int64), np.array(successes, dtype=np.int64))


def _groups_of_table(
    columns: Mapping[str, list[Any]], reward: str | None, threshold: float
) -> list[tuple[str, int, int]]:
    steps = columns.get("step", [0] * len(columns["prompt"]))
    names = columns.get("group", columns["prompt"])
    groups: dict[tuple[Any, str], list[Any]] = {}
    rows = zip(steps, names, columns["prompt"], success_column(columns, reward, threshold), strict=True)
    for step, name, prompt, success in rows:
        group = groups.setdefault((step, str(name)), [str(prompt), 0, 0])
        if success is not None:
            group[1] += 1
            group[2] += success
    return [(prompt, rollouts, successes) for prompt, rollouts, successes in groups.values() if rollouts]


def gain_of_runs(
    grpo: Path | str,
    adaroll: Path | str,
    *,
    metric: str | None = None,
    logs: tuple[Path | str, Path | str] | None = None,
    label: str = "",
    fit: str = "beta",
    bins: int = 10,
    reward: str | None = None,
    threshold: float = 0.5,
) -> GainPoint:
    """The same from two finished runs, GRPO and AdaRoll-GRPO.

    Args:
        grpo, adaroll (`Path` or `str`): their completions (`read_groups`). The entropy is that of GRPO's pass rates.
        metric (`str`, *optional*): a metric in the trainers' logs, such as `"eval_reward"`; its mean over the last
            tenth of the entries is compared, with errors as if they were independent. None compares the share of
            groups with both outcomes.
        logs (pair of `Path` or `str`, *optional*): the runs' `trainer_state.json`, for `metric`.
        label (`str`): of the point.
        fit (`str`), bins (`int`): of the pass rates (`PassCounts.difficulty`) and their entropy.
        reward, threshold: see `read_groups`.

    Raises:
        ValueError: if a file cannot be read, or `metric` and `logs` do not go together.
    """
    if (metric is None) != (logs is None):
        raise ValueError(f"metric={metric!r} and logs={logs!r} belong together: give both or neither.")
    runs = [read_groups(path, reward=reward, threshold=threshold) for path in (grpo, adaroll)]
    if metric is not None and logs is not None:
        base, other = (_last_values(path, metric) for path in logs)
    else:
        base, other = (run.signal for run in runs)
    ratio = other.value / base.value if base.value else float("nan")
    error = abs(ratio) * float(np.hypot(other.error / other.value, base.error / base.value)) if ratio else float("nan")
    entropy = runs[0].pass_counts().difficulty(fit).entropy(bins)
    return GainPoint(label, entropy, Measured(ratio - 1.0, error))


def _last_values(path: Path | str, metric: str) -> Measured:
    history = json.loads(Path(path).read_text(encoding="utf-8"))["log_history"]
    values = np.array([entry[metric] for entry in history if metric in entry], dtype=np.float64)
    if values.size == 0:
        known = sorted({key for entry in history for key in entry})
        raise ValueError(f"{path} has no metric {metric!r}; it has {', '.join(known)}.")
    last = values[-max(2, round(_LAST * values.size)) :]
    return mean_of(last) if last.size > 1 else Measured(float(last[0]), 0.0)
