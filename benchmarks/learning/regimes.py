"""The toy tier's tasks: strings of digits to be reversed or sorted, in regimes of different difficulty.

The policy is the demo's Llama of 83 thousand parameters (`adaroll_trl.demo.tiny`), warmed up by supervised training.
Each seed has a start of its own, so that what is found holds for more than one checkpoint; all arms of a seed share
it, and see the same prompts in the same order.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaroll_trl.demo.problems import Problem, string_problem
from adaroll_trl.demo.tiny import build_model, build_tokenizer, warm_up

HELD_OUT = 480
_HELD_OUT_SEED = 1_000_003


@dataclass(frozen=True)
class Regime:
    """A distribution of prompts and a start.

    Attributes:
        name (`str`): short, for files and tables.
        description (`str`): for the report.
        warm_up (`int`): supervised steps before reinforcement learning.
        lengths (tuple of (length, weight)): how often strings of each length are drawn.
        distinct (`int`, *optional*): train on so many prompts over and over; None: no prompt comes twice.
    """

    name: str
    description: str
    warm_up: int
    lengths: tuple[tuple[int, float], ...]
    distinct: int | None = None

    def problems(self, rng: np.random.Generator, number: int, taken: set[str]) -> list[Problem]:
        """`number` problems, none of which is in `taken`."""
        lengths, weights = (np.array(column) for column in zip(*self.lengths, strict=True))
        found: list[Problem] = []
        while len(found) < number:
            problem = string_problem(rng, int(rng.choice(lengths, p=weights / weights.sum())))
            if problem.key not in taken:
                found.append(problem)
        return found

    def held_out(self) -> list[Problem]:
        """The same for every seed and arm."""
        return self.problems(np.random.default_rng(_HELD_OUT_SEED), HELD_OUT, set())

    def training(self, number: int, seed: int) -> list[dict[str, Any]]:
        """Rows of the training set, for `number` prompts in all."""
        taken = {problem.key for problem in self.held_out()}
        distinct = min(self.distinct or number, number)
        problems = self.problems(np.random.default_rng((seed, 7)), distinct, taken)
        return [
            {"prompt": problem.prompt, "answer": problem.answer, "level": problem.level, "prompt_id": str(place)}
            for place, problem in enumerate(problems)
        ]

    def start(self, seed: int, folder: Path) -> Path:
        """The warmed-up checkpoint of a seed, made where it is missing."""
        path = folder / f"warm-up{self.warm_up}-seed{seed}"
        if not (path / "config.json").exists():
            tokenizer = build_tokenizer()
            model = build_model(tokenizer, seed)
            warm_up(model, tokenizer, self.warm_up, seed)
            partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            try:
                partial.rename(path)
            except OSError:  # another process was faster, with the same weights
                shutil.rmtree(partial)
        return path


_ALL = tuple((length, 1.0) for length in range(3, 15))
_ENDS = ((3, 2.0), (4, 2.0), (5, 2.0), (13, 4.5), (14, 4.5))
_HARD = ((12, 1.0), (13, 1.0), (14, 1.0))

REGIMES = {
    regime.name: regime
    for regime in (
        Regime("H", "lengths 3 to 14, pass rates spread out", 300, _ALL),
        Regime("U", "lengths 3 to 5 and 13 to 14, most prompts solved or nearly hopeless", 450, _ENDS),
        Regime("HH", "lengths 12 to 14, sparse success", 300, _HARD),
        Regime("HR", "as H, 240 prompts over and over", 300, _ALL, distinct=240),
        Regime("UR", "as U, 240 prompts over and over", 450, _ENDS, distinct=240),
        Regime("HHR", "as HH, 240 prompts over and over", 300, _HARD, distinct=240),
    )
}
