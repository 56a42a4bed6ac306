"""Runs on every process: streams on every backend, and with a fault on one of the processes; leaves the results.

torchrun --nproc_per_node 2 -m tests.workers.streaming MODEL_DIR OUTPUT_DIR {ddp,zero3} SERVER_URL
"""

# ruff: noqa: E402 (the process group comes before TRL)
from __future__ import annotations

import os
import sys
import time
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
from tests.test_streaming import CONTINUOUS, threads_of_streams
from tests.tiny import deepspeed_config, engine_of, leave_process_group

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
        "engine": engine_of(trainer),
        "outputs": [output for _, output in trainer.recorded],
        "scored": reward.rows,
        "columns": {name: list(values) for name, values in trainer._logs["extra"].items()},
        "rewards": list(trainer._logs["rewards"]["scored"]),
        "log": [{k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history[:-1]],
    }


def fail(options: dict[str, Any], engine_dies: bool = False) -> dict[str, Any]:
    """How a run ends with a fault on one process, and what the next call brings when it is mended.

    The engine dies on the last process; or the reward function fails on the one that scores, the last or the main one.
    """
    main_scores = options.get("vllm_mode") == "server"
    reward = Scored(fails_on=None if engine_dies else 0 if main_scores else 1)
    trainer = build(reward=reward, **options)
    if engine_dies and RANK == 1:
        StandInLLM.last.llm_engine.fail_at = 6
    result: dict[str, Any] = {"error": "none"}
    start = time.monotonic()
    try:
        trainer.train()
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    result["seconds"] = time.monotonic() - start
    result["threads"] = threads_of_streams()
    if options.get("vllm_mode") == "colocate":
        result["running"] = len(StandInLLM.last.llm_engine.running)
        StandInLLM.last.llm_engine.fail_at = None
    reward.fails_on = None
    inputs = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    result["next"] = trainer._generate_and_score_completions(inputs)
    return result


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
    if "colocate" in backends:
        results["failures"]["engine"] = fail(backends["colocate"], engine_dies=True)
    torch.save(results, OUTPUT / f"rank{RANK}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
