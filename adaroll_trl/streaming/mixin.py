"""The part of the trainer that streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import GenerationBatch
from ..callbacks.events import tell
from ..metrics import SuccessSignal
from ..planner import RolloutPlanner
from .scoring import Scorer
from .seams import Hooks, StreamedBatch, parts_of_batch, requests_in_flight

if TYPE_CHECKING:
    from typing import Any as _Base
else:
    _Base = object


class StreamingMixin(_Base):
    """Generates a batch as a stream; everything around the batch is the trainer's."""

    _planner: RolloutPlanner
    _success: SuccessSignal
    _from_main: Callable[..., Any]
    _recording: Callable[..., Any]
    _record_round: Callable[..., None]
    _stream: StreamedBatch | None  # the one that is running
    _last_scorer: Scorer | None  # of the one before

    def _run_stream(self, batch: GenerationBatch) -> None:
        """One generation call that decides rollout by rollout: a single round whose counts are known at its end."""
        equal = np.full(batch.num_prompts, self.num_generations)
        round_ = batch.plan_round(equal, self.accelerator.process_index, self.accelerator.num_processes)
        parts = parts_of_batch(self, batch.num_prompts)
        in_flight = requests_in_flight(self, batch.left // len(parts))
        sent, estimates = self._from_main(lambda: self._planner.start_streams(batch, parts, in_flight))
        batch.estimates |= estimates
        hooks = Hooks(
            ledger=lambda part: self._planner.ledger(
                batch, part, in_flight, sent[parts.index(part)] if sent else None
            ),
            score=self._calculate_rewards,  # before `_recording` replaces it
            outcomes=lambda rewards: self._success.outcomes(rewards, watch=False),
        )
        tell(self, "on_round_begin", batch)
        self._stream = StreamedBatch(self, batch, round_, hooks, in_flight)
        try:
            with self._stream.installed(), self._recording(round_, is_last=True):
                round_.output = super()._generate_and_score_completions(self._stream.inputs)
            self._record_round(batch, round_)
            batch.seconds += self._stream.seconds
            batch.estimates |= self._stream.metrics
        finally:
            self._last_scorer, self._stream = self._stream.scorer, None

    def _await_last_scorer(self) -> None:
        """A stream that failed may have left a reward call behind: no reward function is called by two at a time."""
        if self._last_scorer is not None:
            self._last_scorer.join()
            self._last_scorer = None

    def _generate(self, prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        if self._stream is None:
            return super()._generate(prompts, *args, **kwargs)
        self._stream.prepare(prompts)
        generated = super()._generate(prompts, *args, **kwargs)
        self._stream.settle(prompts)
        return generated
