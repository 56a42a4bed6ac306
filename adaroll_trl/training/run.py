"""From parsed arguments to a trainer, and its run."""

from __future__ import annotations

from typing import Any

from trl import GRPOTrainer, ModelConfig, get_peft_config, get_quantization_config

from ..config import AdaRollGRPOConfig
from ..tasks import get_task
from ..trainer import AdaRollGRPOTrainer
from .arguments import TrainArguments, parse


def build_trainer(script: TrainArguments, config: AdaRollGRPOConfig, model: ModelConfig, **overrides: Any) -> Any:
    """The trainer that the arguments describe. `overrides` replace arguments of its constructor (for tests)."""
    task = get_task(str(script.task))
    given: Any = config.model_init_kwargs or {}
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **given,
    }
    trainer_class = AdaRollGRPOTrainer if script.trainer == "adaroll" else GRPOTrainer
    arguments: dict[str, Any] = {
        "model": model.model_name_or_path,
        "reward_funcs": [task.reward],
        "args": config,
        "train_dataset": task.load(script.dataset_train_split, script.dataset_name),
        "quantization_config": get_quantization_config(model),
        "peft_config": get_peft_config(model),
    }
    return trainer_class(**{**arguments, **overrides})


def train(script: TrainArguments, config: AdaRollGRPOConfig, model: ModelConfig) -> None:
    trainer = build_trainer(script, config, model)
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
    trainer.save_model(config.output_dir)


def main(arguments: list[str] | None = None) -> int:
    """`adaroll train`."""
    train(*parse(arguments))
    return 0
