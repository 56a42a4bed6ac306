"""`accelerate launch` with the configs in recipes/accelerate, scripts/train.py, two processes, CPUs only.

Two of the four launches run here; `scripts/launch_check.sh` runs all of them and shows their figures. The engines must
be what the recipes ask for, and agree on what they train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parent.parent
RECIPES = ("ddp", "zero2", "zero3", "fsdp2") if os.environ.get("ADAROLL_ALL_LAUNCHES") else ("zero3", "fsdp2")
ENGINES = {
    "ddp": ("DistributedDataParallel", 0),
    "zero2": ("DeepSpeedEngine", 2),
    "zero3": ("DeepSpeedEngine", 3),
    "fsdp2": ("FSDPModule", 0),
}
PROMPTS, ROLLOUTS, STEPS = 4, 4, 4  # prompts of a batch, rollouts of each on average, optimiser steps in two batches
ARGUMENTS = f"""
--task arithmetic --dataset_name 64:0 --reward_funcs tests.tiny:parity_reward --rounds 3 --min_rollouts 1
--num_generations {ROLLOUTS} --per_device_train_batch_size 4 --steps_per_generation 2 --max_steps {STEPS}
--max_completion_length 8 --learning_rate 1e-3 --logging_steps 1 --report_to none --save_strategy no
--bf16 false --dtype float32 --disable_tqdm true
""".split()


def launch(recipe: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    """Each rank's record of one launch; the numbers of processes and the precision are what CPUs here can hold."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / "recipes" / "accelerate" / f"{recipe}.yaml")]
    command += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"]
    command += ["--module", "tests.workers.launch", str(folder), *ARGUMENTS]
    command += ["--model_name_or_path", str(model), "--output_dir", str(folder / "run")]
    if recipe == "ddp":
        command += ["--use_cpu", "true"]
    else:
        command += ["--accelerator_config", json.dumps({"use_configured_state": True})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    if recipe.startswith("zero"):
        environment["DS_ACCELERATOR"] = "cpu"
    started = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **started) as process:
        try:
            output, _ = process.communicate(timeout=500)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher then ends its processes, which would outlive a kill
            output, _ = process.communicate()
            pytest.fail(f"{recipe} did not end in 500 s: {output[-6000:]}")
    assert process.returncode == 0, output[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def launched(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The ranks' records and the weights that the script saved, for a recipe; launched once, when first asked for."""

    @cache
    def find(recipe: str) -> Any:
        folder = tmp_path_factory.mktemp(recipe)
        started = time.perf_counter()
        ranks = launch(recipe, model_dir, folder)
        seconds = time.perf_counter() - started
        last = ranks[0]["log"][STEPS - 1]
        print(
            f"\n{recipe}: {ranks[0]['world']} processes, {ENGINES[recipe][0]}, ZeRO stage {ranks[0]['stage']}, "
            f"loss of step {STEPS}: {last['loss']:.6f}, gradient norm {last['grad_norm']:.6f}, {seconds:.0f} s"
        )
        return ranks, load_file(folder / "run" / "model.safetensors")

    return find


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipe_trains_with_its_engine_on_both_processes(launched, recipe):
    ranks, _ = launched(recipe)
    engine, stage = ENGINES[recipe]
    for rank, found in enumerate(ranks):
        assert (found["rank"], found["world"], found["steps"]) == (rank, 2, STEPS)
        assert engine in found["engine"]
        assert found["stage"] == stage
        assert found["spread"] == (recipe in ("zero3", "fsdp2"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_budget_is_spent_exactly(launched, recipe):
    ranks, _ = launched(recipe)
    for found in ranks:
        batches = [entry for entry in found["log"] if "adaroll/rounds" in entry]
        assert [entry["step"] for entry in batches] == [1, 3]
        for entry in batches:
            assert entry["adaroll/rounds"] == 3
            assert entry["adaroll/rollouts_per_prompt/mean"] * PROMPTS == PROMPTS * ROLLOUTS
            assert entry["adaroll/rollouts_per_prompt/max"] > ROLLOUTS
    ours = [[{k: v for k, v in e.items() if k.startswith("adaroll/")} for e in found["log"]] for found in ranks]
    assert ours[0] == ours[1]


def test_the_engines_agree(launched, model_dir):
    """Same prompts, same rollouts, same steps: what differs is where the numbers lie."""
    start = load_file(model_dir / "model.safetensors")
    first_ranks, first = launched(RECIPES[0])
    assert any(not torch.equal(first[name], value) for name, value in start.items())
    for recipe in RECIPES[1:]:
        ranks, weights = launched(recipe)
        for expected, found in zip(first_ranks[0]["log"][:STEPS], ranks[0]["log"][:STEPS], strict=True):
            for name in ("reward", "loss", "grad_norm", "num_tokens"):
                if name in expected:
                    assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
        assert weights.keys() == first.keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, first[name], rtol=0, atol=2e-4)
