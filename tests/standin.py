"""A stand-in for a vLLM server that speaks real HTTP, and for vLLM in the trainer's process.

Neither runs a model: a completion spells out a fingerprint of its prompt, and its log-probabilities another one, so a
row that meets the answer to another prompt is seen. TRL's own client and its own `VLLMGeneration` talk to them; only
what needs vLLM installed, or a GPU, is replaced (see `pretend_vllm`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch
import trl.generation.vllm_client as client_module
import trl.generation.vllm_generation as generation_module
from trl.generation.vllm_client import VLLMClient

MARK, FIRST_TOKEN, TOKENS = 3, 5, 250  # a completion starts with MARK tokens that tell its prompt
END = 1


def fingerprint(prompt: Sequence[int]) -> list[int]:
    """The tokens that the answer to `prompt` starts with."""
    digest = hashlib.sha256(json.dumps(list(prompt)).encode()).digest()
    return [FIRST_TOKEN + byte % TOKENS for byte in digest[:MARK]]


def logprob(prompt: Sequence[int], token: int, position: int) -> float:
    """What the stand-in says it sampled `token` with: nothing that a model would say, but the row's own."""
    digest = hashlib.sha256(json.dumps([*prompt, token, position]).encode()).digest()
    return -(1 + digest[0]) / 64


def answer(prompt: Sequence[int], number: int, max_tokens: int) -> list[int]:
    """The `number`-th completion asked for: the prompt's mark, and two to five tokens more, about at random."""
    drawn = hashlib.sha256(f"{number}".encode()).digest()
    tail = [FIRST_TOKEN + byte % TOKENS for byte in drawn[: 1 + drawn[-1] % 4]]
    return [*fingerprint(prompt), *tail, END][:max_tokens]


def check_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> None:
    """Fail unless each completion, and what it was sampled with, is the answer to the prompt of the same row."""
    assert len(prompts) == len(completions) == len(logprobs)
    for prompt, completion, sampled in zip(prompts, completions, logprobs, strict=True):
        assert list(completion[:MARK]) == fingerprint(prompt)
        expected = [logprob(prompt, token, position) for position, token in enumerate(completion)]
        torch.testing.assert_close(torch.tensor(list(sampled)), torch.tensor(expected))


