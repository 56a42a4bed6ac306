"""The newest batch's allocation as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .events import AllocationCallback

if TYPE_CHECKING:
    from ..batch import GenerationBatch

_PARTS = ("none", "up to a third", "to two thirds", "above", "all")


class AllocationTableCallback(AllocationCallback):
    """Prints, every `logging_steps`, where the newest batch's rollouts went: a row for each part of the success rates.

    Args:
        console (`rich.console.Console`, *optional*): where to. None: the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._batch: GenerationBatch | None = None

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        self._batch = batch

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._batch is not None and state.is_world_process_zero:
            self._console.print(allocation_table(self._batch, state.global_step, kwargs.get("logs") or {}))
            self._batch = None


def allocation_table(batch: GenerationBatch, step: int, logs: Mapping[str, Any]) -> Table:
    """Prompts and rollouts of a batch by how many of a prompt's rollouts succeeded.

    Args:
        batch (`GenerationBatch`): a finished one.
        step (`int`): for the title.
        logs (mapping): what was logged; the share of prompts with signal is set beside that of equal groups where it
            has both, see `adaroll_trl.metrics`.
    """
    scored = batch.successes + batch.failures
    known = scored > 0
    rates = np.divide(batch.successes, scored, out=np.zeros(len(scored)), where=known)
    part = np.select([rates == 0, rates <= 1 / 3, rates <= 2 / 3, rates < 1], [0, 1, 2, 3], 4)
    table = Table(
        title=_title(batch, step, logs), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=False
    )
    table.add_column("rollouts that succeeded")
    for heading in ("prompts", "rollouts each", "least", "most", "share of rollouts"):
        table.add_column(heading, justify="right")
    for number, label in enumerate(_PARTS):
        counts = batch.rollouts[known & (part == number)]
        if counts.size:
            share = counts.sum() / batch.rollouts.sum()
            table.add_row(
                label, str(counts.size), f"{counts.mean():.1f}", str(counts.min()), str(counts.max()), f"{share:.0%}"
            )
    if not known.all():
        table.add_row("without a reward", str(int((~known).sum())), "", "", "", "")
    return table


def _title(batch: GenerationBatch, step: int, logs: Mapping[str, Any]) -> str:
    mixed = float(((batch.successes > 0) & (batch.failures > 0)).mean())
    title = (
        f"step {step}: {batch.num_prompts} prompts, {batch.rollouts.sum()} rollouts in {len(batch.rounds)} rounds, "
    )
    title += f"{mixed:.0%} of prompts with signal"
    realised, uniform = (logs.get(f"adaroll/utility/{name}") for name in ("realised", "uniform"))
    if isinstance(realised, float) and isinstance(uniform, float):
        title += f"; utility {realised:.3f}, of equal groups {uniform:.3f}"
    return title
