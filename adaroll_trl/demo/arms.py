"""The two training runs: TRL's GRPOTrainer and AdaRollGRPOTrainer, with one set of arguments."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PrinterCallback, TrainerCallback

from ..callbacks import SettingsCallback
from .evaluation import sample_rewards
from .problems import DemoError, ProblemSet
from .record import ArmResult, RolloutRecord
from .settings import Settings


class Observer(Protocol):
    """Follows a run live."""

    def on_step(self, arm: str, step: int, record: RolloutRecord) -> None: ...

    def on_held_out(self, arm: str, step: int, accuracy: float) -> None: ...


def evaluate(model: Any, tokenizer: Any, problems: ProblemSet, settings: Settings) -> NDArray[np.float64]:
    """Accuracy on each held-out problem; the same random seed every time, so that arms and moments can be paired."""
    rewards = sample_rewards(
        model,
        tokenizer,
        problems.held_out,
        problems.grade,
        samples=settings.eval_samples,
        max_tokens=settings.max_completion_length,
        batch_size=8 * settings.micro_batch,
        seed=settings.seed + 1,
    )
    return rewards.mean(axis=1)


class _Follow(TrainerCallback):
    """Tells the observer of each step and times it; evaluates now and then, outside the time of any step."""

    def __init__(
        self, arm: str, record: RolloutRecord, observer: Observer, evaluation: Callable[[Any], Any], at: set[int]
    ):
        self.arm, self.record, self.observer, self.evaluation, self.at = arm, record, observer, evaluation, at
        self.held_out: list[tuple[int, NDArray[np.float64]]] = []
        self.step_seconds: list[float] = []
        self.step_started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_seconds.append(time.perf_counter() - self.step_started)
        self.observer.on_step(self.arm, state.global_step, self.record)
        if state.global_step in self.at:
            accuracy = self.evaluation(kwargs["model"])
            self.held_out.append((state.global_step, accuracy))
            state.log_history.append({"step": state.global_step, "eval_accuracy": float(accuracy.mean())})
            self.observer.on_held_out(self.arm, state.global_step, float(accuracy.mean()))


def trainer_arguments(settings: Settings, arm: str) -> dict[str, Any]:
    """The arguments of both arms' configs. Whatever is not here keeps TRL's default."""
    return {
        "output_dir": str(settings.output_dir / arm),
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": settings.rollouts_per_step // settings.micro_batch,
        "num_generations": settings.num_generations,
        "max_completion_length": settings.max_completion_length,
        "learning_rate": settings.lr,
        "warmup_steps": min(5, settings.steps // 10),
        "seed": settings.seed,
        "bf16": False,  # the model's own dtype decides
        "gradient_checkpointing": False,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": max(1, settings.steps // 250),
        "log_completions": True,  # for `adaroll report`
        "num_completions_to_print": 0,
    }


def trainer_config(arm: str, settings: Settings) -> Any:
    """`GRPOConfig` or `AdaRollGRPOConfig`; the second gets those of its own fields that the user set.

    Raises:
        DemoError: if the config refuses a value.
    """
    arguments = trainer_arguments(settings, arm)
    try:
        if arm == "grpo":
            from trl import GRPOConfig

            return GRPOConfig(**arguments)
        from .. import AdaRollGRPOConfig
        from ..planner import RolloutPlanner

        # Exact tables go beside the results.
        tables = str(settings.output_dir / "tables")
        # Prompts come once, so the demo decides within a batch, as the paper does.
        chosen = {"utility": "mixed", "table_cache_dir": tables, **settings.adaroll}
        config = AdaRollGRPOConfig(**arguments, **chosen)
        # What the trainer would refuse, it refuses here: before an arm is trained.
        RolloutPlanner(config, settings.prompts, settings.num_generations, 1, lambda warning: None)
        return config
    except ValueError as error:
        raise DemoError(str(error)) from error


def trainer_class(arm: str) -> Any:
    if arm == "grpo":
        from trl import GRPOTrainer

        return GRPOTrainer
    from .. import AdaRollGRPOTrainer

    return AdaRollGRPOTrainer


def run_arm(
    arm: str, model: Any, tokenizer: Any, problems: ProblemSet, settings: Settings, observer: Observer
) -> ArmResult:
    """Train `model` in place on the problems and return what happened."""
    record = RolloutRecord()
    follow = _Follow(
        arm,
        record,
        observer,
        lambda policy: evaluate(policy, tokenizer, problems, settings),
        settings.evaluation_steps if problems.held_out else set(),
    )
    shutil.rmtree(settings.output_dir / arm / "completions", ignore_errors=True)  # an earlier demo's
    try:
        trainer = trainer_class(arm)(
            args=trainer_config(arm, settings),
            model=model,
            processing_class=tokenizer,
            reward_funcs=record.reward_function(problems.grade),
            train_dataset=Dataset.from_list(problems.rows()),
            callbacks=[follow, SettingsCallback()],
        )
    except ValueError as error:  # a combination of options that the trainer refuses
        raise DemoError(str(error)) from error
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_state()  # the log, for `adaroll report`
    return ArmResult(arm, record.groups(), record.tokens, follow.step_seconds, follow.held_out)
