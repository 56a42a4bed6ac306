"""Runs on every process: trains every case against a real vLLM and leaves each rank's results in a file.

python -m tests.workers.vllm MODEL_DIR OUTPUT_DIR {server,colocate} [URL]
torchrun --nproc_per_node 2 -m tests.workers.vllm MODEL_DIR OUTPUT_DIR zero3 URL
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

    # Plain gloo, not an extension that it compiles for minutes, into a folder that other environments share
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # Before any config is built: otherwise accelerate falls back to DDP
    PartialState(backend="gloo")

from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from adaroll_trl.streaming.apart import replaced
from tests.compatibility import BUDGET, adaptive
from tests.cpu_vllm import Record, colocate, connect, finished_requests, rescored
from tests.tiny import (
    RecordingTrainer,
    deepspeed_config,
    engine_of,
    leave_process_group,
    make_trainer,
    prompts_of,
    weights,
)

MODEL, OUTPUT = Path(sys.argv[1]), Path(sys.argv[2])
URL = sys.argv[4] if len(sys.argv) > 4 else None
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


STREAM = {"stream_rollouts": True, "in_flight": 4, "allocator": "tests.tiny:HardestFirst", "rounds": None}


def lora() -> LoraConfig:
    return LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"])


def cases() -> dict[str, dict[str, Any]]:
    """By name: options of the trainer; `faults` are passed to `Record.reset`."""
    found: dict[str, dict[str, Any]] = {
        "1 round": {"rounds": 1},
        "2 rounds": {"rounds": 2},
        "4 rounds": {"rounds": 4},
        "LoRA": {"trainer_kwargs": {"peft_config": lora()}},
        "control: weights sent once": {"faults": {"drop_weights_after": 1}},
        "control: rows mixed up": {"faults": {"mix_rows_up": True}},
        "stream": STREAM,
        "control: stream, prompts not exchanged": {**STREAM, "trainer_class": ForgetfulTrainer},
    }
    if LAUNCH != "zero3":
        found |= {
            "uniform": {"allocator": "uniform", "rounds": None},
            "token_truncate": {"vllm_importance_sampling_mode": "token_truncate"},
            "no correction": {"vllm_importance_sampling_correction": False},
            "two batches in a step": {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 2},
            "stream, LoRA": {**STREAM, "trainer_kwargs": {"peft_config": lora()}},
            "control: stream, weights sent once": {**STREAM, "faults": {"drop_weights_after": 1}},
        }
    if LAUNCH == "colocate":
        found["sleep mode"] = {"vllm_enable_sleep_mode": True}
        found["stream, sleep mode"] = {**STREAM, "vllm_enable_sleep_mode": True}
        found["sleep mode, LoRA"] = {"vllm_enable_sleep_mode": True, "trainer_kwargs": {"peft_config": lora()}}
        found["sleep mode, 1 round"] = {"vllm_enable_sleep_mode": True, "rounds": 1}
        found["control: asleep, weights not sent"] = {
            "vllm_enable_sleep_mode": True,
            "faults": {"drop_weights_after": 1},
        }
    return found


class BatchesTrainer(RecordingTrainer):
    """Keeps how many completions each generation call of each batch asked for."""

    record: Record

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        before = len(self.record.asked)
        output = super()._generate_and_score_completions(inputs)
        self.asked = [*getattr(self, "asked", []), self.record.asked[before:]]
        return output


class ForgetfulTrainer(BatchesTrainer):
    """TRL goes on with the prompts that it gave to the backend, whatever was generated."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        streamed = self.vllm_generation.generate

        def forgetful(*, prompts: Any, **options: Any) -> Any:
            return streamed(prompts=list(prompts), **options)

        with replaced(self.vllm_generation, "generate", forgetful):
            return super()._generate(*args, **kwargs)


def build(trainer_class: type = BatchesTrainer, **extra: Any) -> Any:
    options: dict[str, Any] = {
        "rounds": 3,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8 // WORLD,
        "use_vllm": True,
        "vllm_mode": "colocate" if LAUNCH == "colocate" else "server",
        "vllm_server_base_url": URL,
        **extra,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if LAUNCH == "zero3":
        AcceleratorState._reset_state()  # it takes a DeepSpeed plugin only once
        options |= {
            "use_cpu": False,
            "accelerator_config": {"use_configured_state": True},
            "deepspeed": deepspeed_config(3),
        }
    return adaptive(MODEL, OUTPUT / "run", trainer_class, **options)


def differences(output: dict[str, Any]) -> dict[str, Any]:
    """What vLLM sampled with against the trainer's log-probabilities, over this rank's tokens."""
    found = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()
    found = found[output["completion_mask"].bool()]
    return {
        "mean": found.mean().item(),
        "max": found.max().item(),
        "ratios": output.get("importance_sampling_ratio"),
    }


def run(record: Record, checkpoint: Any, faults: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    record.reset(**(faults or {}))
    trainer = build(**options)
    trainer.record, built = record, list(record.calls)
    before = finished_requests(URL) if URL and RANK == 0 else 0
    trainer.train()
    outputs = [output for _, output in trainer.recorded]
    return {
        "engine": engine_of(trainer),
        "world": trainer.accelerator.num_processes,
        "budget": BUDGET,
        "steps": trainer.state.global_step,
        "calls_of_init": built,
        "calls": record.calls[len(built) :],
        "asked": trainer.asked,
        "transfers": record.transfers,
        "finished": finished_requests(URL) - before if URL and RANK == 0 else None,
        "prompts": [prompts_of(output) for output in outputs],
        "differences": [differences(output) for output in outputs],
        "rescored": rescored(checkpoint, prompts_of(outputs[0]), outputs[0]),
        "log": [{k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history[:-1]],
    }


def plain_and_streamed(record: Record) -> list[dict[str, Any]]:
    """GRPOTrainer and a stream of equal groups, with a seed for each completion: their weights and logs."""
    record.reset(seeded=True)
    found = []
    for trainer_class, own in (
        (GRPOTrainer, {"plain_config": True}),
        (BatchesTrainer, {"allocator": "uniform", "stream_rollouts": True, "in_flight": 5}),
    ):
        options = {"max_steps": 6, "learning_rate": 1e-2, "per_device_train_batch_size": 8, "steps_per_generation": 2}
        trainer = make_trainer(
            trainer_class,
            model_dir=MODEL,
            output_dir=OUTPUT / "run",
            use_vllm=True,
            vllm_mode="colocate",
            **options,
            **own,
        )
        trainer.record = record
        trainer.train()
        found.append({"weights": weights(trainer), "log": trainer.state.log_history})
    return found


def main() -> None:
    checkpoint = AutoModelForCausalLM.from_pretrained(
        MODEL
    ).eval()  # before a trainer makes ZeRO-3 cut up what is loaded
    record = Record()
    if LAUNCH == "colocate":
        colocate(record)
    else:
        connect(record, OUTPUT / "weights")
    results: dict[str, Any] = {}
    for name, options in cases().items():
        print(f"{time.strftime('%H:%M:%S')} {LAUNCH}: {name}", flush=True)
        results[name] = run(record, checkpoint, **options)
    if LAUNCH == "colocate":
        results["stream"]["plain and streamed"] = plain_and_streamed(record)
    torch.save(results, OUTPUT / f"rank{RANK}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
