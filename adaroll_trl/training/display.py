"""The plan as a table."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..solver.memory import format_bytes
from .allocation import AllocationPlan
from .memory import ModelMemory
from .plan import BatchPlan, TrainingPlan

TRAINER_NAMES = {"adaroll": "AdaRollGRPOTrainer", "grpo": "GRPOTrainer (TRL)"}


def plan_table(plan: TrainingPlan) -> Table:
    """The plan with one line for each thing that was asked, in sections."""
    table = Table(title="Plan", show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    sections = (_run(plan), _batch(plan.batch), _signal(plan), _planner(plan.allocation), _memory(plan))
    for section in sections:
        for name, text in section:
            table.add_row(name, escape(text))
        table.add_section()
    return table


def print_plan(plan: TrainingPlan, console: Console | None = None) -> None:
    """Print the table, and below it what could not be looked at or would be warned of."""
    console = console or Console()
    console.print(plan_table(plan))
    for note in plan.notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False)


def _run(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    yield "trainer", TRAINER_NAMES[plan.trainer]
    yield "model", plan.model + (f", {plan.adapter}" if plan.adapter else "")
    yield "data", f"{plan.data}: {'not known how many' if plan.rows is None else f'{plan.rows:,}'} rows"
    if plan.eval_rows is not None:
        yield "evaluation data", f"{plan.eval_rows:,} rows"
    named = [f"{weight:g} x {name}" for name, weight in zip(plan.rewards, plan.weights, strict=True)]
    yield "rewards", ", ".join(named)
    if plan.trainer == "adaroll":
        yield "a success is told by", plan.success
    yield "generation", plan.generation


def _batch(batch: BatchPlan) -> Iterator[tuple[str, str]]:
    yield (
        "rollouts a batch",
        f"{batch.rollouts:,} = per_device_train_batch_size {batch.per_device} x {batch.processes} processes x "
        f"steps_per_generation {batch.steps_per_generation}",
    )
    yield "prompts a batch", f"{batch.prompts:,}, with num_generations {batch.num_generations} rollouts on average"
    steps = "not known how many" if batch.updates is None else f"{batch.updates:,}"
    yield "optimiser steps", f"{steps}, of {batch.rollouts_per_update:,} rollouts each"


def _signal(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    allocation = plan.allocation
    if allocation is None:
        yield "prompts with signal", f"{plan.signal_uniform:.1%} under a uniform prior"
        return
    alpha, beta = allocation.prior
    decay = f", carried over with belief_decay {allocation.belief_decay:g}" if allocation.belief_decay else ""
    yield "prior of a success rate", f"Beta({alpha:g}, {beta:g}){decay}"
    yield "prompts with signal", f"{plan.signal_uniform:.1%} with equal groups (exact, under the prior)"
    yield "", _adaptive_signal(allocation)
    yield "", f"{allocation.signal_bound:.1%} at most, for any policy within the bounds (Lagrangian bound)"


def _adaptive_signal(allocation: AllocationPlan) -> str:
    if allocation.signal_adaptive is None:
        return f"not known for {allocation.allocator}: an allocator of your own is not simulated"
    if not allocation.batches:
        return f"{allocation.signal_adaptive:.1%} with {allocation.allocator}, which is plain GRPO"
    return (
        f"{allocation.signal_adaptive:.1%} +- {allocation.signal_error:.1%} with {allocation.allocator} (standard "
        f"error, {allocation.batches:,} simulated batches)"
    )


def _planner(allocation: AllocationPlan | None) -> Iterator[tuple[str, str]]:
    if allocation is None:
        return
    yield "allocator", allocation.allocator
    yield "utility", _utility(allocation)
    yield "prompt weighting", allocation.prompt_weighting
    yield "rounds", _rounds(allocation)
    low, high = allocation.first_round
    largest = "" if allocation.largest_group is None else f"; the largest simulated: {allocation.largest_group}"
    yield "rollouts of a prompt", f"{allocation.min_rollouts} to {allocation.max_rollouts}{largest}"
    yield "in the first round", f"{low}" if low == high else f"{low} to {high}"
    yield "tables", _tables(allocation)
    yield (
        "time to decide",
        f"{_seconds(allocation.first_seconds)} the first time (loading or compiling the solver, tables), "
        f"{_seconds(allocation.next_seconds)} after that, measured now",
    )


def _utility(allocation: AllocationPlan) -> str:
    if allocation.utility == "mixed" and allocation.signal_adaptive is not None:
        return "mixed: what is expected per prompt is the share of prompts with signal, above"
    planned = ""
    if not isnan(allocation.utility_planned):
        relaxed = " (relaxed: the budget is met on average)" if allocation.allocator == "adaroll" else ""
        planned = f", planned {allocation.utility_planned:.4f}{relaxed}"
    return (
        f"{allocation.utility}, expected per prompt: equal groups {allocation.utility_uniform:.4f}{planned}, at most "
        f"{allocation.utility_bound:.4f} for any policy (Lagrangian bound)"
    )


def _rounds(allocation: AllocationPlan) -> str:
    if allocation.rounds == allocation.rounds_given:
        return f"{allocation.rounds}"
    if allocation.allocator != "adaroll":
        return f"{allocation.rounds}, by the allocator"
    return f"{allocation.rounds} of {allocation.rounds_given}: every process needs a rollout in each round"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s"


def _tables(allocation: AllocationPlan) -> str:
    tables = allocation.tables
    if tables is None:
        return "none"
    kept = {
        None: "each process builds them on first use",
        True: "read from disk",
        False: "built now and kept on disk",
    }[tables.cached]
    return f"{format_bytes(tables.bytes)}, {kept}"


def _memory(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    if plan.memory is not None:
        yield from _model(plan.memory)
    if plan.rollout_bytes is not None:
        merged = " while rounds are merged" if plan.allocation is not None and plan.allocation.rounds > 1 else ""
        yield (
            "rollout tensors",
            f"at most {format_bytes(plan.rollout_bytes)} a process{merged}, prompts left aside",
        )


def _model(memory: ModelMemory) -> Iterator[tuple[str, str]]:
    adapters = f", and {memory.trainable:,} in adapters, which alone are trained" if memory.adapters else ""
    yield "parameters", f"{memory.parameters:,}{adapters}"
    optimizer = "not known for this one" if memory.optimizer is None else format_bytes(memory.optimizer)
    parts = [
        f"weights {format_bytes(memory.weights)} ({memory.dtype})",
        f"gradients {format_bytes(memory.gradients)}",
        f"optimiser {optimizer}",
    ]
    if memory.reference:
        parts.append(f"reference model {format_bytes(memory.reference)}")
    yield "memory of the model", ", ".join(parts) + "; unsharded, without activations and generation's cache"