class StandInServer:
    """vLLM's HTTP server as TRL's client sees it, in a thread.

    ```python
    with StandInServer() as server:
        trainer = build(vllm_server_base_url=server.url, ...)
    ```

    Args:
        answer (callable, *optional*): from prompt, number and `max_tokens` to a completion's tokens.
        mix_up (`bool`, *optional*, defaults to `False`): hand each prompt the answer to the next one.
    """

    def __init__(self, answer: Callable[[Sequence[int], int, int], list[int]] = answer, mix_up: bool = False) -> None:
        self.requests: list[tuple[str, Any]] = []  # path and body of each POST, in order
        self._answer, self._mix_up, self._numbers = answer, mix_up, itertools.count()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StandInServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    @property
    def generations(self) -> list[dict[str, Any]]:
        """The bodies of all requests for completions."""
        return [body for path, body in self.requests if path == "/v1/completions"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a reply is two small packets, and the second would wait for 40 ms

            def do_GET(self) -> None:
                self._reply(outer._get(self.path.split("?")[0]))

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.requests.append((self.path, body))
                self._reply(outer._complete(body) if self.path == "/v1/completions" else {})

            def _reply(self, reply: Any) -> None:
                data = json.dumps(reply).encode()
                self.send_response(200 if reply is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def _get(self, path: str) -> Any:
        info = {"weight_transfer_config": {"backend": "nccl"}, "model_config": {"logprobs_mode": "processed_logprobs"}}
        replies: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": "stand-in"}]},
            "/server_info": {"vllm_config": info},
            "/get_world_size": {"world_size": 1},
        }
        return replies.get(path)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompts, n = body["prompt"], body["n"]
        sources = prompts[1:] + prompts[:1] if self._mix_up else prompts
        return {
            "choices": [
                self._choice(prompt, source, body["max_tokens"])
                for prompt, source in zip(prompts, sources, strict=True)
                for _ in range(n)
            ]
        }

    def _choice(self, prompt: list[int], source: list[int], max_tokens: int) -> dict[str, Any]:
        tokens = self._answer(source, next(self._numbers), max_tokens)
        names = [f"token_id:{token}" for token in tokens]
        values = [logprob(source, token, position) for position, token in enumerate(tokens)]
        logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": [None] * len(tokens)}
        return {"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": logprobs}


class StandInLLM:
    """`vllm.LLM` as TRL's colocate mode uses it; it refuses what sleeping weights or a sleeping cache could not do.

    The instance that TRL made last is `StandInLLM.last`; `calls` is what was asked of it, in order.
    """

    last: StandInLLM

    def __init__(self, **options: Any) -> None:
        type(self).last = self
        self.options, self.calls, self.prompts = options, [], 0  # type: ignore[var-annotated]
        self.asleep: set[str] = set()
        self.loaded = True  # it starts with the checkpoint's weights
        model = SimpleNamespace(load_weights=self._load)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(
            model_executor=executor, model_config=SimpleNamespace(max_model_len=options["max_model_len"] or 256)
        )

    def _load(self, named: list[tuple[str, torch.Tensor]]) -> None:
        assert "weights" not in self.asleep, "weights loaded into freed memory"
        self.loaded = True
        if self.calls[-1:] != ["load"]:
            self.calls.append("load")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {' '.join(tags)}")
        self.asleep -= set(tags)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        self.asleep, self.loaded = {"weights", "kv_cache"}, False

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool) -> list[Any]:
        assert not self.asleep, f"generation while {self.asleep} sleep"
        assert self.loaded, "generation from weights that were thrown away"
        self.calls.append(f"generate {len(prompts)}")
        return [self._output(row["prompt_token_ids"], sampling_params) for row in prompts]

    def _output(self, prompt: list[int], sampling: Any) -> Any:
        assert sampling.n == 1
        self.prompts += 1
        tokens = answer(prompt, self.prompts, sampling.max_tokens)
        sampled = [
            {token: SimpleNamespace(rank=1, logprob=logprob(prompt, token, position))}
            for position, token in enumerate(tokens)
        ]
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=tokens, logprobs=sampled)])


Patch = Callable[[Any, str, Any], None]


def pretend_vllm(patch: Patch = setattr) -> list[dict[str, torch.Tensor]]:
    """Let TRL's client and `VLLMGeneration` run without vLLM and without a GPU.

    Replaced are the question whether vLLM is installed, the rendezvous of the weight transfer and its broadcast; all
    requests that go with them are still made.

    Args:
        patch (callable, *optional*, defaults to `setattr`): sets an attribute; a test undoes it afterwards.

    Returns:
        list of `dict`: what each weight transfer sent, by name; it fills as the trainer runs.
    """
    sent: list[dict[str, torch.Tensor]] = []

    def rendezvous(client: VLLMClient, device: Any = 0) -> None:
        assert client.get_server_info()["weight_transfer_config"] is not None
        init_info = {"world_size": client.get_world_size() + 1, "rank_offset": 1}
        client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": init_info})

    def send(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        sent.append({name: value.detach().clone() for name, value in iterator})

    for module in (client_module, generation_module):
        patch(module, "is_vllm_available", lambda *args, **kwargs: True)
    patch(client_module, "_HAS_STATEFUL_TRAINER_ENGINE", False)
    patch(client_module, "NCCLTrainerSendWeightsArgs", SimpleNamespace)
    patch(client_module, "NCCLWeightTransferEngine", SimpleNamespace(trainer_send_weights=send))
    patch(VLLMClient, "init_communicator", rendezvous)
    patch(generation_module, "LLM", StandInLLM)
    patch(generation_module, "SamplingParams", SimpleNamespace)
    return sent
