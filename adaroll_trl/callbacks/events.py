"""What happens inside a generation batch, told to callbacks: TRL's own events know steps only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

if TYPE_CHECKING:
    from ..batch import GenerationBatch


class AllocationCallback(TrainerCallback):
    """A callback with two more events, which `AdaRollMixin` calls on every process. Both may be left out.

    ```python
    class Largest(AllocationCallback):
        def on_batch_end(self, args, state, control, batch, **kwargs):
            print(state.global_step, batch.rollouts.max())
    ```
    """

    def on_round_begin(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        """Before a round's rollouts. `batch.rounds` are the rounds before it, `batch.rounds_left` counts it in.

        A stream is a single round.
        """

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        """After a batch's last round: `batch.rollouts`, `.successes` and `.failures`, each of shape (prompts,)."""


def tell(trainer: Any, event: str, batch: GenerationBatch) -> None:
    """Call an event of those callbacks of a trainer that have it."""
    callbacks = trainer.callback_handler.callbacks
    for callback in callbacks:
        if isinstance(callback, AllocationCallback):
            getattr(callback, event)(trainer.args, trainer.state, trainer.control, batch=batch, callbacks=callbacks)


class RoundProgressCallback(AllocationCallback):
    """Shows the round beside the training bar of transformers: `round 2/4`; nothing where a batch is one round."""

    def on_round_begin(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        rounds = len(batch.rounds) + batch.rounds_left
        if rounds > 1:
            _annotate(kwargs["callbacks"], f"round {len(batch.rounds) + 1}/{rounds}")

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        _annotate(kwargs["callbacks"], "")


def _annotate(callbacks: Sequence[TrainerCallback], text: str) -> None:
    for callback in callbacks:
        bar = callback.training_bar if isinstance(callback, ProgressCallback) else None
        if bar is not None:  # on the main process, while it trains
            bar.set_postfix_str(text)
