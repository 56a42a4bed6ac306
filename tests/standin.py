"""A stand-in for a vLLM server that speaks real HTTP, and for vLLM in the trainer's process.

Neither runs a model: a completion spells out a fingerprint of its prompt, and its log-probabilities another one, so a
row that meets the answer to another prompt is seen. TRL's own client and its own `VLLMGeneration` talk to them; only
what needs vLLM installed, or a GPU, is replaced (see `pretend_vllm`).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
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


_LOCK = threading.Lock()


class Numbers:
    """Numbers a prompt's completions in the order in which they are asked for, far from those of other prompts."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, ...], int] = {}

    def next(self, prompt: Sequence[int]) -> int:
        key = tuple(prompt)
        with _LOCK:
            self._asked[key] = self._asked.get(key, -1) + 1
            return self._asked[key] + 1000 * sum(fingerprint(prompt))


class StandInServer:
    """vLLM's HTTP server as TRL's client sees it, in a thread.

    ```python
    with StandInServer() as server:
        trainer = build(vllm_server_base_url=server.url, ...)
    ```

    Args:
        answer (callable, *optional*): from prompt, number and `max_tokens` to a completion's tokens.
        mix_up (`bool`, *optional*, defaults to `False`): hand each prompt the answer to the next one.
        fail_from (`int`, *optional*): refuse completions from that one on.
        seconds (`float`, *optional*): that a token takes.

    Attributes:
        most_at_once (`int`): requests for completions that were answered at the same time, at most.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[int], int, int], list[int]] = answer,
        mix_up: bool = False,
        fail_from: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.requests: list[tuple[str, Any]] = []  # path and body of each POST, in order
        self._answer, self._mix_up, self._numbers = answer, mix_up, Numbers()
        self.fail_from, self._seconds = fail_from, seconds
        self.at_once = self.most_at_once = 0
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
                self._reply(outer._counted(body) if self.path == "/v1/completions" else {})

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

    def _counted(self, body: dict[str, Any]) -> dict[str, Any] | None:
        with _LOCK:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.fail_from is not None and len(self.generations) > self.fail_from:
                return None
            reply = self._complete(body)
            time.sleep(self._seconds * max(len(choice["token_ids"]) for choice in reply["choices"]))
            return reply
        finally:
            with _LOCK:
                self.at_once -= 1

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
        tokens = self._answer(source, self._numbers.next(source), max_tokens)
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
        self.options, self.calls, self.numbers = options, [], Numbers()  # type: ignore[var-annotated]
        self.asleep: set[str] = set()
        self.loaded = True  # it starts with the checkpoint's weights
        model = SimpleNamespace(load_weights=self._load)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = StandInEngine(self, executor, options["max_model_len"] or 256)

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
        tokens = answer(prompt, self.numbers.next(prompt), sampling.max_tokens)
        sampled = [
            {token: SimpleNamespace(rank=1, logprob=logprob(prompt, token, position))}
            for position, token in enumerate(tokens)
        ]
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=tokens, logprobs=sampled)])


class StandInEngine:
    """`LLM.llm_engine`: requests that run side by side, a token a step.

    Attributes:
        steps (`int`): taken so far.
        most_at_once (`int`): requests that ran at the same time, at most.
        fail_at, lose_at (`int`, *optional*): a step that raises, and one in which a request gets lost.
        failure (`BaseException`): what it raises.
    """

    fail_at: int | None = None
    lose_at: int | None = None
    failure: BaseException = RuntimeError("EngineCore died")

    def __init__(self, llm: StandInLLM, executor: Any, max_model_len: int) -> None:
        self._llm, self.model_executor = llm, executor
        self.model_config = SimpleNamespace(max_model_len=max_model_len)
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=256))
        self.running: dict[str, tuple[Any, int]] = {}
        self.steps = self.most_at_once = 0
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> str:
        assert not self._llm.asleep, f"generation while {self._llm.asleep} sleep"
        assert self._llm.loaded, "generation from weights that were thrown away"
        assert params.output_kind is OutputKind.FINAL_ONLY, "an output for every token of every request"
        assert name not in self.running
        self.running[name] = (self._llm._output(prompt["prompt_token_ids"], params), 0)
        self.most_at_once = max(self.most_at_once, len(self.running))
        return name

    def step(self) -> list[Any]:
        self.steps += 1
        if self.steps == self.fail_at:
            raise self.failure
        if self.steps == self.lose_at:
            self.running.pop(next(iter(self.running)))
        ended = []
        for name, (output, tokens) in list(self.running.items()):
            self.running[name] = (output, tokens + 1)
            if tokens + 1 == len(output.outputs[0].token_ids):
                del self.running[name]
                ended.append(SimpleNamespace(request_id=name, finished=True, **vars(output)))
        return ended

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.running.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)


class OutputKind(Enum):
    CUMULATIVE = 0
    FINAL_ONLY = 2


class StandInParams(SimpleNamespace):
    """`vllm.SamplingParams`."""

    output_kind = OutputKind.CUMULATIVE


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
    patch(generation_module, "SamplingParams", StandInParams)
    return sent
