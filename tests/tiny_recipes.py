"""What makes a recipe small: a tiny model of the same class, a few records in the task's own format, a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import build_model_dir
from tests.vision import build_vision_dir

RECIPES = Path(__file__).parent.parent / "recipes"
RECORDS = Path(__file__).parent / "data"


def build_twin(kind: str, path: Path) -> Path:
    """A folder with a tiny random model of the class that the recipes' models have: "llama" or "gemma"."""
    return build_model_dir(path) if kind == "llama" else build_vision_dir(path, "gemma3")


def small(recipe: Path, twin: Path, output_dir: Path, *more: str) -> list[str]:
    """The command line that runs a recipe here: 16 rollouts of 8 tokens, 2 prompts, one step."""
    words = {
        "config": recipe,
        "model_name_or_path": twin,
        "dataset_name": RECORDS / recipe.parent.name,
        "output_dir": output_dir,
        "use_cpu": True,
        "bf16": False,
        "use_vllm": False,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 8,
        "max_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    if recipe.stem.startswith("dapo"):
        words["soft_punish_cache"] = 4
    return [text for name, value in words.items() for text in (f"--{name}", str(value))] + list(more)


def adapted(model: Any) -> set[str]:
    """The names of the modules that have an adapter."""
    return {name.split(".lora_A")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
