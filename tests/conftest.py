"""Tiny models and data that need no network: a 2-layer Llama and a byte-level tokenizer, built once per session."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
# DeepSpeed compiles there: a folder of this environment's own, whose lock no other environment can leave behind.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.tiny import build_model_dir, make_trainer, sums_dataset


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random Llama and its tokenizer."""
    return build_model_dir(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def sums() -> Any:
    """A data set of 48 conversational prompts."""
    return sums_dataset(48)


@pytest.fixture
def build(model_dir: Path, tmp_path: Path) -> Callable[..., Any]:
    """Builds a trainer on the tiny model: `build(AdaRollGRPOTrainer, allocator="uniform", num_generations=4)`."""
    return lambda *args, **kwargs: make_trainer(*args, model_dir=model_dir, output_dir=tmp_path, **kwargs)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """TRL takes vLLM for installed; the weights of each transfer."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # colocate mode sets them for good: let monkeypatch take them back
        os.environ.pop(name)
    from tests.standin import pretend_vllm  # not every TRL has what it replaces

    return pretend_vllm(partial(monkeypatch.setattr, raising=False))


@pytest.fixture
def server(sent: Any) -> Iterator[Any]:
    """A stand-in for vLLM's server."""
    from tests.standin import StandInServer

    with StandInServer() as server:
        yield server
