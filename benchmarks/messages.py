"""What a process sends while a batch is generated, for GRPO and for 1 to 8 rounds. Counted in a real run:

    torchrun --nproc_per_node 2 benchmarks/messages.py

Counts the collectives that one process takes part in during one generation batch of 128 rollouts of the tiny model
(text prompts, no vLLM), and the bytes that it puts into them. Prints a table. Then times the planner on the batches of
hundreds of GPUs.
"""

# ruff: noqa: E402 (warnings are silenced before the imports that warn)
from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch.distributed as dist
from datasets import Dataset
from torch.distributed import distributed_c10d
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.demo.problems import builtin_problems
from adaroll_trl.demo.tiny import build_model, build_tokenizer
from adaroll_trl.solver import plan_round

# Position of the tensor that this process puts in
COLLECTIVES = {"all_gather": 1, "all_gather_into_tensor": 1, "broadcast": 0, "all_reduce": 0}


class Counter:
    """Counts the collectives and their bytes while it is on."""

    def __init__(self) -> None:
        self.on, self.calls, self.bytes = False, 0, 0
        for name, position in COLLECTIVES.items():
            counted = self._counted(getattr(distributed_c10d, name), position)
            for module in (dist, distributed_c10d):
                setattr(module, name, counted)

    def _counted(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                tensor = args[position] if len(args) > position else kwargs.get("tensor", kwargs.get("input_tensor"))
                self.calls += 1
                self.bytes += tensor.numel() * tensor.element_size()
            return function(*args, **kwargs)

        return call


def count(counter: Counter, rounds: int | None, folder: str) -> tuple[int, int]:
    """Collectives and bytes of one generation batch."""
    tokenizer = build_tokenizer()
    base, config = (GRPOTrainer, GRPOConfig) if rounds is None else (AdaRollGRPOTrainer, AdaRollGRPOConfig)

    class Counting(base):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            counter.on, counter.calls, counter.bytes = True, 0, 0
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                counter.on = False

    def last_digit(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(ids[-1] % 2) for ids in completion_ids]

    trainer = Counting(
        model=build_model(tokenizer, seed=0),
        processing_class=tokenizer,
        reward_funcs=last_digit,
        train_dataset=Dataset.from_list(builtin_problems(64, 0, seed=0).rows()),
        args=config(
            **({} if rounds is None else {"utility": "mixed", "rounds": rounds, "min_rollouts": 1}),
            output_dir=folder,
            num_generations=8,
            per_device_train_batch_size=128 // int(os.environ["WORLD_SIZE"]),
            max_completion_length=16,
            max_steps=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return counter.calls, counter.bytes


def planning(prompts: int) -> tuple[float, float]:
    """Seconds of the first and of the last of 4 rounds, on warm tables."""
    rng = np.random.default_rng(0)
    nothing = np.zeros(prompts, dtype=int)
    n = np.full(prompts, 6)
    s = rng.binomial(n, rng.random(prompts))
    bounds = {"min_rollouts": 2, "max_rollouts": 32}
    seconds = []
    for successes, failures, left, rounds in ((nothing, nothing, 8 * prompts, 4), (s, n - s, 2 * prompts, 1)):
        times = []
        for _ in range(4):
            start = time.perf_counter()
            plan_round(successes, failures, left, rounds, **bounds)
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds[0], seconds[1]


def main() -> None:
    counter = Counter()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for rounds in (None, 1, 2, 4, 8):
            calls, sent = count(counter, rounds, folder)
            lines.append(
                f"| {'GRPO' if rounds is None else f'{rounds} round' + 's' * (rounds > 1)} | {calls} | {sent:,} |"
            )
    if int(os.environ["RANK"]) == 0:
        print("\n| | collectives of a batch | bytes from this process |\n|---|---:|---:|", *lines, sep="\n")
        print("\n| prompts | first of 4 rounds | last |\n|---:|---:|---:|")
        for prompts in (128, 1024, 8192, 65536):
            first, last = planning(prompts)
            print(f"| {prompts:,} | {1e3 * first:.1f} ms | {1e3 * last:.1f} ms |")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
