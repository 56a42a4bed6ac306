"""The arguments of `adaroll train` beside AdaRollGRPOConfig's and TRL's ModelConfig."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trl import ModelConfig, ScriptArguments, TrlParser

from ..config import AdaRollGRPOConfig


@dataclass
class TrainArguments(ScriptArguments):
    """What to train on, and with which trainer. `dataset_name` is a Hub id or a local path."""

    trainer: Literal["adaroll", "grpo"] = field(
        default="adaroll",
        metadata={"help": "'adaroll' (AdaRollGRPOTrainer) or 'grpo' (TRL's GRPOTrainer)."},
    )
    task: str | None = field(
        default=None,
        metadata={"help": "A task by name: its data set, prompt and reward. `dataset_name` replaces its source."},
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={"help": "Reward functions by name or dotted path, instead of the task's own."},
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "Print the resolved plan and stop before the model is loaded."},
    )


def make_parser() -> TrlParser:
    """TRL's parser: `--config recipe.yaml`, and the command line over it."""
    dataclass_types: Any = (TrainArguments, AdaRollGRPOConfig, ModelConfig)
    return TrlParser(dataclass_types, prog="adaroll train")


def parse(arguments: list[str] | None = None) -> tuple[TrainArguments, AdaRollGRPOConfig, ModelConfig]:
    parsed: Any = make_parser().parse_args_and_config(args=arguments, fail_with_unknown_args=True)
    return parsed[0], parsed[1], parsed[2]
