"""GRPO, rounds and a stream on one colocated vLLM: engine steps and time of a step, in turns in one process.

A batch is 32 prompts and 256 rollouts. Each prompt has a success rate of its own, uniform over 0 to 1, and a reward is
a coin of that rate: what is decided fits the prior that AdaRoll starts from, and does not depend on what the model
says. Nothing is learned.

With a random model completions end by stop tokens: so many of its vocabulary, all about equally likely, that lengths
are geometric with the mean below, up to a cut. A real model's completions have the lengths that they have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import trl.generation.vllm_generation as generation_module
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from .. import AdaRollGRPOConfig, AdaRollGRPOTrainer
from ..tasks import get_task
from .context import Context, require
from .training import check_logps
from .turns import Stopwatch, stopwatches, train_in_turns

PROMPTS, GENERATIONS = 32, 8
BUDGET = PROMPTS * GENERATIONS
MEAN_LENGTH, LONGEST = 24, 128  # tokens of a random model's completion: the mean if there were no cut, and the cut
ARMS: dict[str, dict[str, Any] | None] = {
    "GRPO": None,
    "2 rounds": {"utility": "mixed", "rounds": 2},
    "4 rounds": {"utility": "mixed", "rounds": 4},
    "stream": {"utility": "mixed", "stream_rollouts": True},
}
BATCHES = 5  # of each arm in the check
LARGEST_COST = 1.5  # of a stream in GRPO's engine steps, by the check: 1.0 to 1.1 is usual, and 4 batches vary by 0.1
_CONFIG = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "num_generations": GENERATIONS,
    "per_device_train_batch_size": BUDGET // 4,
    "gradient_accumulation_steps": 4,  # a generation batch is one optimizer step
    "max_completion_length": LONGEST,
    "learning_rate": 1e-6,
    "optim": "sgd",  # an optimizer with a state of its own for each arm would not fit beside a real model
    "bf16": False,  # the model has its precision already, and the arms share it
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 7,
}


@dataclass(frozen=True)
class Arm:
    """What became of one way to generate.

    Attributes:
        steps (list of `dict`): for each optimizer step, which is one batch: "step" and "generate" in seconds, and
            numbers of "engine_steps", "syncs" of weights and "rewarded" rollouts.
        log (list of `dict`): the trainer's own, one entry a step.
    """

    steps: list[dict[str, float]]
    log: list[dict[str, float]]

    def values(self, name: str) -> list[float]:
        """One value a batch, without the first batch, in which much is compiled; "signal" is the share of prompts that
        showed both outcomes."""
        if name != "signal":
            return [step[name] for step in self.steps[1:]]
        own = "adaroll/frac_prompts_mixed"
        return [entry[own] if own in entry else 1 - entry["frac_reward_zero_std"] for entry in self.log[1:]]


def run_side_by_side(
    model: str,
    folder: Path,
    batches: int,
    capacity: int | None,
    random_model: bool,
    options: Mapping[str, Any],
    arms: Mapping[str, dict[str, Any] | None] = ARMS,
) -> dict[str, Arm]:
    """Train all arms in turns, on one model and one engine.

    Args:
        model (`str`): folder or id.
        folder (`Path`): to write to.
        batches (`int`): of each arm, at least 2; the first is kept apart.
        capacity (`int`, *optional*): sequences that the engine runs at once; None for TRL's choice, the whole batch.
        random_model (`bool`): whether stop tokens make the lengths.
        options (mapping): fields of `GRPOConfig`, those that depend on the machine.
        arms (mapping, *optional*): by name fields of `AdaRollGRPOConfig`, or None for GRPOTrainer.

    Returns:
        `dict`: the arms by name, in the order in which they took turns.

    Raises:
        RuntimeError: naming the arm that failed.
    """
    options = dict(options)
    network = AutoModelForCausalLM.from_pretrained(model, **options.pop("model_init_kwargs"))
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    lengths = {"generation_kwargs": {"stop_token_ids": _stop_tokens(tokenizer)}} if random_model else {}
    config = {**_CONFIG, **options, **lengths, "max_steps": batches, "output_dir": str(folder)}
    counts: Counter[str] = Counter()
    gauges = {name: partial(counts.__getitem__, name) for name in ("engine_steps", "syncs", "rewarded")}
    watches = stopwatches(list(arms), gauges)
    trainers: dict[str, Any] = {}
    with _one_engine(capacity, counts):
        for arm, own in arms.items():
            trainer_class, config_class = (
                (GRPOTrainer, GRPOConfig) if own is None else (AdaRollGRPOTrainer, AdaRollGRPOConfig)
            )
            trainers[arm] = trainer_class(
                model=network,
                processing_class=tokenizer,
                reward_funcs=_coin(counts),
                args=config_class(**config, **(own or {})),
                train_dataset=_prompts(),
                callbacks=[watches[arm]],
            )
            _watch(trainers[arm], watches[arm], counts)
    train_in_turns(trainers, watches)
    return {
        arm: Arm(watches[arm].steps, [entry for entry in trainer.state.log_history if "step_time" in entry])
        for arm, trainer in trainers.items()
    }


def costs(context: Context) -> str:
    """The check: each arm spends its budget, and at the options' "capacity" the stream costs about what GRPO does."""
    cuda, capacity = context.device == "cuda", context.options["capacity"]
    options = {
        "use_cpu": not cuda,
        "model_init_kwargs": {"dtype": "bfloat16" if cuda else "float32"},
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": 512 if cuda else 256,
    }
    arms = run_side_by_side(context.model, Path(context.scratch) / "output", BATCHES, capacity, context.tiny, options)
    notes = []
    for name, arm in arms.items():
        _check(name, arm)
        steps, seconds = mean(arm.values("engine_steps")), mean(arm.values("step"))
        notes.append(f"{name} {steps:.0f} engine steps, {seconds:.2f} s")
    note = "a batch: " + "; ".join(notes)
    cost = mean(arms["stream"].values("engine_steps")) / mean(arms["GRPO"].values("engine_steps"))
    if capacity is not None:
        require(
            cost < LARGEST_COST, f"the stream takes {cost:.2f} times GRPO's engine steps, not {LARGEST_COST}; {note}"
        )
    return f"{note}; engine steps of the stream / GRPO's {cost:.2f}"


