"""Runs on every process: streams on every backend, and with a reward function that fails on one; leaves the results.

torchrun --nproc_per_node 2 -m tests.workers.streaming MODEL_DIR OUTPUT_DIR {ddp,zero3} SERVER_URL
"""

# ruff: noqa: E402 (the process group comes before TRL)
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

LAUNCH = sys.argv[3]
if LAUNCH == "zero3":
    os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    PartialState(backend="gloo")

from tests.compatibility import adaptive, ids_parity, parity
from tests.standin import StandInLLM, pretend_vllm
from tests.test_streaming import CONTINUOUS
from tests.tiny import deepspeed_config, leave_process_group

MODEL, OUTPUT, URL = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[4]
RANK = int(os.environ["RANK"])


def build(**options: Any) -> Any:
    common: dict[str, Any] = {
        "stream_rollouts": True,
        "in_flight": 3,
        "rounds": 4,
        "allocator": "tests.tiny:HardestFirst",
        "per_device_train_batch_size": 4,
        "ddp_find_unused_parameters": False,
    }
    if LAUNCH == "zero3":
        AcceleratorState._reset_state()  # it takes a DeepSpeed plugin only once
        own = {
            "use_cpu": False,
            "accelerator_config": {"use_configured_state": True},
            "deepspeed": deepspeed_config(3),
        }
        common = {**common, **own}
    return adaptive(MODEL, OUTPUT / "run", **{**common, **options})


class Scored:
    """`parity`, with how many completions this process was asked about; on one process it may fail."""

    __name__ = "scored"

    def __init__(self, fails_on: int | None = None) -> None:
        self.rows, self.fails_on = 0, fails_on

    def __call__(self, completion_ids: Any, log_extra: Any, **columns: Any) -> list[float]:
        self.rows += len(completion_ids)
        if self.fails_on == RANK and self.rows > 3:
            raise ZeroDivisionError("the judge is out")
        log_extra("parity", [ids_parity(ids) for ids in completion_ids])
        return parity(completion_ids=completion_ids, **columns)


def run(options: dict[str, Any]) -> dict[str, Any]:
    reward = Scored()
    trainer = build(reward=reward, **options)
    trainer.train()
    return {
        "world": trainer.accelerator.num_processes,
        "engine": type(trainer.model_wrapped).__name__,
        "outputs": [output for _, output in trainer.recorded],
        "scored": reward.rows,
        "columns": {name: list(values) for name, values in trainer._logs["extra"].items()},
        "rewards": list(trainer._logs["rewards"]["scored"]),
        "log": [{k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history[:-1]],
    }


def fail(options: dict[str, Any]) -> str:
    """How a run ends whose reward function fails on the process that scores: the last, or the main one."""
    main_scores = options.get("vllm_mode") == "server"
    trainer = build(reward=Scored(fails_on=0 if main_scores else 1), **options)
    try:
        trainer.train()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    pretend_vllm()
    backends = {
        "server": {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": URL},
        "colocate": {"use_vllm": True, "vllm_mode": "colocate"},
        "continuous": CONTINUOUS,
    }
    if LAUNCH == "zero3":
        del backends["colocate"]  # for time: the stand-in has no weights
    results: dict[str, Any] = {}
    for name, options in backends.items():
        results[name] = run(options)
        if name == "colocate":
            results[name]["running"] = len(StandInLLM.last.llm_engine.running)
    results["failures"] = {name: fail(options) for name, options in backends.items()}
    torch.save(results, OUTPUT / f"rank{RANK}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
