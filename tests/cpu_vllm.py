"""A real vLLM on the CPU: what TRL needs of a GPU is replaced, and nothing else.

TRL sends weights to a server over NCCL and loads them into a colocated engine in place; vLLM's CPU build can do
neither, but it can reload all weights at once. So a server gets them as a file, and a colocated engine as an iterator.
Its sleep mode does not exist on the CPU: here sleep sets every weight to zero, and waking brings nothing back, as at
TRL's level 2.
"""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import torch
import trl.generation.vllm_generation as generation_module
from safetensors.torch import load_file, save_file
from trl.generation.vllm_client import VLLMClient

from tests.tiny import completions_of

# One thread, and no GPU-sized cache
VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


# Server


@contextmanager
def serving(model_dir: Path, log: Path) -> Iterator[str]:
    """vLLM's own server for `model_dir`; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "256"]
    command += ["--enforce-eager", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as file:
        environment = {**os.environ, **VLLM_ENVIRONMENT}
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        _wait_until_up(server, url, log)
        yield url
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=60)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its engine is a process of its own, and may outlive it


def _wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path, seconds: int = 900) -> None:
    for _ in range(seconds):
        assert server.poll() is None, f"vLLM's server ended:\n{log.read_text()[-4000:]}"
        try:
            if requests.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except requests.exceptions.RequestException:
            pass
        time.sleep(1)
    raise TimeoutError(f"vLLM's server is not up after {seconds} s:\n{log.read_text()[-4000:]}")


def finished_requests(url: str) -> int:
    """How many completions the server says it has finished since it started."""
    lines = requests.get(f"{url}/metrics", timeout=30).text.splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total{")]
    assert values, "the server has no metric vllm:request_success_total"
    return int(sum(values))


class Record:
    """What passed between trainer and vLLM, and the faults that a control asks for.

    Args:
        drop_weights_after (`int`, *optional*): weights are thrown away after that many transfers.
        mix_rows_up (`bool`, *optional*): prompts get each other's answers.
        seeded (`bool`, *optional*): no fault: the k-th completion of a prompt has a seed of its own (colocate only).
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self, drop_weights_after: int | None = None, mix_rows_up: bool = False, seeded: bool = False) -> None:
        self.transfers, self.asked, self.calls = 0, [], []  # type: ignore[var-annotated]
        self._drop_after, self.mix_rows_up, self.seeded = drop_weights_after, mix_rows_up, seeded

    def transfer(self) -> bool:
        """Count a transfer of weights; whether it is to happen."""
        self.transfers += 1
        self.calls.append("weights")
        return self._drop_after is None or self.transfers <= self._drop_after

    def generation(self, prompts: int) -> None:
        self.asked.append(prompts)
        self.calls.append("generate")

    def mixed(self, prompts: Sequence[Sequence[int]], answers: list[Any]) -> list[Any]:
        if not self.mix_rows_up:
            return answers
        order = sorted(range(len(prompts)), key=lambda row: prompts[row])
        half = len(order) // 2
        taken = dict(zip(order, order[half:] + order[:half], strict=True))
        return [answers[taken[row]] for row in range(len(prompts))]


def connect(record: Record, folder: Path) -> None:
    """Let TRL's client talk to a server on the CPU: weights go through a file in `folder`."""
    generate = VLLMClient.generate

    def update_named_params(client: VLLMClient, metadata: Any, named_params: Any) -> None:
        tensors = {name: value.detach().clone().contiguous() for name, value in named_params}
        assert [[name, list(value.shape)] for name, value in tensors.items()] == [[m[0], m[2]] for m in metadata]
        if record.transfer():
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            client._post(f"{client.base_url}/collective_rpc", json=body)

    def recorded(client: VLLMClient, prompts: Any, **options: Any) -> Any:
        output = generate(client, prompts, **options)
        record.generation(len(prompts) * options["n"])
        return {
            **output,
            **{key: record.mixed(prompts, output[key]) for key in ("completion_ids", "logprobs", "logprob_token_ids")},
        }

    VLLMClient.init_communicator = lambda client, device=0: None
    VLLMClient.update_named_params = update_named_params
    VLLMClient.generate = recorded


# Colocate


