"""The settings of a run: which of them a report shows first, and which of them may be believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..settings_file import is_secret, plain
from ..values import is_number

MOST_BYTES = 4_000_000  # of the file; a few thousand in fact
_MOST_SETTINGS = 1_000  # some 200 in fact
_LONGEST_NAME = 80
_LARGEST_COUNT = 10_000
_COUNT = f"an integer from 1 to {_LARGEST_COUNT:,}"

# Training arguments that say what was done, in the order of the report; all others come below.
MAIN_SETTINGS = (
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
    "max_completion_length",
    "temperature",
    "max_steps",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "loss_type",
    "scale_rewards",
    "reward_weights",
    "beta",
    "epsilon",
    "use_vllm",
    "logging_steps",
    "seed",
)
ALLOCATION_SETTINGS = (  # the fields of AdaRollOptions, which TRL's own trainer does not read
    "allocator",
    "allocator_kwargs",
    "utility",
    "rounds",
    "stream_rollouts",
    "in_flight",
    "stream_order",
    "draws_per_round",
    "min_rollouts",
    "max_rollouts",
    "prior_alpha",
    "prior_beta",
    "prior_source",
    "prior_column",
    "prior_strength",
    "belief_decay",
    "kappa",
    "kappa_every",
    "block_size",
    "success_reward",
    "success_threshold",
    "prompt_weighting",
    "table_cache_dir",
)


def _is_reward_weights(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and 0 < value <= _LARGEST_COUNT


# A batch lasts (the first times the second, over the third) optimiser steps
STEPS_OF_A_BATCH = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
# What the report computes with: how it is told from what no trainer had, and in words. None is never used.
_USED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_generations": (_is_count, _COUNT),
    **dict.fromkeys(STEPS_OF_A_BATCH, (_is_count, _COUNT)),
    "success_threshold": (is_number, "a number"),
    "success_reward": (lambda value: isinstance(value, str), "a name"),
    "reward_weights": (_is_reward_weights, "a list of numbers"),
    "utility": (lambda value: isinstance(value, str), "a name"),
}


def settings_of(content: Mapping[str, Any], name: str, notes: list[str]) -> dict[str, Any]:
    """The settings in a JSON object from anybody: a bounded number of names, and none that holds a secret.

    What the report computes with and cannot be is left out, with a note that calls the file `name`.
    """
    known = {
        key: plain(value)
        for key, value in content.items()
        if key.isidentifier() and key.isascii() and len(key) <= _LONGEST_NAME and not is_secret(key)
    }
    if len(known) > _MOST_SETTINGS:
        notes.append(f"{name} has {len(known):,} settings: those after the first {_MOST_SETTINGS:,} were left out.")
    settings = dict(list(known.items())[:_MOST_SETTINGS])
    for key, (fits, words) in _USED.items():
        value = settings.get(key)
        if value is not None and not fits(value):
            del settings[key]
            notes.append(f"{name}: {key}={_short(value)} was left out, since it must be {words}.")
    return settings


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """In words, those of the settings that say what was done in which two files differ; "" for none."""
    names = [name for name in (*MAIN_SETTINGS, *ALLOCATION_SETTINGS) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {_short(before.get(name))} -> {_short(after.get(name))}" for name in names)


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
