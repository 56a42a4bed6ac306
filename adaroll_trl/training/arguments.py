"""The arguments of `adaroll train` beside AdaRollGRPOConfig's and TRL's ModelConfig, and their parser."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import torch
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments

from ..config import AdaRollGRPOConfig
from ..parsing import NamingParser

TRAINERS = ("adaroll", "grpo")
COLUMN_OPTIONS = ("prompt_column", "answer_column", "id_column", "level_column", "verifier")


@dataclass
class TrainArguments(DatasetMixtureConfig, ScriptArguments):
    """What to train on, and with which trainer: TRL's script arguments, its data set mixtures, and a task by name.

    `dataset_name` is a Hub id or a local path. One of `task`, `dataset_name` and `datasets` says where prompts come
    from; `task` with `dataset_name` reads the task's records from there.

    Raises:
        ValueError: for a value that cannot be right.
    """

    trainer: Literal["adaroll", "grpo"] = field(
        default="adaroll",
        metadata={"help": "'adaroll' (AdaRollGRPOTrainer) or 'grpo' (TRL's GRPOTrainer)."},
    )
    task: str | None = field(
        default=None,
        metadata={"help": "A task by name: its data set, prompt and reward. `dataset_name` replaces its source."},
    )
    prompt_column: str | None = field(
        default=None,
        metadata={"help": "Column with the question, in a data set of your own. None: the first usual name."},
    )
    answer_column: str | None = field(
        default=None,
        metadata={"help": "Column with the gold answer, in a data set of your own. None: the first usual name."},
    )
    id_column: str | None = field(
        default=None,
        metadata={"help": "Column that tells prompts apart, in a data set of your own. None: a hash of the prompt."},
    )
    level_column: str | None = field(
        default=None, metadata={"help": "Column with a difficulty, in a data set of your own."}
    )
    verifier: str | None = field(
        default=None,
        metadata={
            "help": "How completions are compared with the gold answers in a data set of your own: 'number', 'math', "
            "'letter', 'yes_no' or 'text'. None: guessed from the gold answers."
        },
    )
    instruction: str | None = field(
        default=None,
        metadata={"help": "What each prompt ends with, instead of the task's or the verifier's own words."},
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions. None: the task's own. By name: the task's (such as `gsm8k_accuracy`, or "
            "`answer_accuracy` for a data set of your own), `accuracy_reward`, `reasoning_accuracy_reward`, "
            "`think_format_reward`, `get_soft_overlong_punishment` "
            "(lengths from `max_completion_length` and `soft_punish_cache`), or a dotted path "
            "(`my_lib.rewards.mine` or `my_lib.rewards:mine`). `reward_weights` weighs them in this order."
        },
    )
    reward_model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A reward model (sequence classification), Hub id or local path; it comes first."},
    )
    soft_punish_cache: int | None = field(
        default=None,
        metadata={
            "help": "Only for `get_soft_overlong_punishment`: its penalty grows from 0 to -1 over this many last "
            "tokens before `max_completion_length`. None means a fifth of it."
        },
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on the first so many rows only. None takes all."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on the first so many rows only. None takes all."}
    )
    allocation_table: bool = field(
        default=False,
        metadata={
            "help": "Print every `logging_steps` where the newest batch's rollouts went, by success rate. Only for "
            "trainer='adaroll'."
        },
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "Print the resolved plan and stop: no weights are loaded and no accelerator is touched."},
    )
    assume_processes: int | None = field(
        default=None,
        metadata={"help": "Only for `dry_run`: plan for this many processes. None takes $WORLD_SIZE, else 1."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.reward_funcs, str):  # `reward_funcs: name` in YAML
            self.reward_funcs = [self.reward_funcs]
        if self.trainer not in TRAINERS:  # argparse does not check values from YAML
            raise ValueError(f"trainer={self.trainer!r} is not known. Use one of 'adaroll', 'grpo'.")
        for name in ("max_train_samples", "max_eval_samples", "assume_processes", "soft_punish_cache"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1.")
        if self.assume_processes is not None and not self.dry_run:
            raise ValueError(
                f"assume_processes={self.assume_processes} has no effect without dry_run: a launcher (`accelerate "
                "launch`, `torchrun`) sets the number of processes of a run."
            )

    @property
    def columns(self) -> dict[str, str]:
        """The options that map a data set of the user's own, by name, where given."""
        given = {name: getattr(self, name) for name in COLUMN_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}


