"""From parsed arguments to what a run is made of: its task, data, rewards and success; bad combinations end here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl import ModelConfig

from ..config import AdaRollGRPOConfig
from ..tasks import Task
from ..tasks.sources import is_local
from .arguments import TrainArguments
from .data import find_task, load_split
from .refusals import check_options, check_task_options
from .rewards import Reward, check_columns, choose_success, make_rewards


@dataclass
class Run:
    """A run without its model.

    Attributes:
        script, config, model: the arguments; `config.success_reward` is resolved.
        task (`Task`, *optional*): None where the data set is used as it is.
        train_dataset, eval_dataset (data sets, *optional*): None where given elsewhere, not to be had, or not needed.
        missing (`str`, *optional*): why the data could not be looked at, a sentence; in a dry run.
        rewards (list): names of reward models, and functions.
        success (`str`): which reward says that a rollout succeeded, and why it is that one.
    """

    script: TrainArguments
    config: AdaRollGRPOConfig
    model: ModelConfig
    task: Task | None
    train_dataset: Any
    eval_dataset: Any
    missing: str | None
    rewards: list[Reward]
    success: str


def resolve(script: TrainArguments, config: AdaRollGRPOConfig, model: ModelConfig, given: Collection[str] = ()) -> Run:
    """Look at everything but the model.

    Args:
        script, config, model: as `parse` gives them. `config.success_reward` is set where it is chosen here.
        given (names): arguments of the trainer that come from elsewhere, and are not made here.

    Raises:
        ValueError: for options that would have no effect, and for a model, data or rewards that are not there. A dry
            run puts up with data of the Hub that cannot be had here, and with a data file that is still to be put at
            a relative path, as recipes have it; not with an absolute path that does not exist.
        ImportError: where quantisation is asked for without bitsandbytes.
    """
    if "model" not in given or model.model_name_or_path is not None:
        check_options(script, config, model)
    task = find_task(script) if script.task or "train_dataset" not in given else None
    train, evaluation, missing = None, None, None
    try:
        if "train_dataset" not in given:
            train = load_split(script, task)
        if "eval_dataset" not in given and config.eval_strategy != "no":
            evaluation = load_split(script, task, evaluation=True)
            if not script.datasets:  # a mixture is split by TRL, and may hold a row twice
                _check_apart(train, evaluation, script)
    except ValueError as error:
        missing = _missing(error, script) if script.dry_run else None
        if missing is None:
            raise
    rewards: list[Reward] = []
    if "reward_funcs" not in given:
        check_task_options(script, task)
        rewards = make_rewards(script, config, task)
        if train is not None and train.column_names is not None:
            check_columns(rewards, train.column_names)
    success = "given elsewhere"
    if rewards:
        chosen, success = choose_success(rewards, task, config.success_reward)
        if script.trainer == "adaroll":
            config.success_reward = chosen
    return Run(script, config, model, task, train, evaluation, missing, rewards, success)


def _check_apart(train: Any, evaluation: Any, script: TrainArguments) -> None:
    """Refuse to evaluate on the rows that are trained on, as happens with one local file for both splits."""
    if any(not hasattr(data, "__len__") or not len(data) for data in (train, evaluation)):
        return
    seen = train["prompt"][:]
    if all(prompt in seen for prompt in evaluation["prompt"][:3]):
        raise ValueError(
            f"dataset_name={script.dataset_name!r}: the first rows of the evaluation split "
            f"{script.dataset_test_split!r} are in the training split {script.dataset_train_split!r} too. Give a "
            "folder with a file for each split, or a data set that has both, or set eval_strategy to 'no'."
        )


def _missing(error: BaseException, script: TrainArguments) -> str | None:
    """In words that the data is only missing on this machine: a file at a relative path, or behind a failure of the
    Hub client (they are all OSErrors)."""
    if script.dataset_name is not None and is_local(script.dataset_name):
        path = Path(script.dataset_name).expanduser()
        absent = not path.is_absolute() and not path.exists()
        return f"This run cannot start until its data is there: {error}" if absent else None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return f"The data could not be looked at: {error}"
        cause = cause.__cause__
    return None
