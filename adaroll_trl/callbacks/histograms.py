"""Histograms of each logged batch for TensorBoard, W&B and Trackio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from .events import AllocationCallback

if TYPE_CHECKING:
    from ..batch import GenerationBatch


class HistogramCallback(AllocationCallback):
    """Sends histograms of the newest batch, at every logging step, to those reporters in `report_to` that take them.

    `train/adaroll/hist/rollouts_per_prompt` counts each prompt's rollouts, `train/adaroll/hist/success_rates` its
    share of successes. TensorBoard, W&B and Trackio are found among the trainer's callbacks; others, which log
    scalars alone, are left as they are.

    ```python
    trainer.add_callback(HistogramCallback())
    ```
    """

    def __init__(self) -> None:
        self._batch: GenerationBatch | None = None
        self._reporters: Sequence[TrainerCallback] = ()

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        self._batch, self._reporters = batch, kwargs["callbacks"]

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._batch is None or not state.is_world_process_zero:
            return
        batch, self._batch = self._batch, None  # once each, and not held through the next generation
        scored = batch.successes + batch.failures
        known = scored > 0
        values = {
            "train/adaroll/hist/rollouts_per_prompt": batch.rollouts.astype(np.float64),
            "train/adaroll/hist/success_rates": batch.successes[known] / scored[known],
        }
        for reporter in self._reporters:
            for name, array in values.items():
                if array.size:
                    _send(reporter, name, array, state.global_step)


def _send(reporter: TrainerCallback, name: str, values: NDArray[np.float64], step: int) -> None:
    if isinstance(reporter, TensorBoardCallback):
        if reporter.tb_writer is not None:
            reporter.tb_writer.add_histogram(name, values, step)
    elif isinstance(reporter, WandbCallback | TrackioCallback):
        library = reporter._wandb if isinstance(reporter, WandbCallback) else reporter._trackio
        if library is not None:
            library.log({name: library.Histogram(values), "train/global_step": step})
