"""One run of the benchmark: a recipe through `adaroll_trl.training`, recorded step by step, and evaluated on the way.

What is recorded goes to the run's folder as it happens, so that an interrupted run goes on from its last checkpoint.
Both arms are recorded at the same place, their reward function.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from adaroll_trl.evaluation.generation import sample_completions
from adaroll_trl.files import write_json
from adaroll_trl.tasks import Task, get_task
from adaroll_trl.training.arguments import parse
from adaroll_trl.training.run import build_trainer

# What is kept of the trainer's own log, beside everything under `adaroll/`.
KEPT = ("reward", "loss", "grad_norm", "entropy", "learning_rate", "completions/mean_length", "frac_reward_zero_std")


@dataclass(frozen=True)
class HeldOut:
    """The problems of an evaluation.

    Args:
        prompts (list): each as the task gives it.
        answers, ids (list of `str`): of the same length.
        samples (`int`): completions of each.
        keep (`int`): of how many problems the first completion's text is kept.
        seed, batch_size, max_tokens (`int`), temperature (`float`): of the sampling. One seed for all evaluations,
            which pairs them.
    """

    prompts: Sequence[Any]
    answers: Sequence[str]
    ids: Sequence[str]
    samples: int
    max_tokens: int
    temperature: float = 1.0
    keep: int = 20
    seed: int = 1234
    batch_size: int = 100

    @classmethod
    def of(cls, task: Task, source: str | None, size: int, samples: int, max_tokens: int, **more: Any) -> HeldOut:
        """The first `size` problems of the test split."""
        data = task.load("test", source).select(range(size))
        return cls(list(data["prompt"]), list(data["answer"]), list(data["prompt_id"]), samples, max_tokens, **more)

    def evaluate(self, model: Any, processing_class: Any, task: Task) -> dict[str, Any]:
        """Right completions of each problem, and some texts."""
        started, cpu = time.perf_counter(), time.process_time()
        prompts = [prompt for prompt in self.prompts for _ in range(self.samples)]
        completions = sample_completions(
            model,
            processing_class,
            prompts,
            max_tokens=self.max_tokens,
            batch_size=self.batch_size,
            seed=self.seed,
            temperature=self.temperature,
        )
        answers = [answer for answer in self.answers for _ in range(self.samples)]
        right = [task.verify(one.text, answer) for one, answer in zip(completions, answers, strict=True)]
        starts = range(0, len(right), self.samples)
        texts = [completions[start].text for start in starts[: self.keep]]
        return {
            "samples": self.samples,
            "ids": list(self.ids),
            "right": [sum(right[start : start + self.samples]) for start in starts],
            "completions": [list(pair) for pair in zip(self.ids, texts, strict=False)],
            "tokens": sum(one.num_tokens for one in completions),
            "finished": sum(one.finished for one in completions) / len(completions),
            "seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
        }


class Recorder(TrainerCallback):
    """Writes a line a step to `steps.jsonl`, and evaluates after the steps in `at`."""

    def __init__(self, folder: Path, task: Task, held_out: HeldOut | None, at: Sequence[int]) -> None:
        self.folder, self.task, self.held_out, self.at = folder, task, held_out, set(at)
        self.lines = folder / "steps.jsonl"
        self._reset()

    def _reset(self) -> None:
        self.started, self.cpu = time.perf_counter(), time.process_time()
        self.rollout_seconds, self.tokens, self.seconds, self.cpu_seconds = 0.0, 0, 0.0, 0.0
        self.groups: dict[str, list[int]] = {}

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that will be taken again."""
        kept = [line for line in read_steps(self.folder) if line["step"] <= step]
        self.lines.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def reward_function(self) -> Callable[..., list[float | None]]:
        """The task's reward, under its own name, counted by prompt."""
        reward = self.task.reward

        def recorded(completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
            rewards = reward(completions, answer)
            for prompt, value in zip(columns["prompt_id"], rewards, strict=True):
                group = self.groups.setdefault(prompt, [0, 0])
                group[0] += 1
                group[1] += value == 1.0
            self.tokens += sum(map(len, columns["completion_ids"]))
            return rewards

        recorded.__name__ = reward.__name__
        return recorded

    def watch_rollouts(self, trainer: Any) -> None:
        """Note the step's prompts and the time of the trainer's whole rollout phase: all rounds, their rewards and
        what is decided between them."""
        inner = trainer._generate_and_score_completions

        def timed(inputs: Any) -> Any:
            for row in inputs:  # a prompt that gets no rollouts is part of the step too
                self.groups.setdefault(row["prompt_id"], [0, 0])
            started = time.perf_counter()
            output = inner(inputs)
            self.rollout_seconds += time.perf_counter() - started
            return output

        trainer._generate_and_score_completions = timed

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._reset()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self.started, time.process_time() - self.cpu
        if self.held_out is not None and state.global_step in self.at:
            result = self.held_out.evaluate(kwargs["model"], kwargs["processing_class"], self.task)
            write_json(self.folder / f"evaluation-{state.global_step}.json", result)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "train_runtime" in logs:  # the summary at the end
            return
        line = {
            "step": state.global_step,
            "seconds": round(self.seconds, 3),
            "rollout_seconds": round(self.rollout_seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "tokens": self.tokens,
            "groups": [[prompt, *counts] for prompt, counts in self.groups.items()],
            "log": {
                name: float(f"{value:.5g}")
                for name, value in logs.items()
                if isinstance(value, float) and (name in KEPT or name.startswith("adaroll/"))
            },
        }
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The recorded steps; a last line that was not written to its end is left out."""
    path = folder / "steps.jsonl"
    if not path.exists():
        return []
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def where_and_when() -> dict[str, str]:
    """The machine, without its name, and the date."""
    cores, threads = os.cpu_count(), os.environ.get("OMP_NUM_THREADS", "?")
    return {
        "machine": f"{platform.machine()}, {cores} CPU cores, {threads} thread",
        "date": datetime.date.today().isoformat(),
    }


def run_recipe(
    recipe: Path,
    folder: Path,
    options: Sequence[str],
    held_out: HeldOut | None,
    at: Sequence[int],
    task: Task | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Train a recipe, or the rest of it, and return what was recorded.

    Args:
        recipe (`Path`): a YAML file of `adaroll train`.
        folder (`Path`): of this run: records and checkpoints. The checkpoints are deleted in the end.
        options (list of `str`): command line options over the recipe.
        held_out (`HeldOut`, *optional*): what to evaluate after the steps in `at`.
        task (`Task`, *optional*): grades instead of the recipe's.
        overrides: arguments of the trainer's constructor.
    """
    script, config, model = parse(["--config", str(recipe), *options, "--output_dir", str(folder)])
    folder.mkdir(parents=True, exist_ok=True)
    task = task or get_task(str(script.task))
    recorder = Recorder(folder, task, held_out, at)
    arguments = {"reward_funcs": [recorder.reward_function()], "callbacks": [recorder], **overrides}
    trainer = build_trainer(script, config, model, **arguments)
    recorder.watch_rollouts(trainer)
    checkpoint = get_last_checkpoint(str(folder))
    recorder.forget_after(int(checkpoint.rsplit("-", 1)[1]) if checkpoint else 0)
    trainer.train(resume_from_checkpoint=checkpoint)
    evaluations = {str(step): read_json(folder / f"evaluation-{step}.json") for step in sorted(at)}
    result = {
        "recipe": recipe.name,
        "seed": config.seed,
        "learning_rate": config.learning_rate,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_completion_length,
        "steps": read_steps(folder),
        "evaluations": evaluations,
    }
    while last := get_last_checkpoint(str(folder)):
        shutil.rmtree(last)
    return result
