"""Options that would have no effect, and what is missing to honour others: better an error than a silent run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from trl import ModelConfig

from ..checks import check_generation_seed
from ..config import AdaRollGRPOConfig, AdaRollOptions, options_of
from ..option_effects import ignored_options
from ..tasks import Task
from .arguments import TrainArguments
from .rewards import OVERLONG, own_name

_LORA = ("lora_", "use_rslora", "use_dora")
_BNB_4BIT = ("bnb_4bit", "use_bnb_nested_quant")


def check_options(script: TrainArguments, config: AdaRollGRPOConfig, model: ModelConfig) -> None:
    """Refuse options that nothing would read, and a model that cannot be loaded as asked.

    Raises:
        ValueError: naming the option, its value, and what to do about it.
        ImportError: where quantisation is asked for without bitsandbytes.
    """
    for option, value, reason in (*_of_trainer(script, config), *_of_data(script, config), *_of_model(model)):
        raise ValueError(f"{option}={value!r} has no effect {reason}.")
    if script.trainer == "adaroll" and (ignored := ignored_options(options_of(config))):
        raise ValueError(ignored)
    if script.trainer == "adaroll":
        check_generation_seed(config)
    _check_numbers(config)
    if model.model_name_or_path is None:
        raise ValueError("model_name_or_path is missing: a Hub id or a local folder.")
    for option, name in (
        ("model_name_or_path", model.model_name_or_path),
        ("reward_model_name_or_path", script.reward_model_name_or_path),
    ):
        if name is not None and _is_folder(name) and not Path(name).is_dir():
            raise ValueError(f"{option}={name!r}: there is no such folder.")
    if model.load_in_4bit or model.load_in_8bit:
        _check_quantisation(model)


def check_task_options(script: TrainArguments, task: Task | None) -> None:
    """Refuse options of a task that the run does not have, once that is known."""
    own = own_name(task)
    given = script.reward_funcs
    if script.verifier is not None and (given is not None and own not in given):
        raise ValueError(
            f"verifier={script.verifier!r} has no effect beside reward_funcs={given}: it makes the reward {own!r}. "
            f"Add {own!r} to reward_funcs, or remove one of the two."
        )


def _changed(options: Any, defaults: Any, starts: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for item in fields(defaults):
        if item.name.startswith(starts) and getattr(options, item.name) != getattr(defaults, item.name):
            yield item.name, getattr(options, item.name)


def _of_trainer(script: TrainArguments, config: AdaRollGRPOConfig) -> Iterator[tuple[str, Any, str]]:
    if script.trainer == "grpo":
        defaults = AdaRollOptions()
        for name, value in _changed(config, defaults, ("",)):
            default = getattr(defaults, name)
            back = "" if default is None else f" (`--{name} {default}` on the command line undoes a recipe's)"
            yield name, value, f"with trainer='grpo': it is AdaRoll's. Remove it{back}, or use trainer='adaroll'"
        if script.allocation_table:
            yield "allocation_table", True, "with trainer='grpo', whose groups are equal. Use trainer='adaroll'"
    if script.soft_punish_cache is not None and OVERLONG not in (script.reward_funcs or ()):
        yield "soft_punish_cache", script.soft_punish_cache, f"without {OVERLONG!r} in reward_funcs"


def _of_data(script: TrainArguments, config: AdaRollGRPOConfig) -> Iterator[tuple[str, Any, str]]:
    if script.datasets:
        for name in ("task", "dataset_name", "dataset_config"):
            if getattr(script, name) is not None:
                yield name, getattr(script, name), "beside `datasets`, which says where rows come from. Remove one"
        for name, value in script.columns.items():
            yield name, value, "beside `datasets`: the mixture must have a column 'prompt' already"
        if script.instruction is not None:
            yield "instruction", script.instruction, "beside `datasets`: write it into the prompts"
        if script.dataset_streaming:
            yield "dataset_streaming", True, "beside `datasets`. Set `streaming`"
    else:
        for name in ("streaming", "test_split_size"):
            if getattr(script, name):
                yield name, getattr(script, name), "without `datasets`, a mixture"
    if script.task is not None:
        for name, value in script.columns.items():
            yield name, value, f"with task={script.task!r}, which knows its columns. Remove one of the two"
        if script.dataset_config is not None and script.dataset_name is None:
            yield "dataset_config", script.dataset_config, "without dataset_name"
    if script.dataset_streaming and (script.task is not None or script.columns):
        yield "dataset_streaming", True, "here: a task reads all its records"
    if script.max_eval_samples is not None and config.eval_strategy == "no":
        yield "max_eval_samples", script.max_eval_samples, "with eval_strategy='no'"
    if script.ignore_bias_buffers:
        yield "ignore_bias_buffers", True, "in GRPO (TRL's script does not read it either)"


def _of_model(model: ModelConfig) -> Iterator[tuple[str, Any, str]]:
    defaults = ModelConfig()
    if not model.use_peft:
        for name, value in _changed(model, defaults, _LORA):
            yield name, value, "without use_peft. Set use_peft: true"
    if not model.load_in_4bit:
        for name, value in _changed(model, defaults, _BNB_4BIT):
            yield name, value, "without load_in_4bit"


def _is_folder(name: str) -> bool:
    """Whether a model's name can only be a local path: a Hub id has one slash at most, and starts with none."""
    return name.startswith((".", "/", "~")) or name.rstrip("/").count("/") > 1


def _check_numbers(config: AdaRollGRPOConfig) -> None:
    """Values that neither transformers nor TRL looks at before the first step."""
    longest = config.max_completion_length
    if longest is not None and longest < 1:
        raise ValueError(f"max_completion_length={longest} must be at least 1.")
    for name in ("learning_rate", "weight_decay", "max_grad_norm"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < inf:
            raise ValueError(f"{name}={value} must be a finite number of at least 0.")


def _check_quantisation(model: ModelConfig) -> None:
    option = "load_in_4bit" if model.load_in_4bit else "load_in_8bit"
    if not model.use_peft:
        raise ValueError(f"{option}=True needs use_peft: quantised weights cannot be trained, adapters on them can.")
    if find_spec("bitsandbytes") is None:
        raise ImportError(f"{option}=True needs the package bitsandbytes: `pip install bitsandbytes`.")
