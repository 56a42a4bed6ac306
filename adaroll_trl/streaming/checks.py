"""Where rollouts cannot stream, and what to do instead."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..allocators import Allocator, cannot_stream
from .seams import streams_on_main

_ROUNDS = "Set stream_rollouts=False, which generates in rounds."


def check_streaming(trainer: Any, allocator: Allocator, num_prompts: int) -> None:
    """Refuse a trainer whose generation cannot be decided rollout by rollout.

    Args:
        trainer (`GRPOTrainer`): set up.
        allocator (`Allocator`): who decides.
        num_prompts (`int`): prompts in a generation batch.

    Raises:
        ValueError: naming the option, and what would work.
    """
    if not allocator.streams:
        raise ValueError(f"stream_rollouts=True: {cannot_stream(allocator)} {_ROUNDS}")
    if not (trainer.use_vllm or trainer.use_transformers_continuous_batching):
        raise ValueError(
            "stream_rollouts=True needs an engine that takes requests while others run. Set use_vllm=True or "
            f"use_transformers_continuous_batching=True. {_ROUNDS}"
        )
    several_turns = {
        "tools": trainer.tools,
        "environment_factory": getattr(trainer, "environment_factories", None),
        "rollout_func": getattr(trainer, "rollout_func", None),
    }
    for name, value in several_turns.items():
        if value:
            raise ValueError(
                f"stream_rollouts=True with `{name}`: its turns need whole calls of the engine, one after another. "
                f"{_ROUNDS}"
            )
    _check_processes(trainer, num_prompts)


def _check_processes(trainer: Any, num_prompts: int) -> None:
    world = trainer.accelerator.num_processes
    parallel = getattr(trainer, "vllm_tensor_parallel_size", 1) if trainer.use_vllm else 1
    if trainer.use_vllm and not streams_on_main(trainer) and parallel > 1:
        raise ValueError(
            f"stream_rollouts=True with vllm_tensor_parallel_size={parallel} in vllm_mode='colocate': several "
            "processes drive one engine, and each would have to see the same rewards at the same step. "
            f"{_ROUNDS} Or use vllm_mode='server', whose tensor parallelism is its own."
        )
    if world > 1 and not streams_on_main(trainer) and num_prompts % world:
        raise ValueError(
            f"stream_rollouts=True on {world} processes: each streams its own prompts, and a generation batch of "
            f"{num_prompts} prompts cannot be dealt evenly. Make generation_batch_size / num_generations a multiple "
            f"of {world}. {_ROUNDS}"
        )
    modules = [function for function in trainer.reward_funcs if isinstance(function, nn.Module)]
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if world > 1 and modules and sharded:
        raise ValueError(
            "stream_rollouts=True with a reward model on several processes under DeepSpeed or FSDP: processes score "
            f"at different times, and a sharded model needs them all at once. {_ROUNDS}"
        )
