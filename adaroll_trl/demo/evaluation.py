"""Rewards of a policy outside training: held-out accuracy, and the success rate of single prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation.generation import sample_completions
from .problems import Grader, Problem


def sample_rewards(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    grade: Grader,
    *,
    samples: int,
    max_tokens: int,
    batch_size: int,
    seed: int,
) -> NDArray[np.float64]:
    """Rewards of `samples` completions at temperature 1 for each problem, float64 of shape (problems, samples)."""
    repeated = [problem for problem in problems for _ in range(samples)]
    completions = sample_completions(
        model,
        tokenizer,
        [problem.prompt for problem in repeated],
        max_tokens=max_tokens,
        batch_size=batch_size,
        seed=seed,
    )
    pairs = zip(repeated, completions, strict=True)
    rewards = [grade(completion.text, problem.answer) for problem, completion in pairs]
    return np.array(rewards).reshape(len(problems), samples)


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean and its standard error; the error is nan for fewer than two values."""
    if values.size == 0:
        return float("nan"), float("nan")
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else float("nan")
    return float(values.mean()), float(error)
