"""Every kind of recipe trains a tiny twin of its model: all weights, with LoRA, and under ZeRO-3."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForConditionalGeneration, Gemma3Processor, LlamaForCausalLM
from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.training.arguments import parse
from adaroll_trl.training.run import build_trainer
from tests.tiny import parity_reward, same_weights, weights
from tests.tiny_recipes import RECIPES, adapted, build_twin, small

CLASSES = {"llama": LlamaForCausalLM, "gemma": Gemma3ForConditionalGeneration}
FOLDERS = {"llama": ["llama-3.1-8b-instruct", "llama-3.2-3b-instruct"], "gemma": ["gemma-3-4b-it"]}
FILES = ["grpo", "adaroll", "progress_carry", "dr_grpo", "dr_grpo_adaroll", "dapo", "dapo_adaroll"]
ZERO3 = [("llama", "full"), ("gemma", "full"), ("gemma", "lora")]
TASKS = ["math", "gsm8k", "logiqa", "colota"]
# Each class with each file, and by turns each model and each task
CASES = [
    (kind, f"{FOLDERS[kind][number % len(FOLDERS[kind])]}/{TASKS[number % 4]}/{name}")
    for number, (kind, name) in enumerate(product(CLASSES, FILES))
]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("twins")
    return {kind: build_twin(kind, folder / kind) for kind in CLASSES}


@pytest.fixture
def build(twins: dict[str, Path], tmp_path: Path) -> Any:
    """`build("llama", "llama-3.1-8b-instruct/math/grpo", "--beta", "0.1")`: the trainer of a recipe made small."""

    def built(kind: str, name: str, *more: str) -> Any:
        words = small(RECIPES / f"{name}.yaml", twins[kind], tmp_path / "out", *more)
        return build_trainer(*parse(words))

    return built


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_recipe_builds_its_trainer(build, kind, name):
    trainer = build(kind, name)
    adaptive = name.endswith(("adaroll", "progress_carry"))
    assert type(trainer) is (AdaRollGRPOTrainer if adaptive else GRPOTrainer)
    assert type(trainer.model) is CLASSES[kind]
    if kind == "gemma":
        assert type(trainer.processing_class) is Gemma3Processor
    punished = 1 if "/dapo" in name else 0
    assert len(trainer.reward_funcs) == 1 + punished
    assert {*trainer.train_dataset.column_names} >= {"prompt", "answer", "prompt_id"}
    if adaptive:
        assert trainer.adaroll.success_reward == trainer.reward_func_names[0] == f"{name.split('/')[1]}_accuracy"


def test_every_model_and_task_is_among_the_cases():
    names = [name.split("/") for _, name in CASES]
    assert {model for model, _, _ in names} == {model for models in FOLDERS.values() for model in models}
    assert {task for _, task, _ in names} == {*TASKS}


@pytest.mark.parametrize("name", ["grpo", "adaroll", "progress_carry", "dr_grpo_adaroll", "dapo_adaroll"])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_recipe_takes_a_step(build, kind, name):
    trainer = build(kind, f"{FOLDERS[kind][-1]}/gsm8k/{name}", "--learning_rate", "1e-3", "--warmup_steps", "0")
    # A random model is never right: the outcome has to vary for a step to move it
    trainer.reward_funcs[0] = parity_reward
    before = weights(trainer)
    trainer.train()
    log = trainer.state.log_history[0]
    assert not same_weights(before, weights(trainer))
    if name != "grpo":
        assert log["adaroll/rollouts_per_prompt/mean"] == 8
        assert (log["adaroll/rounds"] == 1) == (name == "progress_carry")


def test_the_first_visit_of_progress_carry_is_grpo(build):
    trained = {}
    for name in ("grpo", "progress_carry"):
        trainer = build(
            "llama", f"llama-3.2-3b-instruct/gsm8k/{name}", "--learning_rate", "1e-3", "--warmup_steps", "0"
        )
        trainer.reward_funcs[0] = parity_reward
        before = weights(trainer)
        trainer.train()
        trained[name] = weights(trainer)
        assert not same_weights(before, trained[name])
    assert same_weights(trained["grpo"], trained["progress_carry"])


def lora_words(kind: str) -> list[str]:
    """The LoRA options as they stand on top of the recipes."""
    text = (RECIPES / FOLDERS[kind][0] / "math" / "adaroll.yaml").read_text().split("\n\n")[0]
    (given,) = re.findall(r"--use_peft.*?(?=Written)", text.replace("\\\n", "").replace("# ", " "), re.DOTALL)
    return shlex.split(given)


def projections(kind: str) -> set[str]:
    inner = "language_model." if kind == "gemma" else ""
    names = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    return {f"base_model.model.model.{inner}layers.{layer}.{name}" for layer in (0, 1) for name in names}


@pytest.mark.parametrize("kind", CLASSES)
def test_lora_adapts_every_projection_of_the_language_model_and_nothing_else(build, kind):
    trainer = build(kind, f"{FOLDERS[kind][0]}/gsm8k/adaroll", *lora_words(kind), "--warmup_steps", "0")
    trainer.reward_funcs[0] = parity_reward
    assert adapted(trainer.model) == projections(kind)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(".lora_" in name for name in moved)


def test_plain_names_would_adapt_gemmas_vision_tower(build):
    """Why Gemma's recipes give a pattern."""
    trainer = build(
        "gemma", "gemma-3-4b-it/gsm8k/adaroll", "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj"
    )
    assert any("vision_tower" in name for name in adapted(trainer.model))


@pytest.fixture(scope="module")
def ranks(twins: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks under ZeRO-3 found, by class and by all weights or LoRA."""
    folder = tmp_path_factory.mktemp("zero3")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "tests.workers.recipes", str(folder)]
    (folder / "runs.json").write_text(
        json.dumps(
            [
                {
                    "name": f"{kind}-{way}",
                    "words": small(
                        RECIPES / FOLDERS[kind][0] / "gsm8k" / "adaroll.yaml",
                        twins[kind],
                        folder / f"{kind}-{way}",
                        *(lora_words(kind) if way == "lora" else []),
                        *("--warmup_steps", "0", "--per_device_train_batch_size", "2", "--learning_rate", "1e-3"),
                        # DeepSpeed on a CPU computes in float32 only
                        *("--dtype", "float32", "--use_cpu", "false", "--deepspeed", str(folder / "zero3.json")),
                        *("--accelerator_config", json.dumps({"use_configured_state": True})),
                    ),
                }
                for kind, way in ZERO3
            ]
        )
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "way"), ZERO3)
def test_a_recipe_trains_under_zero_3(ranks, kind, way):
    first, second = (result[f"{kind}-{way}"] for result in ranks)
    for found in (first, second):
        assert found["engine"] == ("DeepSpeedEngine", 3, 2)
        assert found["class"] == CLASSES[kind].__name__
        assert found["spread"], "each rank holds a part of the weights"
        assert math.isfinite(found["log"]["loss"])
        assert found["log"]["adaroll/rollouts_per_prompt/mean"] == 8
        assert found["moved"]
        assert all(".lora_" in name for name in found["moved"]) == (way == "lora")
        assert found["adapted"] == (projections(kind) if way == "lora" else set())
    assert first["moved"] == second["moved"]
    assert first["log"]["reward"] == second["log"]["reward"]
