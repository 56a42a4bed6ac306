"""Runs on every process: trains what the test asks for and leaves each rank's results in a file.

torchrun --nproc_per_node 2 -m tests.workers.distributed MODEL_DIR OUTPUT_DIR {ddp,zero2,zero3}
"""

# ruff: noqa: E402 (the process group comes before TRL)
from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

BACKEND = sys.argv[3]
if BACKEND != "ddp":
    # Before any config is built: otherwise accelerate falls back to DDP, or picks a backend that needs a GPU
    os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
    PartialState(backend="gloo")

from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from tests.tiny import (
    FixedCounts,
    RandomCounts,
    RecordingTrainer,
    completions_of,
    deepspeed_config,
    engine_of,
    leave_process_group,
    length_reward,
    make_trainer,
    parity_reward,
    patchy_reward,
    prompts_of,
)

MODEL, OUTPUT = Path(sys.argv[1]), Path(sys.argv[2])
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])


def options(**extra: Any) -> dict[str, Any]:
    """Batches of 3 prompts and 12 rollouts, whose groups of 4 lie across the ranks."""
    result: dict[str, Any] = {
        "model_dir": MODEL,
        "output_dir": OUTPUT / "run",
        "per_device_train_batch_size": 4 // WORLD,
        "steps_per_generation": 3,
        "num_generations": 4,
        "max_steps": 4,
        "reward": [parity_reward, length_reward],
        "ddp_find_unused_parameters": False,
        **extra,
    }
    if BACKEND != "ddp":
        result |= {
            "use_cpu": False,
            "accelerator_config": {"use_configured_state": True},
            "deepspeed": deepspeed_config(int(BACKEND[-1])),
        }
    return result


def full_weights(trainer: Any) -> dict[str, torch.Tensor]:
    named = list(trainer.model.named_parameters())
    gathered: Any = nullcontext()
    if BACKEND == "zero3":
        import deepspeed

        gathered = deepspeed.zero.GatheredParameters([parameter for _, parameter in named])
    with gathered:
        return {name: parameter.detach().clone() for name, parameter in named}


def new_trainer(trainer_class: type, **extra: Any) -> Any:
    if BACKEND != "ddp":
        AcceleratorState._reset_state()  # it takes a DeepSpeed plugin only once
    return make_trainer(trainer_class, **options(**extra))


def train(trainer_class: type, allocator: Any = None, **extra: Any) -> Any:
    """Train; `allocator` replaces the one of the config, which is `uniform`."""
    if "plain_config" not in extra:
        extra["allocator"] = "uniform"
    trainer = new_trainer(trainer_class, **extra)
    if allocator is not None:
        trainer.allocator = allocator
    trainer.train()
    return trainer


def numbers(trainer: Any) -> list[dict[str, float]]:
    return [{k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history[:-1]]


def equivalence(results: dict[str, Any]) -> None:
    cases: dict[str, Any] = {"default": {}}
    if BACKEND == "ddp":
        cases["none_rewards"] = {"reward": [patchy_reward], "scale_rewards": "batch"}
    for case, extra in cases.items():
        plain = train(GRPOTrainer, plain_config=True, **extra)
        ours = train(AdaRollGRPOTrainer, **extra)
        other = train(AdaRollGRPOTrainer, FixedCounts([[2, 2, 8]]), **extra)
        results[case] = {
            "plain": (full_weights(plain), numbers(plain)),
            "ours": (full_weights(ours), numbers(ours)),
            "other": (full_weights(other), numbers(other)),
            "engine": (*engine_of(ours), ours.accelerator.num_processes),
        }


class SharesTrainer(RecordingTrainer):
    """Keeps the prompts of this rank's rows in each round."""

    def _calculate_rewards(self, inputs: Any, *args: Any) -> Any:
        self.shares = [*getattr(self, "shares", []), [row["prompt"][0]["content"] for row in inputs]]
        return super()._calculate_rewards(inputs, *args)


def unequal(results: dict[str, Any]) -> None:
    extra = {"belief_decay": 0.5, "max_steps": 3, "min_rollouts": 1, "save_strategy": "steps", "save_steps": 3}
    extra |= {"success_reward": "parity_reward", "prior_source": "empirical_bayes"}
    trainer = train(SharesTrainer, RandomCounts(3), log_completions=True, **extra)
    ((_, output),) = trainer.recorded
    results["unequal"] = {
        "prompts": prompts_of(output),
        "completions": completions_of(output),
        "advantages": output["advantages"].tolist(),
        "num_items_in_batch": output["num_items_in_batch"].item(),
        "shares": trainer.shares,
        "log": numbers(trainer)[0],
        "beliefs": trainer._beliefs.state_dict(),
        "visits": trainer._beliefs.prior_fit.state_dict(),
        "group_sizes": list(trainer._logs["extra"]["group_size"]),
        "table": {name: len(column) for name, column in trainer._logs["extra"].items()},
        "logged_advantages": list(trainer._logs["advantages"]),
        "weights": full_weights(trainer),
    }
    resumed = new_trainer(SharesTrainer, **{**extra, "max_steps": 6}, allocator="uniform")
    resumed.allocator = Watching(3)
    resumed.train(resume_from_checkpoint=str(OUTPUT / "run" / "checkpoint-3"))
    results["resumed"] = {
        "loaded": resumed.allocator.loaded,
        "after": resumed._beliefs.state_dict(),
        "prior": resumed._beliefs.common,
    }


class Watching(RandomCounts):
    loaded: Any = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


class Broken(RandomCounts):
    def allocate(self, *args: Any) -> np.ndarray:
        raise RuntimeError("table is lost")


def failure(results: dict[str, Any]) -> None:
    try:
        train(AdaRollGRPOTrainer, Broken(2))
    except RuntimeError as error:
        results["failure"] = str(error)


def main() -> None:
    results: dict[str, Any] = {"rank": RANK, "world": WORLD}
    equivalence(results)
    unequal(results)
    failure(results)
    torch.save(results, OUTPUT / f"rank{RANK}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
