"""vLLM in the trainer's process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any

from .engine import Engine

_STEPS_TO_EMPTY = 100  # after an abort the engine needs one or two


class ColocatedVLLM(Engine):
    """`llm.llm_engine`, stepped by hand: what `llm.generate` does, with requests that come later.

    Args:
        llm (`vllm.LLM`): the engine's owner.
        prompts (mapping): by a prompt's number what `llm.generate` takes for it: token ids, and images if there are.
        params (`vllm.SamplingParams`): with n = 1, for all requests.
    """

    def __init__(self, llm: Any, prompts: Mapping[int, dict[str, Any]], params: Any) -> None:
        self._engine, self._prompts = llm.llm_engine, prompts
        self._params = copy(params)
        # Of a request that runs, nothing is of use; vLLM would put together its text and tokens at every step
        self._params.output_kind = type(params.output_kind).FINAL_ONLY
        self._running: set[str] = set()
        self.steps = 0

    def submit(self, name: str, prompt: int) -> None:
        self._running.add(name)
        self._engine.add_request(name, self._prompts[prompt], copy(self._params))

    def poll(self, wait: bool) -> list[tuple[str, list[int], Any]]:
        outputs = self._engine.step()
        self.steps = (self.steps or 0) + 1
        ended = [output for output in outputs if output.finished]
        self._running -= {output.request_id for output in ended}
        if self._running and not self._engine.has_unfinished_requests():
            raise RuntimeError(
                f"vLLM has no request left, but {sorted(self._running)} have not come back: it dropped them."
            )
        return [(output.request_id, list(output.outputs[0].token_ids), output) for output in ended]

    def abort(self) -> None:
        running, self._running = sorted(self._running), set()
        with suppress(Exception):  # the engine may be what died, and its error is the one to tell
            self._engine.abort_request(running)
            for _ in range(_STEPS_TO_EMPTY):
                if not self._engine.has_unfinished_requests():
                    return
                self._engine.step()
