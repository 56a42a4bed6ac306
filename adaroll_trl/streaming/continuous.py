"""Continuous batching of transformers, in the trainer's process."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

from .engine import GLANCE, WAIT, Engine

# Seconds after which requests that are open count as lost: of a manager that says it has none, which is wrong for the
# moment in which it takes one from its queue; and without a forward pass, which may have to compile first.
LOST, STALLED = 5.0, 600.0


class ContinuousBatching(Engine):
    """A `ContinuousBatchingManager` of its own, which generates in a thread.

    Args:
        model (`PreTrainedModel`): the model.
        prompts (mapping): token ids by a prompt's number.
        options (mapping): those of `generate_batch`.
        in_flight (`int`): requests at once.
    """

    def __init__(
        self, model: Any, prompts: Mapping[int, list[int]], options: Mapping[str, Any], in_flight: int
    ) -> None:
        self._prompts, self._running = prompts, set[str]()
        config = options.get("generation_config") or model.generation_config
        self._open = ExitStack()
        self._manager = self._open.enter_context(_manager_of(model, prompts.values(), in_flight, options))
        self._busy = self._moved = time.monotonic()  # when the manager last had work, and last did some
        # Not every transformers takes it from the config here, as `generate_batch` does
        self._eos = {} if config.eos_token_id is None else {"eos_token_id": config.eos_token_id}

    def submit(self, name: str, prompt: int) -> None:
        if self._manager.add_request(self._prompts[prompt], request_id=name, **self._eos) is None:
            raise RuntimeError(f"Continuous batching does not take request {name}: {self._death()}.")
        self._running.add(name)
        self._busy = self._moved = time.monotonic()

    def poll(self, wait: bool) -> list[tuple[str, list[int], Any]]:
        ended: list[tuple[str, list[int], Any]] = []
        seconds = WAIT if wait else GLANCE
        while (output := self._manager.get_result(timeout=0 if ended else seconds)) is not None:
            if output.error is not None:
                raise RuntimeError(f"Continuous batching failed on request {output.request_id}: {output.error}")
            if output.is_finished():
                self._running.discard(output.request_id)
                ended.append((output.request_id, list(output.generated_tokens), output))
        steps, self.steps = self.steps, getattr(self._manager, "current_batch", None)
        if self._running:
            self._look_after(moved=bool(ended) or steps != self.steps)
        return ended

    def _look_after(self, moved: bool) -> None:
        """Raise where the open requests would be waited for without end."""
        now = time.monotonic()
        if moved:
            self._busy = self._moved = now
        elif not self._manager.is_running():
            raise RuntimeError(f"Continuous batching ended with {len(self._running)} requests open: {self._death()}.")
        elif self._has_work():
            self._busy = now
        if now - self._busy > LOST:
            raise RuntimeError(
                f"Continuous batching has no request left, but {sorted(self._running)} have not come back: it dropped "
                "them."
            )
        if now - self._moved > STALLED:
            raise RuntimeError(
                f"Continuous batching has taken no step for {STALLED:g} seconds, and {sorted(self._running)} have not "
                "come back: it hangs."
            )

    def _has_work(self) -> bool:
        processor = self._manager.batch_processor
        if processor is None:  # its thread is still setting up
            return True
        return not self._manager.input_queue.empty() or processor.has_pending_requests()

    def abort(self) -> None:
        for name in self._running:
            self._manager.cancel_request(name)
        self._running.clear()

    def close(self) -> None:
        self._open.close()

    def _death(self) -> str:
        status = getattr(self._manager, "background_thread_status", None)
        return str(getattr(status, "fatal_error", None) or "its thread has ended")


def _manager_of(model: Any, prompts: Collection[list[int]], in_flight: int, options: Mapping[str, Any]) -> Any:
    """A context with a manager of `model`, sized as `generate_batch` would size it for `in_flight` requests."""
    from transformers.generation.continuous_batching.utils import WorkloadHints  # not in every transformers 5

    given = {name: options.get(name) for name in ("generation_config", "continuous_batching_config")}
    most = (given["generation_config"] or model.generation_config).max_new_tokens
    hints = WorkloadHints(max(len(ids) for ids in prompts), most or 0, in_flight)
    return model.continuous_batching_context_manager(**given, block=True, timeout=5, workload_hints=hints)
