"""One run of the toy tier: train a cell with a seed, evaluate on the way, and keep what explains the result."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from regimes import REGIMES, Regime
from stored import DIGITS, LAST_SAMPLES, SAMPLES
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.demo.evaluation import sample_rewards
from adaroll_trl.demo.problems import Problem, exact_match
from adaroll_trl.demo.record import Groups, RolloutRecord
from adaroll_trl.files import write_json

EVALUATIONS = 4  # evenly over the training, besides the start
MAX_TOKENS = 16
# The base point, whatever the library's defaults are; an arm's options say what is different
BASE: dict[str, Any] = {
    "utility": "mixed",
    "rounds": 4,
    "min_rollouts": 2,
    "belief_decay": 0.0,
    "prior_source": "fixed",
    "prompt_weighting": "rollout",
}


@dataclass(frozen=True)
class Cell:
    """What one run is, but for its seed.

    Attributes:
        regime (`str`): one of `REGIMES`.
        arm (`str`): name of the method.
        options (`dict`): fields of `AdaRollGRPOConfig` that make the arm, where they are not `BASE`.
        steps, prompts, num_generations (`int`): optimizer steps, prompts a step, rollouts a prompt.
        learning_rate (`float`): the largest; it falls linearly to 0.
        factor (`str`): what differs from the base point, for names; empty at the base point.
    """

    regime: str
    arm: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    steps: int = 200
    learning_rate: float = 2e-4
    prompts: int = 16
    num_generations: int = 8
    factor: str = ""

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.regime, self.arm, self.factor) if part)


class _Follow(TrainerCallback):
    """Times the steps, evaluates between them, and keeps how the advantages are spread over the rollouts."""

    def __init__(self, evaluate: Any, at: set[int]) -> None:
        self.evaluate, self.at = evaluate, at
        self.trainer: Any = None
        self.evaluations: dict[int, str] = {}
        self.seconds: list[float] = []
        self.effective: list[float] = []
        self.norms: list[float] = []
        self.kappas: list[float] = []
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        advantages = np.abs(np.array(self.trainer._logs["advantages"]))
        squares = float(np.square(advantages).sum())
        self.effective.append(float(advantages.sum()) ** 2 / squares / advantages.size if squares > 0 else 0.0)
        if state.global_step in self.at:
            self.evaluations[state.global_step] = self.evaluate(kwargs["model"], state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"]))
        if logs and "adaroll/kappa" in logs:
            self.kappas.append(round(float(logs["adaroll/kappa"]), 2))


def run_cell(cell: Cell, seed: int, checkpoints: Path, output: Path) -> dict[str, Any]:
    """Train and evaluate; everything in the result is JSON."""
    torch.set_num_threads(1)
    regime = REGIMES[cell.regime]
    before = right_at_start(regime, seed, checkpoints)
    held_out = regime.held_out()
    model, tokenizer = load_start(regime, seed, checkpoints)
    record = RolloutRecord()
    at = {round(cell.steps * k / EVALUATIONS) for k in range(1, EVALUATIONS + 1)}

    def evaluate(model: Any, step: int) -> str:
        return count_right(model, tokenizer, held_out, LAST_SAMPLES if step == cell.steps else SAMPLES, seed)

    follow = _Follow(evaluate, at)
    rollouts = cell.prompts * cell.num_generations
    micro = min(rollouts, 256)
    config = AdaRollGRPOConfig(
        output_dir=str(output),
        max_steps=cell.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=rollouts // micro,
        num_generations=cell.num_generations,
        max_completion_length=MAX_TOKENS,
        learning_rate=cell.learning_rate,
        warmup_steps=5,
        max_grad_norm=1.0,
        seed=seed,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        table_cache_dir=str(output / "tables"),
        **{**BASE, **cell.options},
    )
    trainer = AdaRollGRPOTrainer(
        args=config,
        model=model,
        processing_class=tokenizer,
        reward_funcs=record.reward_function(exact_match),
        train_dataset=Dataset.from_list(regime.training(cell.steps * cell.prompts, seed)),
        callbacks=[follow],
    )
    follow.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    cpu = time.process_time()
    trainer.train()
    return {
        "cell": cell.name,
        "regime": cell.regime,
        "arm": cell.arm,
        "factor": cell.factor,
        "options": cell.options,
        "seed": seed,
        "steps": cell.steps,
        "prompts": cell.prompts,
        "num_generations": cell.num_generations,
        "learning_rate": cell.learning_rate,
        "right": {"0": before, **{str(step): right for step, right in follow.evaluations.items()}},
        "groups": by_third_and_level(record.groups(), cell.steps),
        "effective_rollouts": round(float(np.mean(follow.effective)), 4),
        "grad_norm": [round(float(np.mean(part)), 4) for part in np.array_split(np.array(follow.norms), 3)],
        **({"kappa": follow.kappas} if follow.kappas else {}),
        "step_seconds": round(float(np.median(follow.seconds)), 4),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "made": {"date": str(date.today()), **{name: version(name) for name in ("adaroll_trl", "trl", "torch")}},
    }


def load_start(regime: Regime, seed: int, checkpoints: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    start = regime.start(seed, checkpoints)
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(start)


def right_at_start(regime: Regime, seed: int, checkpoints: Path) -> str:
    """`count_right` before training, kept beside the starts: all runs of a regime and seed have the same."""
    path = checkpoints / f"right{LAST_SAMPLES}-{regime.name}-seed{seed}.json"
    if not path.exists():
        write_json(path, count_right(*load_start(regime, seed, checkpoints), regime.held_out(), LAST_SAMPLES, seed))
    return str(json.loads(path.read_text(encoding="utf-8")))


def count_right(model: Any, tokenizer: Any, problems: Sequence[Problem], samples: int, seed: int) -> str:
    """How many of `samples` completions of each problem are right, a digit in base 36 each."""
    rewards = sample_rewards(
        model,
        tokenizer,
        problems,
        exact_match,
        samples=samples,
        max_tokens=MAX_TOKENS,
        batch_size=960,
        seed=seed + 10_000,
    )
    return "".join(DIGITS[int(count)] for count in rewards.sum(axis=1))


def by_third_and_level(groups: Groups, steps: int) -> list[list[float]]:
    """Sums over the groups trained on, by third of the training and level; columns as in `GROUP_COLUMNS`."""
    third = np.minimum(3 * groups.step // steps, 2)
    failures = groups.rollouts - groups.successes
    rows = []
    for key in np.unique(np.stack([third, groups.level], axis=1), axis=0):
        here = (third == key[0]) & (groups.level == key[1])
        n, mixed = groups.rollouts[here], groups.mixed[here]
        mass = groups.successes[here] * failures[here] / n
        numbers = [here.sum(), n.sum(), groups.successes[here].sum(), mixed.sum(), n[mixed].sum(), mass.sum()]
        rows.append([*key.tolist(), *(round(float(number), 3) for number in numbers)])
    return rows
