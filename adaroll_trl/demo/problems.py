"""What a demo trains on: problems with a known answer, a reward of 0 or 1, and a difficulty level.

The built-in task needs no download. A problem is a string of 3 to 14 digits to be reversed (`R5207=`, answer `7025`)
or sorted (`S5207=`, answer `0257`). The level is the length: a model that has seen some of it in supervised training
solves short strings mostly and long ones hardly ever, so a batch of prompts spans the whole range of success rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Prompt: TypeAlias = "str | list[dict[str, str]]"  # plain text, or a conversation
Grader: TypeAlias = Callable[[str, str], float]  # (completion, answer) -> 1.0 or 0.0

SHORTEST, LONGEST = 3, 14


class DemoError(ValueError):
    """Something the user gave cannot work; the text says what and what would."""


@dataclass(frozen=True)
class Problem:
    """One prompt with its answer. `level` orders problems by difficulty; None where nothing says how hard they are."""

    prompt: Prompt
    answer: str
    level: int | None

    @property
    def key(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


@dataclass(frozen=True)
class ProblemSet:
    """Problems to train on, others to evaluate on, and how a completion is graded."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    grade: Grader
    level_name: str  # what the level counts, for the tables: "digits"

    def rows(self) -> list[dict[str, Any]]:
        """The training problems as the rows of a TRL data set."""
        return [
            {"prompt": problem.prompt, "answer": problem.answer, "level": problem.level, "prompt_id": str(number)}
            for number, problem in enumerate(self.train)
        ]


def string_problem(rng: np.random.Generator, length: int) -> Problem:
    """A random string of `length` digits, to be reversed or sorted with equal chances."""
    digits = "".join(str(digit) for digit in rng.integers(0, 10, size=length))
    if rng.random() < 0.5:
        return Problem(f"R{digits}=", digits[::-1], length)
    return Problem(f"S{digits}=", "".join(sorted(digits)), length)


def exact_match(completion: str, answer: str) -> float:
    """1.0 if the completion is the answer and nothing else."""
    return float(completion == answer)


def builtin_problems(num_train: int, num_held_out: int, seed: int) -> ProblemSet:
    """Reversing and sorting strings of digits; every length equally often in the held-out part."""
    rng = np.random.default_rng(seed)
    lengths = np.resize(np.arange(SHORTEST, LONGEST + 1), num_held_out)
    held_out = [string_problem(rng, int(length)) for length in lengths]
    taken = {problem.key for problem in held_out}
    train: list[Problem] = []
    while len(train) < num_train:
        problem = string_problem(rng, int(rng.integers(SHORTEST, LONGEST + 1)))
        if problem.key not in taken:
            train.append(problem)
    return ProblemSet("reverse and sort strings of digits", train, held_out, exact_match, "digits")


@dataclass(frozen=True)
class LevelBin:
    """Neighbouring difficulty levels that a table shows as one row."""

    label: str
    low: int
    high: int

    def holds(self, levels: np.ndarray) -> np.ndarray:
        return (levels >= self.low) & (levels <= self.high)


def level_bins(levels: Sequence[int | None], at_most: int = 4) -> list[LevelBin]:
    """Up to `at_most` bins of neighbouring levels with about the same number of problems; none if no level is known.

    >>> [bin.label for bin in level_bins([3, 4, 5, 6, 7, 8, 9, 10])]
    ['3-4', '5-6', '7-8', '9-10']
    """
    known = np.array([level for level in levels if level is not None])
    if known.size == 0:
        return []
    values, counts = np.unique(known, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / known.size  # each level's place in (0, 1)
    which = np.floor(middle * at_most).astype(int)
    bins = []
    for number in np.unique(which):
        low, high = int(values[which == number].min()), int(values[which == number].max())
        bins.append(LevelBin(str(low) if low == high else f"{low}-{high}", low, high))
    return bins
