"""What a user's functions return, checked where they return it: rewards, and rollouts of a `rollout_func`.

TRL gathers the rewards of all processes in one collective. A reward function that fails on one process alone would
leave the others waiting in it until that process has died, or (on a caught error) until the process group times out.
So a failing function takes part with rewards of -inf, which no reward may be; every process then sees them in what was
gathered, and only then do the processes exchange what went wrong.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from accelerate.utils import gather_object

from .checks import check_completions

_LARGEST = float(torch.finfo(torch.float32).max)


@contextmanager
def checked_rewards(trainer: Any) -> Iterator[list[Exception]]:
    """Every reward function of `trainer` is watched: yields the errors that this process's raise meanwhile."""
    errors: list[Exception] = []
    functions = trainer.reward_funcs
    trainer.reward_funcs = [
        function if isinstance(function, torch.nn.Module) else _watched(function, name, errors)
        for function, name in zip(functions, trainer.reward_func_names, strict=True)
    ]
    try:
        yield errors
    finally:
        trainer.reward_funcs = functions


def raise_reward_errors(rewards: torch.Tensor, names: list[str], errors: list[Exception], rank: int) -> None:
    """Raise on every process if a reward function failed on one, or a reward model returned an infinite reward.

    Args:
        rewards (`torch.Tensor` of shape (rows over all processes, reward functions)): as gathered.
        names (list of `str`): of the reward functions.
        errors (list of `Exception`): those of this process.
        rank (`int`): of this process.

    Raises:
        Exception: this process's first error, as it was raised.
        RuntimeError: on a process without one, with the text of the others'.
        ValueError: for an infinite reward that is nobody's error.
    """
    if not torch.isinf(rewards).any():
        return
    texts = [f"process {rank}: {type(error).__name__}: {error}" for error in errors[:1]]
    texts = gather_object(texts)
    if texts and not errors:
        raise RuntimeError(f"A reward function failed on {'; on '.join(texts)}")
    raise_own_reward_error(rewards, names, errors)


def raise_own_reward_error(rewards: torch.Tensor, names: list[str], errors: list[Exception]) -> None:
    """The same for rows that this process scored alone: no other is asked.

    Raises:
        Exception: this process's first error, as it was raised.
        ValueError: for an infinite reward that is nobody's error.
    """
    if errors:
        raise errors[0]
    infinite = torch.isinf(rewards)
    if not infinite.any():
        return
    row, column = infinite.nonzero()[0].tolist()
    raise ValueError(
        f"Reward model {names[column]!r} returned {rewards[row, column].item()} for a completion: a reward must be a "
        "finite number."
    )


def _watched(function: Callable[..., Any], name: str, errors: list[Exception]) -> Callable[..., Any]:
    """`function`, which keeps its error in `errors` and returns rewards of -inf instead."""

    def failed(error: Exception, rows: int) -> list[float]:
        errors.append(error)
        return [-math.inf] * rows

    @functools.wraps(function)
    def score(*args: Any, **kwargs: Any) -> list[float]:
        try:
            return _checked(name, function(*args, **kwargs), len(kwargs["completions"]))
        except Exception as error:
            return failed(error, len(kwargs["completions"]))

    @functools.wraps(function)
    async def score_async(*args: Any, **kwargs: Any) -> list[float]:
        try:
            return _checked(name, await function(*args, **kwargs), len(kwargs["completions"]))
        except Exception as error:
            return failed(error, len(kwargs["completions"]))

    return score_async if _is_async(function) else score


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _checked(name: str, returned: Any, rows: int) -> list[float]:
    """What a reward function returned as floats, nan where there is no reward."""
    try:
        values = returned.tolist() if hasattr(returned, "tolist") else list(returned)
    except TypeError:
        values = None
    if not isinstance(values, list) or isinstance(returned, (str, bytes, dict)):
        raise TypeError(
            f"Reward function {name!r} returned {returned!r:.200}: it must return a list of {rows} rewards."
        )
    if len(values) != rows:
        raise ValueError(
            f"Reward function {name!r} returned {len(values)} rewards for {rows} completions: it must return one "
            "reward for each, in their order."
        )
    return [_reward(name, value, place, rows) for place, value in enumerate(values)]


def _reward(name: str, value: Any, place: int, rows: int) -> float:
    if value is None:
        return math.nan
    number = math.inf
    if not isinstance(value, (str, bytes)):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            number = float(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if abs(number) > _LARGEST:  # not nan, which is no reward
        raise ValueError(
            f"Reward function {name!r} returned {repr(value)[:200]} for completion {place + 1} of {rows}: a reward "
            "must be a finite number, or None where there is none."
        )
    return number


def checked_rollouts(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `rollout_func` that returns a dict with one completion of at least one token for each prompt, or raises."""

    @functools.wraps(function)
    def generate(prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        output = function(prompts, *args, **kwargs)
        if not isinstance(output, Mapping):
            raise TypeError(
                f"The `rollout_func` returned {repr(output)[:200]}: it must return a dict with prompt_ids, "
                "completion_ids and logprobs."
            )
        if "completion_ids" in output:  # TRL says what is missing
            completions = output["completion_ids"]
            check_completions(len(prompts), len(completions), has_rollout_func=True)
            empty = [place for place, tokens in enumerate(completions) if len(tokens) == 0]
            if empty:
                raise ValueError(
                    f"The `rollout_func` returned a completion without tokens for prompt {empty[0] + 1} of "
                    f"{len(prompts)}: return the end-of-sequence token at least."
                )
        return output

    return generate
