"""Two models on the same prompts: the difference with a paired interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .statistics import Estimate, FloatArray, mean_interval, paired_difference, pass_at_k

# What else than the model changes what is measured. The number of samples does not: accuracy and pass@k are estimated
# without bias from any number. Seed, backend, batch size and number format change the noise.
_ALIKE = ("task", "split", "dataset_name", "max_tokens", "temperature", "top_p")


@dataclass(frozen=True)
class Comparison:
    """One metric of two results, and the paired difference, second minus first."""

    metric: str
    first: Estimate
    second: Estimate
    difference: Estimate


def compare(first: Mapping[str, Any], second: Mapping[str, Any], level: float = 0.95) -> list[Comparison]:
    """Accuracy and every pass@k that both results have.

    Args:
        first, second: what `read_results` returns.
        level (`float`): of the intervals.

    Raises:
        ValueError: if the two measure different things: another task, split, source, sampling, or other prompts.
    """
    check_comparable(first, second)
    names = ["accuracy", *(name for name in first["metrics"] if name != "accuracy" and name in second["metrics"])]
    comparisons = []
    for name in names:
        a, b = (values_of(results, name) for results in (first, second))
        alone = (mean_interval(a, _samples(first), level), mean_interval(b, _samples(second), level))
        comparisons.append(Comparison(name, alone[0], alone[1], paired_difference(a, b, level)))
    return comparisons


def check_comparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Raise a ValueError where two results cannot be paired, with the setting that differs and both its values."""
    for name in _ALIKE:
        found = [results["settings"].get(name) for results in (first, second)]
        if found[0] != found[1]:
            raise ValueError(
                f"The first result has {name}={found[0]!r}, the second {name}={found[1]!r}: they do not measure the "
                f"same. Evaluate both with the same {name}."
            )
    ids = [[prompt["prompt_id"] for prompt in results["prompts"]] for results in (first, second)]
    if ids[0] != ids[1]:
        shared = len(set(ids[0]) & set(ids[1]))
        raise ValueError(
            f"The two results are of different prompts: {len(ids[0])} and {len(ids[1])}, {shared} of them in both. "
            "Evaluate both with the same data set and limit."
        )


def values_of(results: Mapping[str, Any], metric: str) -> FloatArray:
    """`accuracy` or `pass@k` of each prompt, float64 of shape (prompts,)."""
    samples = np.array([prompt["num_samples"] for prompt in results["prompts"]])
    correct = np.array([prompt["num_correct"] for prompt in results["prompts"]])
    k = 1 if metric == "accuracy" else int(metric.removeprefix("pass@"))
    return pass_at_k(samples, correct, k)


def _samples(results: Mapping[str, Any]) -> int:
    return max(prompt["num_samples"] for prompt in results["prompts"])