def _check(name: str, arm: Arm) -> None:
    require(len(arm.log) == BATCHES, f"{name}: {len(arm.log)} steps were logged, not {BATCHES}")
    for step in arm.steps:
        rewarded, syncs = int(step["rewarded"]), int(step["syncs"])
        require(rewarded == BUDGET, f"{name}: {rewarded} rollouts were rewarded in a batch, not {BUDGET}")
        require(syncs == 1, f"{name}: {syncs} weight syncs in a batch")
    check_logps(arm.log, name)


def _stop_tokens(tokenizer: Any) -> list[int]:
    """So many that, with the end token, one in `MEAN_LENGTH` tokens ends a completion."""
    ids = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    return ids[-(round(len(tokenizer) / MEAN_LENGTH) - 1) :]


def _prompts() -> Dataset:
    rows = get_task("arithmetic").load("train", "256:0")
    rates = random.Random(0)
    return rows.add_column("rate", [rates.random() for _ in range(len(rows))])


def _coin(counts: Counter[str]) -> Callable[..., Any]:
    toss = random.Random(0)

    def coin(completions: list[Any], rate: list[float], **columns: Any) -> list[float]:
        counts["rewarded"] += len(completions)
        return [float(toss.random() < chance) for chance in rate]

    return coin


def _counted(function: Callable[..., Any], counts: Counter[str], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return function(*args, **kwargs)

    return call


def _watch(trainer: Any, watch: Stopwatch, counts: Counter[str]) -> None:
    trainer.remove_callback(PrinterCallback)
    trainer._generate = watch.around("generate", trainer._generate)
    generation = trainer.vllm_generation
    generation.sync_weights = _counted(generation.sync_weights, counts, "syncs")


@contextmanager
def _one_engine(capacity: int | None, counts: Counter[str]) -> Iterator[None]:
    """TRL's engine is made once, for all trainers, with this capacity, and its steps are counted."""
    make = generation_module.LLM
    engines: list[Any] = []

    def engine(**options: Any) -> Any:
        if not engines:
            engines.append(make(**{**options, "max_num_seqs": capacity or options["max_num_seqs"]}))
            inner = engines[0].llm_engine
            inner.step = _counted(inner.step, counts, "engine_steps")
        return engines[0]

    generation_module.LLM = engine
    try:
        yield
    finally:
        generation_module.LLM = make
