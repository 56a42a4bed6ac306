"""What is known of the paper's tables, in percent, and how its cells are laid out here.

Source: "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training" (AdaRoll-GRPO, October 2026), its
abstract and the headline rows of its two tables; the other cells are not public, and neither are the formulas of its
six utilities. Single runs; test accuracy; full fine-tuning with AdamW.

The layout is our reading: table 1 is three models x four data sets x {untrained, GRPO, AdaRoll with each of six
utilities}; table 2 is three losses, each with and without adaptive rollouts, on Llama-3.1-8B-Instruct. The six
utilities here are ours (`adaroll_trl/utilities.py`). The paper's headline AdaRoll figures stand beside `mixed`, since
that is how we read its default utility.

Table 3 is ours, not the paper's: GRPO, AdaRoll with `mixed` and `progress_carry`, which has the library's defaults, on
prompts that come back. GRPO is the control too: with equal groups `progress_carry` is nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODELS = ("llama-3.1-8b-instruct", "llama-3.2-3b-instruct", "gemma-3-4b-it")
DATASETS = ("math", "gsm8k", "colota", "logiqa")
UTILITIES = ("mixed", "variance", "std", "mass", "std_mass", "balanced")

# From the divisibility of the printed accuracies: MATH-500, GSM8K's and LogiQA's test splits, 170 of CoLoTa's 1,691.
TEST_PROMPTS = {"math": 500, "gsm8k": 1319, "colota": 170, "logiqa": 651}


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name (`str`): in folders and options.
        label (`str`): in the printed table.
        recipe (`str`): the recipe's file name without `.yaml`; the untrained model takes its model and data from it.
        settings (`dict`): instead of the recipe's.
        baseline (`str` or `None`): the method that it is compared with.
        trained (`bool`): whether there is anything to train.
    """

    name: str
    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    trained: bool = True


_VISITS = 5  # of each prompt in table 3, as in the recipes `progress_carry`
_AGAIN = {"num_train_epochs": _VISITS}
_ALL = [
    Method("untrained", "untrained", "grpo", trained=False),
    Method("grpo", "GRPO", "grpo"),
    *(Method(f"adaroll-{u}", f"AdaRoll-GRPO, {u}", "adaroll", {"utility": u}, "grpo") for u in UTILITIES),
    Method("dr_grpo", "Dr. GRPO", "dr_grpo"),
    Method("dr_grpo_adaroll", "Dr. GRPO + AdaRoll, mixed", "dr_grpo_adaroll", baseline="dr_grpo"),
    Method("dapo", "DAPO's loss", "dapo"),
    Method("dapo_adaroll", "DAPO's loss + AdaRoll, mixed", "dapo_adaroll", baseline="dapo"),
    Method("grpo-again", "GRPO", "grpo", _AGAIN),
    Method("adaroll-again", "AdaRoll-GRPO, mixed", "adaroll", {"utility": "mixed", **_AGAIN}, "grpo-again"),
    Method("progress_carry", "AdaRoll-GRPO, progress, carried beliefs", "progress_carry", _AGAIN, "grpo-again"),
]
METHODS = {method.name: method for method in _ALL}

TABLES: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {  # models, methods
    1: (MODELS, ("untrained", "grpo", *(f"adaroll-{utility}" for utility in UTILITIES))),
    2: (MODELS[:1], ("grpo", "adaroll-mixed", "dr_grpo", "dr_grpo_adaroll", "dapo", "dapo_adaroll")),
    3: (MODELS, ("untrained", "grpo-again", "adaroll-again", "progress_carry")),
}
OF_PAPER = (1, 2)  # tables

_LLAMA_8B = {
    "grpo": {"math": 42.60, "gsm8k": 83.02, "colota": 50.00, "logiqa": 41.17},
    "adaroll-mixed": {"math": 48.60, "gsm8k": 86.05, "colota": 58.24, "logiqa": 43.93},
    "dr_grpo": {"math": 44.40, "gsm8k": 82.56, "colota": 46.47, "logiqa": 42.70},
    "dr_grpo_adaroll": {"math": 48.80, "gsm8k": 84.08, "colota": 53.52, "logiqa": 44.85},
    "dapo": {"math": 46.60, "gsm8k": 83.32, "colota": 48.23, "logiqa": 43.47},
    "dapo_adaroll": {"math": 49.40, "gsm8k": 86.35, "colota": 54.12, "logiqa": 46.24},
}


def paper_accuracy(model: str, dataset: str, method: str) -> float | None:
    """The paper's test accuracy in percent; None where it is not public."""
    return _LLAMA_8B.get(method, {}).get(dataset) if model == MODELS[0] else None
