"""A run as a report shows it: its files, and what its completions say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..plots import moving_average
from ..simulation.pass_counts import PassCounts
from .completions import Completions, read_tables
from .files import RunFiles, read_run, step_of
from .settings import STEPS_OF_A_BATCH

FloatArray = NDArray[np.float64]

HELD_OUT = r"eval_(reward|accuracy|adaroll/prompt_reward_mean|rewards/.+/mean|.*(accuracy|pass@\d+).*)"


@dataclass
class Run:
    """Files and completions; `colour` is the run's place in the report, from 0."""

    files: RunFiles
    completions: Completions
    colour: int = 0

    @property
    def name(self) -> str:
        return self.files.name

    def reward_by_prompt(self) -> tuple[FloatArray, FloatArray]:
        """Steps and mean rewards with each prompt counted once. In groups of equal size that is `reward`."""
        found = self.files.series("adaroll/prompt_reward_mean")
        return found if found[0].size or self.adaptive else self.files.series("reward")

    def signal(self) -> tuple[FloatArray, FloatArray]:
        """Steps and shares of prompts whose rollouts show both outcomes.

        Of a plain run they come from its completions, else from the share of groups whose rewards differ.
        """
        steps, shares = self.files.series("adaroll/frac_prompts_mixed")
        if steps.size:
            return steps, shares
        if batches := self.completions.batches:
            return np.array([one.step for one in batches], float), np.array([one.mixed for one in batches])
        steps, alike = self.files.series("frac_reward_zero_std")
        return steps, 1 - alike

    @property
    def adaptive(self) -> bool:
        """Whether this library's trainer ran it."""
        return self.completions.adaptive or bool(self.files.names("adaroll/rounds"))

    @property
    def utility(self) -> str:
        return str(self.files.settings.get("utility") or "mixed")

    @cached_property
    def equal_groups(self) -> dict[int, float]:
        """For each phase, the share of prompts that would have signal in equal groups, by what its outcomes tell.

        That is 1 - E[p^G] - E[(1 - p)^G] under the distribution of success rates that makes the counts most likely.
        In its likelihood it does not matter how a prompt's rollouts were decided. Prompts that are in several batches
        of a phase count each time.
        """
        shares = {}
        for phase, counter in self.completions.pairs.items():
            rows = np.array([(s, m, n, many) for (s, m, n), many in counter.items() if m], dtype=np.int64)
            if rows.size:
                s, m, n, many = rows.T
                group = self.files.settings.get("num_generations")
                size = group if isinstance(group, int) else round(float(np.average(n, weights=many)))
                shares[phase] = PassCounts(np.repeat(s, many), np.repeat(m, many)).difficulty("mixture").signal(size)
        return shares

    def held_out(self) -> str | None:
        """The logged name of the held-out result; None for none."""
        names = self.files.names(HELD_OUT)
        return min(names, key=lambda name: (name not in ("eval_accuracy", "eval_reward"), name)) if names else None

    @property
    def notes(self) -> list[str]:
        """What could not be read, and what the tables do not hold."""
        found = list(self.files.notes)
        skipped = self.completions.skipped
        found += [f"Left out: {reason}." for reason in skipped[:10]]
        if len(skipped) > 10:
            found.append(f"Left out: {len(skipped) - 10:,} more tables.")
        if self.completions.repeated:
            found.append(
                f"{self.completions.repeated:,} tables repeat the batch of the one before; each batch counts once."
            )
        every = self._steps_between_tables()
        if every > self._steps_of_a_batch():
            found.append(
                f"The completions are those of the newest batch at every {every}th step (logging_steps): batches in "
                "between are in the curves, not in what is said of single prompts."
            )
        return found

    def _steps_between_tables(self) -> int:
        """Usually; 0 where there are not two."""
        steps = np.array([step_of(path) for path in self.files.completions], dtype=np.int64)
        return int(np.median(np.diff(steps))) if steps.size > 1 else 0

    def _steps_of_a_batch(self) -> int:
        """As the settings have it; 1 where they do not tell."""
        parts, iterations, accumulated = (self.files.settings.get(name) for name in STEPS_OF_A_BATCH)
        return max(1, parts * iterations // accumulated) if parts and iterations and accumulated else 1


def load_runs(folders: list[Path]) -> list[Run]:
    """Read one run, or two for a comparison.

    Raises:
        ValueError: see `read_run`; and if the folder is the same twice.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError(f"{folders[0]} is given twice. Name two runs, or one.")
    names = [folder.resolve().name.lstrip("_") or "run" for folder in folders]  # matplotlib hides labels with "_"
    if len(set(names)) < len(names):
        names = [str(Path(*folder.resolve().parts[-2:])) for folder in folders]
    files = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    return [Run(one, read_tables(one), place) for place, one in enumerate(files)]


def smooth(values: FloatArray) -> FloatArray:
    """The mean of each value and those before it over a twelfth of the run."""
    return moving_average(values, smoothing_window(values.size))


def smoothing_window(size: int) -> int:
    return max(1, size // 12)
