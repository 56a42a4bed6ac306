"""The resolved plan of a run: what `--dry-run` prints, as data."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ..checks import check_prior_column, explain_batch_size, number_of_rows
from ..config import AdaRollGRPOConfig, AdaRollOptions, options_of
from ..option_effects import advice_on_options, advice_on_visits, expected_visits
from ..tasks.sources import first_line
from .allocation import AllocationPlan, plan_allocation, uniform_signal
from .data import source_of
from .memory import ModelMemory, model_memory, rollout_bytes
from .resolve import Run
from .rewards import reward_name


@dataclass(frozen=True)
class BatchPlan:
    """The arithmetic of a generation batch.

    Attributes:
        per_device, processes, steps_per_generation (`int`): their product is `rollouts`.
        num_generations (`int`): rollouts per prompt, on average.
        rollouts, prompts (`int`): of a generation batch.
        rollouts_per_update (`int`): of an optimiser step.
        updates (`int`, *optional*): optimiser steps of the run; None where the number of rows is not known.
    """

    per_device: int
    processes: int
    steps_per_generation: int
    num_generations: int
    rollouts: int
    prompts: int
    rollouts_per_update: int
    updates: int | None


@dataclass(frozen=True)
class TrainingPlan:
    """What a run would do.

    Attributes:
        trainer, model, data (`str`): with what.
        rows, eval_rows (`int`, *optional*): of the data; None where not known or not needed.
        rewards (tuple of `str`), weights (tuple of `float`): in TRL's order.
        success (`str`): which reward says that a rollout succeeded.
        batch (`BatchPlan`): sizes.
        signal_uniform (`float`): share of prompts with signal for equal groups under the prior.
        allocation (`AllocationPlan`, *optional*): None for plain GRPO.
        generation (`str`): with what completions are generated, and how often weights go there.
        adapter (`str`, *optional*): of LoRA.
        memory (`ModelMemory`, *optional*): None where the model's configuration is not to be had.
        rollout_bytes (`int`, *optional*): see `memory.rollout_bytes`.
        notes (tuple of `str`): what could not be looked at, and what the trainer would warn of.
    """

    trainer: str
    model: str
    data: str
    rows: int | None
    eval_rows: int | None
    rewards: tuple[str, ...]
    weights: tuple[float, ...]
    success: str
    batch: BatchPlan
    signal_uniform: float
    allocation: AllocationPlan | None
    generation: str
    adapter: str | None
    memory: ModelMemory | None
    rollout_bytes: int | None
    notes: tuple[str, ...]


def make_plan(run: Run) -> TrainingPlan:
    """The plan of a run on `run.config.world_size` processes. Allocates no weights.

    Raises:
        ValueError: for what the trainer would refuse.
        MemoryError: if the allocator's tables cannot fit.
    """
    config, script, model = run.config, run.script, run.model
    options = options_of(config)
    notes = [run.missing] if run.missing else []
    if script.trainer == "adaroll":
        notes += advice_on_options(options)
    rows = number_of_rows(run.train_dataset)
    batch = _batch(config, rows)
    allocation = None
    if script.trainer == "adaroll":
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always")
            allocation = plan_allocation(options, batch.prompts, batch.num_generations, batch.processes, notes.append)
        notes += _of_prior(options)
        if options.prior_column is not None and run.train_dataset is not None:
            check_prior_column(run.train_dataset, options.prior_column)
        if options.belief_decay > 0 and allocation.allocator != "uniform":
            first = (
                "The plan is for prompts that come for the first time. With "
                f"belief_decay={options.belief_decay:g} their outcomes decide later visits too: `adaroll plan` and "
                "`adaroll simulate` show that with --carried."
            )
            visits = expected_visits(config, batch.prompts, rows)
            notes.append(advice_on_visits(options, allocation.rounds, visits) or first)
        notes += [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    memory = None
    try:
        memory = model_memory(model, config)
    except OSError as error:
        notes.append(
            f"The model's configuration could not be looked at, so its memory is not known: {first_line(error)}"
        )
    rounds = 1 if allocation is None else allocation.rounds
    return TrainingPlan(
        trainer=script.trainer,
        model=str(model.model_name_or_path),
        data=_describe_data(run),
        rows=rows,
        eval_rows=number_of_rows(run.eval_dataset),
        rewards=tuple(map(reward_name, run.rewards)),
        weights=tuple(config.reward_weights or [1.0] * len(run.rewards)),
        success=run.success,
        batch=batch,
        signal_uniform=uniform_signal(batch.num_generations, (options.prior_alpha, options.prior_beta)),
        allocation=allocation,
        generation=_describe_generation(config, rounds),
        adapter=f"LoRA of rank {model.lora_r}" if model.use_peft else None,
        memory=memory,
        rollout_bytes=rollout_bytes(batch.rollouts // batch.processes, config, several_rounds=rounds > 1),
        notes=tuple(notes),
    )


def _of_prior(options: AdaRollOptions) -> Iterator[str]:
    """What the plan leaves out of priors that are not the same for all prompts and batches."""
    if options.prior_column is not None:
        yield (
            f"The plan takes the common prior for every prompt. In training, pass rates in the column "
            f"{options.prior_column!r} add {options.prior_strength:g} rollouts' worth to their prompts' priors."
        )
    if options.prior_source == "empirical_bayes":
        yield (
            f"The plan is for the first batch: from there on the prior is fitted to outcomes, and moves away from "
            f"Beta({options.prior_alpha:g}, {options.prior_beta:g})."
        )


def _batch(config: AdaRollGRPOConfig, rows: int | None) -> BatchPlan:
    device, world = config.per_device_train_batch_size, config.world_size
    steps, group = int(config.steps_per_generation or 1), int(config.num_generations or 0)
    rollouts = device * world * steps
    if rollouts % group:
        raise ValueError(explain_batch_size(config))
    prompts = rollouts // group
    if rows is not None and rows < prompts:
        raise ValueError(
            f"The data has {rows} rows, fewer than the {prompts} prompts of a generation batch: no step could be "
            "made. Lower per_device_train_batch_size or steps_per_generation, raise num_generations, or add rows."
        )
    return BatchPlan(
        per_device=device,
        processes=world,
        steps_per_generation=steps,
        num_generations=group,
        rollouts=rollouts,
        prompts=prompts,
        rollouts_per_update=device * world * config.gradient_accumulation_steps,
        updates=_updates(config, rows, prompts, steps),
    )


def _updates(config: AdaRollGRPOConfig, rows: int | None, prompts: int, steps: int) -> int | None:
    """Optimiser steps of the run. An epoch leaves out the rows that do not fill a generation batch, as in TRL."""
    if config.max_steps > 0:
        return int(config.max_steps)
    if rows is None:
        return None
    micro_steps = rows // prompts * steps * config.num_iterations
    return ceil(config.num_train_epochs * max(1, ceil(micro_steps / config.gradient_accumulation_steps)))


def _describe_data(run: Run) -> str:
    script = run.script
    if script.datasets:
        return "a mixture of " + ", ".join(str(part.path) for part in script.datasets)
    split = script.dataset_train_split
    source = source_of(script)
    if run.task is None:
        return f"{source}, split {split}"
    where = source or run.task.hub_id
    named = f"task {script.task}" if script.task else "columns of a data set"
    return f"{named}{f' from {where}' if where else ''}, split {split}"


def _describe_generation(config: AdaRollGRPOConfig, rounds: int) -> str:
    if not config.use_vllm:
        every = "" if rounds == 1 else f" in each of {rounds} rounds (ZeRO-3 gathers the weights as often)"
        return f"transformers{every}"
    sleep = ", sleeping between batches" if config.vllm_enable_sleep_mode and config.vllm_mode == "colocate" else ""
    return f"vLLM, mode {config.vllm_mode}{sleep}; weights are sent once a batch, whatever its rounds"
