"""Processes that were set up differently are told so, before their collectives meet."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from accelerate.utils import gather_object

from .checks import number_of_rows


def check_agreement(trainer: Any) -> None:
    """Raise on every process if they do not all have the same reward functions, options and sizes.

    A reward function more on one process gives collectives of other sizes, which hang or abort; another option or
    reward weight would go unnoticed.

    Raises:
        ValueError: naming the first thing that differs, and what each process has.
    """
    if trainer.accelerator.num_processes == 1:
        return
    mine = {
        "reward_funcs": trainer.reward_func_names,
        "reward_weights": trainer.reward_weights.tolist(),
        "num_generations": trainer.num_generations,
        "steps_per_generation": trainer.args.steps_per_generation,
        "per_device_train_batch_size": trainer.args.per_device_train_batch_size,
        "scale_rewards": trainer.scale_rewards,
        "rows of train_dataset": number_of_rows(trainer.train_dataset),
        **asdict(trainer.adaroll),
    }
    del mine["table_cache_dir"]  # the main process's alone
    everyone = gather_object([mine])
    for name in mine:
        if len({repr(theirs[name]) for theirs in everyone}) > 1:
            found = "; ".join(f"{theirs[name]!r} on process {rank}" for rank, theirs in enumerate(everyone))
            raise ValueError(
                f"{name} differs between processes: {found}. All processes of a run need the same configuration and "
                "the same data set."
            )
