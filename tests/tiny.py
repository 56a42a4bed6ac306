"""Tiny models, data, rewards, allocators and trainers for the tests and their multi-process workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.allocators import AllocationState, Allocator, RolloutStream
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.gpu_check.model import build_model_dir as build_model_dir
from adaroll_trl.gpu_check.model import build_tokenizer as build_tokenizer


def build_lively_model_dir(path: Path) -> Path:
    """The tests' tiny Llama with larger weights, so that what it says depends on the prompt."""
    build_model_dir(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    model.save_pretrained(path)
    return path


def leave_process_group() -> None:
    """The last line of a worker: gloo's threads, alive when the interpreter ends, abort a rank now and then (-6)."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def engine_of(trainer: Any) -> tuple[str, int]:
    """What wraps the model, by the name of its class, and DeepSpeed's ZeRO stage; 0 without."""
    wrapped = trainer.model_wrapped
    stage = wrapped.zero_optimization_stage() if hasattr(wrapped, "zero_optimization_stage") else 0
    return type(wrapped).__name__, stage


def sums_dataset(size: int, plain: bool = False) -> Dataset:
    texts = [f"What is {i} + {i * i % 97}{' in words' * (i % 3)}?" for i in range(size)]
    prompts: list[Any] = texts if plain else [[{"role": "user", "content": text}] for text in texts]
    return Dataset.from_dict({"prompt": prompts, "number": list(range(size))})


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def parity_reward(completions: list[Any], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """0 or 1, about evenly, by the completion's tokens."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def length_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """A graded reward: the share of distinct tokens."""
    return [len(set(ids)) / len(ids) for ids in completion_ids]


def patchy_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
    """None for every third kind of completion."""
    return [None if sum(ids) % 3 == 0 else float(sum(ids) % 2) for ids in completion_ids]


class FixedCounts(Allocator):
    """Plays a given list of counts, one per round, whatever it is told."""

    name = "fixed"

    def __init__(self, plan: list[list[int]]) -> None:
        self.plan = plan
        self.states: list[AllocationState] = []

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return len(self.plan)

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> np.ndarray:
        self.states.append(state)
        return np.array(self.plan[len(self.plan) - rounds_left])


class RandomCounts(Allocator):
    """Spends the budget at random within the bounds, in `rounds` rounds."""

    name = "random"

    def __init__(self, rounds: int = 3, seed: int = 0) -> None:
        self.rounds = rounds
        self.random = np.random.default_rng(seed)

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return self.rounds

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> np.ndarray:
        unit = state.multiple_of
        total = rollouts_left if rounds_left == 1 else max(unit, rollouts_left // rounds_left // unit * unit)
        counts = np.zeros(state.num_prompts, dtype=np.int64)
        for _ in range(total):
            counts[self._next(state, counts)] += 1
        return counts

    def _next(self, state: AllocationState, counts: np.ndarray) -> int:
        have = np.asarray(state.rollouts) + counts
        short = np.flatnonzero(have < state.min_rollouts)
        if len(short):
            return int(short[0])
        room = np.flatnonzero(have < (state.max_rollouts or 10**9))
        return int(self.random.choice(room))


class Hardest(RolloutStream):
    """The minimum for every prompt, then always the prompt with the most failures, as far as its maximum."""

    def __init__(self, state: AllocationState) -> None:
        self.state = state
        self.counts = np.zeros(state.num_prompts, dtype=np.int64)
        self.failures = np.zeros(state.num_prompts)

    def next_prompt(self) -> int:
        short = np.flatnonzero(self.counts < self.state.min_rollouts)
        room = np.flatnonzero(self.counts < (self.state.max_rollouts or 10**9))
        prompt = int(short[0]) if len(short) else int(room[np.argmax(self.failures[room])])
        self.counts[prompt] += 1
        return prompt

    def record(self, prompt: int, success: bool | None) -> None:
        self.failures[prompt] += success is False


class HardestFirst(Allocator):
    """Streams `Hardest`; by name: `allocator="tests.tiny:HardestFirst"`."""

    name, streams = "hardest_first", True

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> np.ndarray:
        raise NotImplementedError

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        return Hardest(state)


class RecordingTrainer(AdaRollGRPOTrainer):
    """Keeps the inputs and the output of every generation batch."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.recorded = [*getattr(self, "recorded", []), (inputs, dict(output))]
        return output


def completions_of(output: dict[str, Any]) -> list[list[int]]:
    """The completion tokens of each row, without padding."""
    return [
        ids[mask.bool()].tolist()
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)
    ]


def prompts_of(output: dict[str, Any]) -> list[tuple[int, ...]]:
    """The prompt tokens of each row, without padding."""
    return [
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(output["prompt_ids"], output["prompt_mask"], strict=True)
    ]


def make_trainer(
    trainer_class: type,
    *,
    model_dir: Path,
    output_dir: Path,
    dataset: Any = None,
    reward: Any = parity_reward,
    plain_config: bool = False,
    config_class: type | None = None,
    trainer_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    defaults: dict[str, Any] = {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": 4,
        "steps_per_generation": 3,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
    }
    config_class = config_class or (GRPOConfig if plain_config else AdaRollGRPOConfig)
    if issubclass(config_class, AdaRollOptions):
        defaults["utility"] = "mixed"  # decides within a batch, and most tests train on one or two
    args = config_class(**{**defaults, **options})
    return trainer_class(
        model=str(model_dir),
        reward_funcs=reward,
        args=args,
        train_dataset=sums_dataset(48) if dataset is None else dataset,
        **(trainer_kwargs or {}),
    )


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def same_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def deepspeed_config(stage: int) -> dict[str, Any]:
    """DeepSpeed on CPUs, of tiny models, in float32."""
    return {
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            "stage3_param_persistence_threshold": 0,  # so that tiny parameters are really partitioned
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
