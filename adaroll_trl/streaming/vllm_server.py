"""vLLM's HTTP server, through TRL's client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

from .engine import GLANCE, WAIT, Engine

_PER_ROW = ("features", "images")  # what the client takes one of for each prompt, beside the prompts


class VLLMServer(Engine):
    """Single requests through TRL's own client, each in a thread of a pool.

    Args:
        generate (callable): the client's `generate`, which returns lists with one entry a prompt.
        prompts (mapping): token ids by a prompt's number.
        rows (mapping): a row of each prompt, among those that `generate` was called with.
        options (mapping): all other arguments of that call; "features" or "images" have one entry a row.
        in_flight (`int`): the most requests at once.
        post (callable): `post(path, json)` to the server, to abort.
    """

    def __init__(
        self,
        generate: Callable[..., dict[str, Any]],
        prompts: Mapping[int, list[int]],
        rows: Mapping[int, int],
        options: Mapping[str, Any],
        in_flight: int,
        post: Callable[[str, dict[str, Any]], Any],
    ) -> None:
        self._generate, self._prompts, self._rows = generate, prompts, rows
        self._options, self._post = options, post
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="adaroll-stream")
        self._running: dict[Future[dict[str, Any]], str] = {}

    def submit(self, name: str, prompt: int) -> None:
        row = self._rows[prompt]
        own = {key: self._options[key][row : row + 1] for key in _PER_ROW if self._options.get(key)}
        call = {**self._options, **own, "prompts": [self._prompts[prompt]]}
        self._running[self._pool.submit(self._generate, **call)] = name

    def poll(self, wait: bool) -> list[tuple[str, list[int], Any]]:
        done, _ = wait_for(self._running, timeout=WAIT if wait else GLANCE, return_when=FIRST_COMPLETED)
        ended = []
        for future in sorted(done, key=lambda future: self._running[future]):
            name, output = self._running.pop(future), future.result()
            if len(output["completion_ids"]) != 1:
                raise RuntimeError(
                    f"vLLM's server answered a request for one completion with {len(output['completion_ids'])}."
                )
            ended.append((name, output["completion_ids"][0], output))
        return ended

    def abort(self) -> None:
        """Queued requests are not sent; of those that run the server is told, if it takes that (see the docs)."""
        running = [future for future in self._running if not future.cancel()]
        self._running.clear()
        if running:
            with suppress(Exception):  # it may be what died
                self._post("/abort_requests", {"request_ids": []})

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def joined(outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answers to single requests as the one that the client would give to all of them together."""
    if not outputs:
        return {"prompt_ids": [], "completion_ids": [], "logprobs": [], "logprob_token_ids": []}
    merged = {}
    for key, first in outputs[0].items():
        merged[key] = None if first is None else [entry for output in outputs for entry in output[key]]
    return merged
