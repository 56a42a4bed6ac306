"""Reward functions by name or dotted path, and which of them says that a rollout succeeded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trl import GRPOConfig, rewards

from ..config import load_by_path
from ..tasks import Task
from .arguments import TrainArguments

OVERLONG = "get_soft_overlong_punishment"
TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
_ACCURACY_REWARDS = TRL_REWARDS[:2]
# What TRL passes to every reward function, beside the data set's columns.
_PASSED = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

Reward = str | Callable[..., Any]  # the name of a reward model, or a function


def reward_name(reward: Reward) -> str:
    """The name that TRL logs a reward under."""
    if isinstance(reward, str):
        return reward.rstrip("/").split("/")[-1]
    return str(getattr(reward, "__name__", type(reward).__name__))


def own_name(task: Task | None) -> str | None:
    """The name of a task's own reward."""
    return None if task is None else f"{task.name}_accuracy"


def make_rewards(script: TrainArguments, config: GRPOConfig, task: Task | None) -> list[Reward]:
    """The rewards of a run in TRL's order: the reward model first, then the functions; the task's own by default.

    Raises:
        ValueError: if a name is not known, a path cannot be loaded, two rewards have one name, there is none, or
            `reward_weights` are not as many.
    """
    found: list[Reward] = [script.reward_model_name_or_path] if script.reward_model_name_or_path else []
    if script.reward_funcs is not None:
        found += [_find(name, script, config, task) for name in script.reward_funcs]
    elif task is not None and (script.task or not found or script.verifier or script.answer_column):
        found.append(task.reward)
    names = [reward_name(reward) for reward in found]
    if not found:
        raise ValueError("There is no reward: give reward_funcs or reward_model_name_or_path, or a task.")
    if len({*names}) < len(names):
        raise ValueError(f"reward_funcs has a reward twice: {names}.")
    weights = config.reward_weights
    if weights is not None and len(weights) != len(found):
        raise ValueError(f"reward_weights={weights} has {len(weights)} numbers for {len(found)} rewards: {names}.")
    return found


def _find(name: str, script: TrainArguments, config: GRPOConfig, task: Task | None) -> Reward:
    if task is not None and name == own_name(task):
        return task.reward
    if name in TRL_REWARDS:
        found: Callable[..., Any] = getattr(rewards, name)
        return found
    if name == OVERLONG:
        return _overlong(script, config)
    if ":" in name or "." in name:
        return _load(name)
    known = ", ".join(map(repr, ([own_name(task)] if task else []) + [*TRL_REWARDS, OVERLONG]))
    raise ValueError(f"reward_funcs: {name!r} is not known. Use {known}, or 'package.module:function'.")


def _overlong(script: TrainArguments, config: GRPOConfig) -> Callable[..., Any]:
    longest = config.max_completion_length
    if longest is None:
        raise ValueError(f"{OVERLONG} needs max_completion_length, which is None.")
    cache = max(1, longest // 5) if script.soft_punish_cache is None else script.soft_punish_cache
    if cache >= longest:
        raise ValueError(f"soft_punish_cache={cache} must be below max_completion_length={longest}.")
    found: Callable[..., Any] = rewards.get_soft_overlong_punishment(longest, cache)
    return found


def _load(path: str) -> Callable[..., Any]:
    module, _, attribute = path.rpartition(":" if ":" in path else ".")
    found = load_by_path("reward_funcs", f"{module}:{attribute}")
    if not callable(found):
        raise ValueError(f"reward_funcs: {path!r} is {type(found).__name__}, not a function.")
    function: Callable[..., Any] = found
    return function


def check_columns(found: Sequence[Reward], columns: Sequence[str]) -> None:
    """Refuse a reward function that TRL's call would fail on: one that needs a column the data set lacks, for example.

    Raises:
        ValueError: naming the function, what it lacks, and the columns that there are.
    """
    passed = dict.fromkeys([*_PASSED, *(name for name in columns if name not in ("prompt", "completion"))])
    for reward in found:
        if isinstance(reward, str):
            continue
        try:
            inspect.signature(reward).bind(**passed)
        except TypeError as error:
            raise ValueError(
                f"Reward function {reward_name(reward)!r} cannot be called: {error}. It gets "
                f"{', '.join(map(repr, passed))} by keyword (the data set's columns are "
                f"{', '.join(map(repr, columns))}), so it needs **kwargs for what it does not read."
            ) from error


def choose_success(found: Sequence[Reward], task: Task | None, given: str | None) -> tuple[str | None, str]:
    """The `success_reward` of a run, and in words why it is that one.

    Beside shaping rewards (a format, a length) success is the task's own accuracy: allocation would otherwise chase
    form instead of outcome.

    Args:
        found (list): the rewards, as `make_rewards` gives them.
        task (`Task`, *optional*): whose reward is taken where it is among them.
        given (`str`, *optional*): the user's choice.

    Raises:
        ValueError: if there is no such reward.
    """
    names = [reward_name(reward) for reward in found]
    if given is not None:
        if given not in names:
            raise ValueError(f"success_reward={given!r} is not a reward function. The reward functions are {names}.")
        return given, f"{given} (as given)"
    if len(names) == 1:
        return None, f"{names[0]} (the only reward)"
    for name in (own_name(task), *_ACCURACY_REWARDS):
        if name in names:
            return name, f"{name} (of {len(names)} rewards the one of accuracy; success_reward chooses another)"
    return None, "the weighted sum of all rewards (success_reward chooses one)"
