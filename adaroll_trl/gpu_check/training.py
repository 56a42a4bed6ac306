"""Two optimizer steps of GRPO or AdaRoll-GRPO in each of the ways that a GPU is used for it.

Nothing is learned here: beside the task's reward there is a coin, so that every batch has a gradient whatever the
model answers, and it is the coin that AdaRoll takes for success.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig, GRPOTrainer

from .. import AdaRollGRPOConfig, AdaRollGRPOTrainer
from ..tasks import get_task
from .context import CannotCheckError, Context, require
from .runner import end_process

STEPS = 2
GENERATIONS = 4
ROWS = 32  # rollouts of a process in a generation batch, one batch a step
LARGEST_LOGP_DIFFERENCE = 0.1  # mean over tokens, in nats: bfloat16 in two implementations stays well below
_VLLM_LENGTH = 512


def _options(context: Context) -> dict[str, Any]:
    """Of every run: batches of 8 prompts and 32 rollouts for each process."""
    cuda = context.device == "cuda"
    return {
        "output_dir": str(Path(context.scratch) / "output"),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": ROWS // 8,
        "num_generations": GENERATIONS,
        "max_completion_length": 48 if cuda else 8,
        "max_steps": STEPS,
        # A step that bfloat16 does not round away, and that does not wreck a real model
        "learning_rate": 1e-3 if context.tiny else 1e-5,
        "lr_scheduler_type": "constant",
        "bf16": cuda,
        "use_cpu": not cuda,
        "model_init_kwargs": {"dtype": "bfloat16" if cuda else "float32"},
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
    }


def _coin() -> tuple[Callable[..., list[float]], list[int]]:
    """A reward of 0 or 1 by chance, alike in every run, and a list that gains the number of rows of each call."""
    calls: list[int] = []
    toss = random.Random(int(os.environ.get("RANK", "0")))

    def coin(completions: list[Any], **kwargs: Any) -> list[float]:
        calls.append(len(completions))
        return [float(toss.random() < 0.5) for _ in completions]

    return coin, calls


def _build(context: Context, rounds: int, lora: bool = False, **options: Any) -> tuple[Any, list[int]]:
    """A trainer, GRPOTrainer for `rounds` 0, and the list of `_coin`."""
    coin, calls = _coin()
    options = {**_options(context), **options}
    if rounds:
        options = {"success_reward": "coin", "utility": "mixed", "rounds": rounds, **options}
    task = get_task("arithmetic")
    arguments: dict[str, Any] = {
        "model": context.model,
        "reward_funcs": [task.reward, coin],
        "args": (AdaRollGRPOConfig if rounds else GRPOConfig)(**options),
        "train_dataset": task.load("train", "256:0"),
    }
    if lora:
        from peft import LoraConfig

        arguments["peft_config"] = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return (AdaRollGRPOTrainer if rounds else GRPOTrainer)(**arguments), calls


def _fingerprints(model: torch.nn.Module) -> dict[str, str]:
    """A hash of each trainable weight's bytes."""
    return {
        name: hashlib.sha256(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def _run(trainer: Any, calls: list[int], rounds: int) -> str:
    """Train, check what must hold of every run, and say what it took."""
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "step_time" in entry]
    require(len(logs) == STEPS, f"{len(logs)} steps were logged, not {STEPS}")
    for entry in logs:
        norm = float(entry["grad_norm"])
        require(math.isfinite(entry["loss"]) and math.isfinite(norm), f"loss {entry['loss']}, gradient norm {norm}")
        require(norm > 0, "the gradient is 0")
    expected = STEPS * ROWS
    require(sum(calls) == expected, f"{sum(calls)} rollouts were rewarded, not the budget of {expected}")
    require(len(calls) == STEPS * max(rounds, 1), f"{len(calls)} rounds in {STEPS} batches, not {rounds} in each")
    note = f"{expected} rollouts a process, step {logs[-1]['step_time']:.2f} s"
    if not rounds:
        return note
    least = min(entry["adaroll/rollouts_per_prompt/min"] for entry in logs)
    most = max(entry["adaroll/rollouts_per_prompt/max"] for entry in logs)
    require(most > GENERATIONS > least, f"groups of {least:.0f} to {most:.0f}: nothing was allocated")
    return f"{note}, groups of {least:.0f} to {most:.0f}"


def _forget() -> None:
    """Free what the trainer of a check that is over held, for the next one in this process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def train(context: Context) -> str:
    """One process, transformers' own generation: full fine-tuning or LoRA."""
    rounds, lora = int(context.options["rounds"]), bool(context.options.get("lora"))
    trainer, calls = _build(context, rounds, lora)
    before = _fingerprints(trainer.model)
    note = _run(trainer, calls, rounds)
    after = _fingerprints(trainer.model)
    moved = sum(before[name] != after[name] for name in before)
    require(moved > 0, "no weight moved")
    if lora:
        require(all("lora_" in name for name in before), "LoRA trains weights that are not its own")
    del trainer
    _forget()
    return f"{note}, {moved} of {len(before)} weights moved"


def uniform_is_grpo(context: Context) -> str:
    """`allocator="uniform"` gives GRPOTrainer's weights to the last bit, where GRPOTrainer gives its own twice."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        first, again = _weights_after(context, GRPOTrainer), _weights_after(context, GRPOTrainer)
        ours = _weights_after(context, AdaRollGRPOTrainer)
    finally:
        torch.use_deterministic_algorithms(False)
    repeats = sum(first[name] != again[name] for name in first)
    differ = sum(first[name] != ours[name] for name in first)
    if repeats:
        raise CannotCheckError(f"GRPOTrainer itself differs from run to run, in {repeats} of {len(first)} weights")
    require(not differ, f"{differ} of {len(first)} weights differ")
    return f"all {len(first)} weights agree after {STEPS} steps"


def _weights_after(context: Context, trainer_class: type) -> dict[str, str]:
    coin, calls = _coin()
    task = get_task("arithmetic")
    options = _options(context)
    options["model_init_kwargs"] |= {"attn_implementation": "eager"}  # products and sums only
    ours = trainer_class is AdaRollGRPOTrainer
    args = AdaRollGRPOConfig(allocator="uniform", **options) if ours else GRPOConfig(**options)
    trainer = trainer_class(
        model=context.model, reward_funcs=[task.reward, coin], args=args, train_dataset=task.load("train", "256:0")
    )
    before = _fingerprints(trainer.model)
    _run(trainer, calls, 0)
    weights = _fingerprints(trainer.model)
    require(weights != before, "no weight moved")
    del trainer
    _forget()
    return weights


# Several processes


def _deepspeed(kind: str) -> dict[str, Any]:
    return {
        "zero_optimization": {"stage": int(kind[-1]), "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }


def distributed(context: Context) -> str:
    """Every visible GPU: collectives add up, all ranks generate alike and end with the same weights."""
    kind, rounds = str(context.options["kind"]), int(context.options["rounds"])
    extra: dict[str, Any] = {"ddp_find_unused_parameters": False}
    if kind != "ddp":
        extra = {"deepspeed": _deepspeed(kind)}
    trainer, calls = _build(context, rounds, **extra)
    accelerator, world = trainer.accelerator, int(context.options["processes"])
    require(accelerator.num_processes == world, f"{accelerator.num_processes} processes, not {world}")
    backend = torch.distributed.get_backend()
    require(str(context.options["backend"]) in backend, f"the backend is {backend}")
    ranks = torch.tensor([accelerator.process_index + 1.0], device=accelerator.device)
    torch.distributed.all_reduce(ranks)
    require(float(ranks) == world * (world + 1) / 2, f"all_reduce over {world} processes gives {float(ranks)}")
    note = _run(trainer, calls, rounds)
    engine = trainer.model_wrapped
    if kind == "ddp":
        mine = int.from_bytes(hashlib.sha256(json.dumps(_fingerprints(trainer.model)).encode()).digest()[:6], "big")
        everyone = accelerator.gather(torch.tensor([mine], device=accelerator.device)).tolist()
        require(len(set(everyone)) == 1, "the processes ended with different weights")
    else:
        stage = engine.zero_optimization_stage()
        require(stage == int(kind[-1]), f"DeepSpeed runs stage {stage}")
    accelerator.wait_for_everyone()
    return f"{world} processes, {type(engine).__name__}, {note}"


# vLLM


def _run_with_vllm(trainer: Any, calls: list[int], rounds: int) -> str:
    """As `_run`; and the weights reach vLLM once a batch, and it samples from what the trainer computes."""
    generation, syncs = trainer.vllm_generation, []
    sync = generation.sync_weights

    def counted() -> None:
        syncs.append(trainer.state.global_step)
        sync()

    generation.sync_weights = counted
    note = _run(trainer, calls, rounds)
    require(len(syncs) == STEPS, f"{len(syncs)} weight syncs in {STEPS} batches")
    difference = check_logps(trainer.state.log_history, "vLLM")
    note = f"{note}, 1 sync a batch, log-probabilities differ by {difference:.4f}"
    if not torch.cuda.is_available():
        return note
    free, total = torch.cuda.mem_get_info()  # vLLM's memory does not all pass through torch's own count
    return f"{note}, {(total - free) / 2**30:.1f} GiB of the GPU in use"


def check_logps(log: Sequence[dict[str, float]], what: str) -> float:
    """What vLLM sampled with is what the trainer computes: the largest mean difference of a step, in nats."""
    name, limit = "sampling/sampling_logp_difference/mean", LARGEST_LOGP_DIFFERENCE
    difference = max(entry[name] for entry in log if name in entry)
    require(difference < limit, f"{what}: log-probabilities differ by {difference:.3f} on average, limit {limit}")
    return difference


def vllm_colocate(context: Context) -> str:
    """vLLM in the trainer's process, with a third of the GPU's memory."""
    rounds, sleep = int(context.options["rounds"]), bool(context.options["sleep"])
    trainer, calls = _build(
        context,
        rounds,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_enable_sleep_mode=sleep,
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=_VLLM_LENGTH,
    )
    return _run_with_vllm(trainer, calls, rounds)


def vllm_server(context: Context) -> str:
    """vLLM's own server on the last GPU, the trainer on the first; weights travel by NCCL."""
    rounds = int(context.options["rounds"])
    with serve(context.model, str(context.options["server_gpu"])) as url:
        trainer, calls = _build(
            context,
            rounds,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=url,
            vllm_server_timeout=100.0,
            vllm_group_port=_free_port(),
        )
        return _run_with_vllm(trainer, calls, rounds)


@contextmanager
def serve(model: str, gpu: str) -> Iterator[str]:
    """The address of a vLLM server that is starting on the GPU of that number; it ends with the block."""
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(_VLLM_LENGTH)]
    command += ["--gpu-memory-utilization", "0.5", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    command += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    # TRL sends weights by development endpoints
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "VLLM_SERVER_DEV_MODE": "1"}
    server = subprocess.Popen(command, env=environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end_process(server.pid)
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
