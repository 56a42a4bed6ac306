"""`adaroll train`: from arguments to a trainer, and its run."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, ModelConfig, get_peft_config, get_quantization_config

from ..callbacks import AdviceCallback, AllocationTableCallback, HistogramCallback, SettingsCallback
from ..checkpoint import checkpoint_to_resume
from ..config import AdaRollGRPOConfig
from ..trainer import AdaRollGRPOTrainer
from .arguments import TrainArguments, parse
from .display import print_plan
from .plan import make_plan
from .resolve import Run, resolve

TRAINERS = {"adaroll": AdaRollGRPOTrainer, "grpo": GRPOTrainer}


def build_trainer(script: TrainArguments, config: AdaRollGRPOConfig, model: ModelConfig, /, **overrides: Any) -> Any:
    """The trainer that the arguments describe.

    Args:
        script, config, model: as `parse` gives them.
        overrides: arguments of the trainer's constructor that replace what would be made from them (for tests, and
            for scripts of your own): `model`, `train_dataset`, `reward_funcs`, `callbacks`, ...

    Raises:
        ValueError: see `resolve`, and for what the trainer refuses.
    """
    return trainer_of(resolve(script, config, model, overrides), **overrides)


def trainer_of(run: Run, **overrides: Any) -> Any:
    """The trainer of a resolved run."""
    trainer_class: Any = TRAINERS[run.script.trainer]
    arguments: dict[str, Any] = {
        "model": run.model.model_name_or_path,
        "reward_funcs": list(run.rewards),
        "args": run.config,
        "train_dataset": run.train_dataset,
        "eval_dataset": run.eval_dataset,
        "peft_config": get_peft_config(run.model),
        **overrides,
    }
    quantization = get_quantization_config(run.model)
    if isinstance(arguments["model"], str):
        _set_loading(run, quantization)
    if quantization is not None and _takes_quantization():
        arguments.setdefault("quantization_config", quantization)
    arguments["callbacks"] = [*(arguments.get("callbacks") or []), *_callbacks(run)]
    return trainer_class(**arguments)


def _callbacks(run: Run) -> list[TrainerCallback]:
    """What follows the run. AdaRoll's trainer brings advice and settings; of equal groups there is nothing to show."""
    if run.script.trainer == "grpo":
        return [AdviceCallback(), SettingsCallback()]
    return [HistogramCallback(), *([AllocationTableCallback()] if run.script.allocation_table else [])]


def _takes_quantization() -> bool:
    """Older TRL has no such argument and reads it from `model_init_kwargs`."""
    return "quantization_config" in inspect.signature(GRPOTrainer.__init__).parameters


def _set_loading(run: Run, quantization: Any) -> None:
    """How `from_pretrained` is called, as in TRL's own scripts; what the config says itself wins."""
    given: Any = run.config.model_init_kwargs or {}
    loading = {
        "revision": run.model.model_revision,
        "attn_implementation": run.model.attn_implementation,
        "dtype": run.model.dtype,
    }
    if hasattr(run.model, "trust_remote_code"):  # older TRL; now it is the config's
        loading["trust_remote_code"] = run.model.trust_remote_code
    if quantization is not None and not _takes_quantization():
        loading["quantization_config"] = quantization
    run.config.model_init_kwargs = {**loading, **given}


def train(run: Run) -> None:
    """Train, save, and push to the Hub where asked for."""
    config = run.config
    checkpoint = find_checkpoint(config)  # before the model is loaded
    trainer = trainer_of(run)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(config.output_dir)
    trainer.save_state()  # the log, for `adaroll report`
    trainer.accelerator.print(f"Model saved to {config.output_dir}.")
    if config.push_to_hub:
        trainer.push_to_hub(dataset_name=run.script.dataset_name or getattr(run.task, "hub_id", None))
    if hasattr(trainer, "end"):  # closes trackers and the process group, since transformers 5.18
        trainer.end()


def find_checkpoint(config: GRPOConfig) -> str | None:
    """The folder to resume from, given or the newest complete one in `output_dir` ("true"); None for a fresh start.

    Raises:
        ValueError: if there is none, or it is not complete.
    """
    wanted: Any = config.resume_from_checkpoint
    return checkpoint_to_resume(str(config.output_dir), wanted, lambda text: warnings.warn(text, stacklevel=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; bad input ends with one sentence on stderr and exit status 2."""
    try:
        run = resolve(*parse(sys.argv[1:] if arguments is None else arguments))
        find_checkpoint(run.config)
        if run.config.process_index == 0:
            print_plan(make_plan(run))
    except (ValueError, OSError, ImportError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not run.script.dry_run:
        train(run)
    return 0