def colocate(record: Record) -> None:
    """Let TRL's colocate mode use an engine on the CPU: one for all trainers of this process, for time."""
    import vllm.triton_utils.dispatcher as dispatcher
    from vllm import LLM

    # vLLM 0.31 without Triton looks into every object of every module for a dict, and trips over llvmlite's
    dispatcher.vars = lambda value: found if hasattr(found := builtins.vars(value), "get") else {}

    class CPUEngine(LLM):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.asleep: set[str] = set()
            self.sleep_mode = False
            self.pending: list[tuple[str, torch.Tensor]] = []
            self.worker = self.llm_engine.model_executor.driver_worker
            checkpoint = load_file(Path(options["model"]) / "model.safetensors")
            self.nothing = {name: torch.zeros_like(value) for name, value in checkpoint.items()}
            self.engine_add, self.llm_engine.add_request = self.llm_engine.add_request, self._engine_add
            self._collect()

        def _collect(self) -> None:
            """Keep the weights that TRL loads one by one until it resets the prefix cache."""
            self.worker.model_runner.model.load_weights = lambda named: self.pending.extend(
                (name, value.detach().clone()) for name, value in named
            )

        def _reload(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
            del self.worker.model_runner.model.load_weights
            self.worker.reload_weights(weights_iterator=iter(named))
            self._collect()

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
            if self.pending:
                assert "weights" not in self.asleep, "weights loaded into freed memory"
                if record.transfer():
                    self._reload(self.pending)
                self.pending = []
            return super().reset_prefix_cache(*args, **kwargs)

        def _engine_add(self, *args: Any, **options: Any) -> Any:
            assert not self.asleep, f"generation while {self.asleep} sleep"
            if record.seeded and not options:  # a stream's, named by its prompt's number and its own
                name, prompt, params = args
                params.seed = _seed(prompt["prompt_token_ids"], int(name.rpartition("-")[2]))
            return self.engine_add(*args, **options)

        def generate(self, prompts: Any, *args: Any, **options: Any) -> Any:
            assert not self.asleep, f"generation while {self.asleep} sleep"
            if record.seeded:
                options["sampling_params"] = _seeded(options["sampling_params"], prompts)
            outputs = super().generate(prompts, *args, **options)
            record.generation(len(outputs))
            return record.mixed([row["prompt_token_ids"] for row in prompts], outputs)

        def sleep(self, level: int = 1, **options: Any) -> None:
            assert self.sleep_mode
            assert level == 2
            record.calls.append("sleep")
            self._reload(list(self.nothing.items()))
            self.asleep = {"weights", "kv_cache"}

        def wake_up(self, tags: list[str] | None = None) -> None:
            assert self.sleep_mode
            record.calls.append(f"wake {' '.join(tags or [])}")
            self.asleep -= set(tags or self.asleep)

    engines: list[CPUEngine] = []

    def engine(enable_sleep_mode: bool = False, **options: Any) -> CPUEngine:
        if not engines:
            engines.append(CPUEngine(**options, dtype="float32", enforce_eager=True))
        engines[0].sleep_mode, engines[0].asleep = enable_sleep_mode, set()
        return engines[0]

    generation_module.LLM = engine


def _seed(prompt: Sequence[int], sample: int) -> int:
    return hash((*prompt, sample)) % 2**31


def _seeded(params: Any, prompts: Sequence[dict[str, Any]]) -> list[Any]:
    """Parameters for each row, with the seed of its prompt and of its number among that prompt's rows."""
    asked: Counter[tuple[int, ...]] = Counter()
    rows = []
    for row in prompts:
        key = tuple(row["prompt_token_ids"])
        rows.append(params.clone())
        rows[-1].seed = _seed(key, asked[key])
        asked[key] += 1
    return rows


# What came back


def rescored(checkpoint: Any, prompts: Sequence[Sequence[int]], output: dict[str, Any]) -> float:
    """How far what vLLM sampled with is from the log-probabilities of `checkpoint`, a plain model, at most.

    Each row is scored by itself, without padding and without TRL.
    """
    worst = 0.0
    completions = completions_of(output)
    for prompt, completion, sampled in zip(prompts, completions, output["sampling_per_token_logps"], strict=True):
        with torch.no_grad():
            logits = checkpoint(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        worst = max(worst, (expected - sampled[: len(completion)]).abs().max().item())
    return worst
