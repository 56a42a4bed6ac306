"""A demo from start to end: warm-up, both arms from one checkpoint, evaluation, report."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..plots import BatchAllocation, comparison_figure, save_figure
from .display import Display
from .problems import ProblemSet
from .record import ArmResult, Groups
from .report import (
    DemoResult,
    accuracy_table,
    held_out_curves,
    probe_sentence,
    rollout_table,
    signal_curves,
    training_table,
    verdict,
)
from .settings import ARMS, Settings


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' notices off the screen, where they would tear the live view; errors still come through."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed, where installed, complains otherwise
    import datasets
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()
        datasets.enable_progress_bars()


def make_checkpoint(settings: Settings, display: Display) -> Path:
    """Warm the built-in model up and save it: the start of both arms."""
    from .tiny import build_model, build_tokenizer, warm_up

    phase = "supervised warm-up"
    display.start(phase, settings.warm_up_steps)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, settings.seed)
    warm_up(
        model,
        tokenizer,
        settings.warm_up_steps,
        settings.seed,
        on_step=lambda step, loss: display.advance(phase, step, f"loss {loss:.3f}"),
    )
    folder = settings.output_dir / "warm_up"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    display.finish(phase, f"{model.num_parameters():,} parameters")
    return folder


def probe_first_batch(
    model: Any, tokenizer: Any, problems: ProblemSet, arm: ArmResult, settings: Settings
) -> BatchAllocation:
    """The first batch of an arm, and the success rates of its prompts under the policy it started from."""
    from .evaluation import sample_rewards

    groups: Groups = arm.groups.where(arm.groups.step == 0)
    rewards = sample_rewards(
        model,
        tokenizer,
        [problems.train[number] for number in groups.prompt],
        problems.grade,
        samples=settings.probe_samples,
        max_tokens=settings.max_completion_length,
        batch_size=8 * settings.micro_batch,
        seed=settings.seed + 2,
    )
    rates = rewards.mean(axis=1)
    errors = np.sqrt(rates * (1 - rates) / settings.probe_samples)
    return BatchAllocation(groups.rollouts, groups.successes, rates, errors, float(settings.num_generations))


def measure(
    settings: Settings, problems: ProblemSet, load: Callable[[], tuple[Any, Any]], display: Display
) -> DemoResult:
    """Evaluate, train and probe. `load` returns a fresh copy of both arms' start: a model and its tokenizer."""
    from .arms import evaluate, run_arm

    before = np.zeros(0)
    if problems.held_out:
        display.start("held-out, before", 1)
        before = evaluate(*load(), problems, settings)
        display.finish("held-out, before", f"accuracy {before.mean():.3f}")
    result = DemoResult(settings, problems, before)
    for arm in settings.arms:
        display.start(ARMS[arm], settings.steps)
        result.arms[arm] = run_arm(arm, *load(), problems, settings, display)
    if settings.probe_samples and "adaroll" in result.arms:
        phase = "success rates, batch 1"
        display.start(phase, 1)
        result.probe = probe_first_batch(*load(), problems, result.arms["adaroll"], settings)
        display.finish(phase, f"{settings.probe_samples} more samples a prompt")
    return result


def report(result: DemoResult, console: Console) -> None:
    """Print the tables, and leave them, the figures and the picture in the output folder."""
    folder = result.settings.output_dir
    recorder = Console(record=True, width=80, file=open(os.devnull, "w"))  # noqa: SIM115
    for target in (console, recorder):
        target.print()
        target.print(training_table(result))
        target.print(rollout_table(result))
        if result.before.size:
            target.print(accuracy_table(result))
        target.print(verdict(result), highlight=False)
        if result.probe is not None:
            target.print(probe_sentence(result.probe), highlight=False)
    recorder.save_text(str(folder / "report.txt"))
    (folder / "results.json").write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")
    console.print(f"Tables: {folder / 'report.txt'}   figures: {folder / 'results.json'}", highlight=False)
    draw(result, folder / "demo.png", console)


def draw(result: DemoResult, path: Path, console: Console) -> None:
    """The picture, or a line that says what it takes to have one."""
    settings = result.settings
    heading = (
        f"{result.problems.name}, {settings.steps} steps of {settings.prompts} prompts x {settings.num_generations} "
        f"rollouts, one run, seed {settings.seed}"
    )
    try:
        figure = comparison_figure(held_out_curves(result), signal_curves(result), result.probe, heading=heading)
    except ImportError as error:
        console.print(f"No picture: {error}", highlight=False)
        return
    save_figure(figure, path)
    console.print(f"Picture: {path}", highlight=False)


def as_json(result: DemoResult) -> dict[str, Any]:
    """Settings and measurements, without any text of the data set."""
    arms = {
        name: {
            "step_seconds": arm.step_seconds,
            "tokens": arm.tokens,
            "held_out": [[step, accuracy.tolist()] for step, accuracy in arm.held_out],
            "groups": dict(
                zip(
                    ("step", "prompt", "level", "rollouts", "successes"),
                    (column.tolist() for column in arm.groups.columns()),
                    strict=True,
                )
            ),
        }
        for name, arm in result.arms.items()
    }
    return {"settings": result.settings.as_dict(), "before": result.before.tolist(), "arms": arms}