def planned_config(processes: int) -> type[AdaRollGRPOConfig]:
    """AdaRollGRPOConfig for `processes` processes that are not there: a dry run starts none and looks at no device."""

    class PlannedConfig(AdaRollGRPOConfig):
        world_size = property(lambda self: processes)
        process_index = property(lambda self: 0)
        local_process_index = property(lambda self: 0)
        device = property(lambda self: torch.device("cpu"))
        n_gpu = property(lambda self: 0)

        def __post_init__(self) -> None:
            # What transformers would try out on the machine at hand, which need not be the one to train on
            elsewhere = {"use_cpu": True, "deepspeed": None, "tf32": None, "torch_compile": False}
            given = {name: getattr(self, name) for name in elsewhere}
            for name, value in elsewhere.items():
                setattr(self, name, value)
            super().__post_init__()
            for name, value in given.items():
                setattr(self, name, value)

    return PlannedConfig


class TrainParser(NamingParser):
    """The commands' parser, with errors in one sentence; a dry run plans for processes that are not there."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}.")  # argparse would print the usage of all options

    def set_defaults_with_config(self, **kwargs: Any) -> list[str]:
        unused = super().set_defaults_with_config(**kwargs)
        for action in self._actions:
            if not _fits(action, kwargs.get(action.dest)):
                number = "an integer" if _kind(action) == "int" else "a number"
                value = kwargs[action.dest]
                raise ValueError(f"The config file has {action.dest}: {value!r}, which must be {number}.")
        return unused

    def prepare(self, options: argparse.Namespace) -> None:
        if options.dry_run:
            planned: Any = planned_config(_processes(options))
            self.dataclass_types = [planned if kind is AdaRollGRPOConfig else kind for kind in self.dataclass_types]


def _kind(action: argparse.Action) -> str:
    """ "int", "float" or another; newer TRL wraps the type of an option that may be None, but keeps its name."""
    return getattr(action.type, "__name__", "")


def _fits(action: argparse.Action, value: Any) -> bool:
    """Whether a value from YAML is the number that an option wants; argparse looks at text only."""
    kind = {"int": int, "float": float}.get(_kind(action))
    if kind is None or action.nargs is not None or value is None:
        return True
    if not isinstance(value, str):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    try:  # such as 1e-6, a text in YAML
        kind(value)
    except ValueError:
        return value.lower() in ("none", "null")
    return True


def _processes(options: argparse.Namespace) -> int:
    given = options.assume_processes
    return max(1, int(os.environ.get("WORLD_SIZE") or 1) if given is None else int(given))


def make_parser() -> TrainParser:
    """TRL's parser: `--config recipe.yaml`, and the command line over it."""
    dataclass_types: Any = [TrainArguments, AdaRollGRPOConfig, ModelConfig]
    return TrainParser(
        dataclass_types,
        prog="adaroll train",
        description="Train with GRPO or AdaRoll-GRPO. Every option may stand in a YAML file given by --config; the "
        "command line wins. --dry-run shows what would happen.",
    )


def parse(arguments: Sequence[str] | None = None) -> tuple[TrainArguments, AdaRollGRPOConfig, ModelConfig]:
    """Parse `--config` and the command line over it.

    Raises:
        ValueError: for an unknown option or key, naming the nearest one, and for values that cannot be right.
        OSError: if the config file cannot be read.
    """
    parsed: Any = make_parser().parse_args_and_config(arguments, fail_with_unknown_args=True)
    return parsed[0], parsed[1], parsed[2]
