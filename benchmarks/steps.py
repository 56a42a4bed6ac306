"""Step time of GRPO and of AdaRoll-GRPO with 1, 2, 4 and 8 rounds, split into its phases. One command:

    python scripts/get_smollm2.py outputs/smollm2   # once, for the real model
    python benchmarks/steps.py                      # both models; --model tiny or --model smollm2 for one

All arms train in one process and take turns, one optimizer step each, so that other work on the machine falls on all
alike; ratios are taken between the steps of one turn. They share one model, so that all meet the same policy, and it
fits into memory once. The first step, which compiles, is kept apart. Phases are timed around TRL's own methods:

    generate   `_generate`: tokenizing, generating, decoding, over all rounds
    reward     `_calculate_rewards`: the reward functions, and gathering what they return
    allocate   deciding the rounds' counts, and estimating utilities for the log
    other      the rest of preparing the batch: log-probabilities that TRL wants, merging rounds, advantages, logs
    train      the rest of the step: forward, backward, optimizer

Writes benchmarks/results/steps_<model>.json and prints a table for each model.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.demo.problems import builtin_problems, exact_match
from adaroll_trl.demo.tiny import build_model, build_tokenizer, warm_up
from adaroll_trl.gpu_check.turns import Stopwatch, stopwatches, train_in_turns
from adaroll_trl.tasks import get_task

ROOT = Path(__file__).parent.parent
ARMS: dict[str, int | None] = {"GRPO": None, "1 round": 1, "2 rounds": 2, "4 rounds": 4, "8 rounds": 8}
PHASES = ("generate", "reward", "allocate", "other", "train")


def phases(step: dict[str, float]) -> dict[str, float]:
    """A step's seconds as they add up, from those around TRL's methods, some of which call each other."""
    parts = {phase: step.get(phase, 0.0) for phase in ("generate", "reward", "allocate")}
    other = step["prepare"] - sum(parts.values())
    return {"step": step["step"], **parts, "other": other, "train": step["step"] - step["prepare"]}


def tiny_case() -> dict[str, Any]:
    """The demo's Llama of 83 thousand parameters, after its supervised warm-up."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=0)
    warm_up(model, tokenizer, steps=300, seed=0)

    def accuracy(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        return [exact_match(completion, gold) for completion, gold in zip(completions, answer, strict=True)]

    return {
        "model": model,
        "tokenizer": tokenizer,
        "dataset": Dataset.from_list(builtin_problems(512, 0, seed=0).rows()),
        "reward": accuracy,
        "config": {
            "num_generations": 8,
            "per_device_train_batch_size": 128,
            "steps_per_generation": 1,
            "max_completion_length": 16,
        },
        "steps": 21,
        "what": "83 thousand parameters, 16 prompts x 8 rollouts, up to 16 tokens",
    }


def smollm2_case(path: Path) -> dict[str, Any]:
    task = get_task("arithmetic")
    return {
        "model": AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        "tokenizer": AutoTokenizer.from_pretrained(path, padding_side="left"),
        "dataset": task.load("train", "512:0"),
        "reward": task.reward,
        "config": {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "steps_per_generation": 4,
            "max_completion_length": 24,
        },
        "steps": 6,
        "what": "SmolLM2-135M-Instruct, 8 prompts x 4 rollouts, up to 24 tokens",
    }


def build_trainer(case: dict[str, Any], rounds: int | None, folder: str, stopwatch: Stopwatch) -> Any:
    arguments = {
        **case["config"],
        "gradient_accumulation_steps": case["config"]["steps_per_generation"],  # a generation batch is one step
        "max_steps": case["steps"],
        "learning_rate": 1e-6,
        "optim": "sgd",  # five optimizers with a state of their own would not fit
        "output_dir": folder,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if rounds is None:
        trainer_class, args = GRPOTrainer, GRPOConfig(**arguments)
    else:
        options = {"utility": "mixed", "rounds": rounds, "min_rollouts": 1}
        trainer_class, args = AdaRollGRPOTrainer, AdaRollGRPOConfig(**arguments, **options)
    trainer = trainer_class(
        model=case["model"],
        processing_class=case["tokenizer"],
        reward_funcs=case["reward"],
        args=args,
        train_dataset=case["dataset"],
        callbacks=[stopwatch],
    )
    trainer.remove_callback(PrinterCallback)
    trainer._generate = stopwatch.around("generate", trainer._generate)
    trainer._calculate_rewards = stopwatch.around("reward", trainer._calculate_rewards)
    trainer._prepare_inputs = stopwatch.around("prepare", trainer._prepare_inputs)
    if rounds is not None:
        trainer._planner.decide = stopwatch.around("allocate", trainer._planner.decide)
    return trainer


def run(case: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Every arm's steps, in order."""
    watches = stopwatches(list(ARMS))
    with tempfile.TemporaryDirectory() as folder:
        trainers = {arm: build_trainer(case, rounds, folder, watches[arm]) for arm, rounds in ARMS.items()}
        train_in_turns(trainers, watches)
    steps = {arm: [phases(step) for step in watch.steps] for arm, watch in watches.items()}
    for arm, trainer in trainers.items():
        played = [entry["adaroll/rounds"] for entry in trainer.state.log_history if "adaroll/rounds" in entry]
        for step, rounds in zip(steps[arm], played, strict=False):
            step["rounds"] = rounds  # fewer than asked for where the budget was spent before the last
    return steps


def summarise(steps: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """By arm: medians and quartiles after the first step, and ratios to the GRPO step of the same turn."""
    result = {}
    for arm, all_steps in steps.items():
        later, plain = all_steps[1:], steps["GRPO"][1:]
        result[arm] = {
            "first_step": all_steps[0]["step"],
            "rounds": statistics.mean(s.get("rounds", 1) for s in later),
            "median": {name: statistics.median(s[name] for s in later) for name in ("step", *PHASES)},
            "step_quartiles": statistics.quantiles([s["step"] for s in later], n=4)[::2],
            "ratio": spread([s["step"] / p["step"] for s, p in zip(later, plain, strict=True)]),
            "generate_ratio": spread([s["generate"] / p["generate"] for s, p in zip(later, plain, strict=True)]),
            "allocate_share": spread([s["allocate"] / s["step"] for s in later]),
        }
    return result


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high, "max": max(values)}


def print_table(what: str, arms: dict[str, dict[str, Any]]) -> None:
    print(
        f"\n{what}: medians of a step in ms; ratio to GRPO's step of the same turn (quartiles); the first step in s\n"
    )
    columns = ["rounds used", "step", *PHASES, "allocate, of the step", "step / GRPO's", "first step"]
    print("| | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for arm, found in arms.items():
        medians = " | ".join(f"{1e3 * found['median'][name]:.1f}" for name in ("step", *PHASES))
        ratio, share = found["ratio"], found["allocate_share"]
        print(
            f"| {arm} | {found['rounds']:.1f} | {medians} | {share['median']:.2%} | {ratio['median']:.2f} "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}) | {found['first_step']:.2f} |"
        )


def describe_machine() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "load_before": os.getloadavg(),
        "torch": torch.__version__,
        "trl": trl.__version__,
        "transformers": transformers.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "smollm2", "both"), default="both")
    parser.add_argument("--smollm2", type=Path, default=ROOT / "outputs" / "smollm2", help="folder of the real model")
    parser.add_argument("--steps", type=int, help="steps of each arm, the first of which is kept apart")
    options = parser.parse_args()
    if options.model != "tiny" and not (options.smollm2 / "config.json").exists():
        parser.error(f"--smollm2 {options.smollm2} has no model: python scripts/get_smollm2.py {options.smollm2}")
    transformers.logging.set_verbosity_error()
    for name in ("tiny", "smollm2") if options.model == "both" else (options.model,):
        machine = describe_machine()
        started = time.perf_counter()
        case = tiny_case() if name == "tiny" else smollm2_case(options.smollm2)
        case["steps"] = options.steps or case["steps"]
        steps = run(case)
        arms = summarise(steps)
        seconds = time.perf_counter() - started
        report = {"machine": machine, "what": case["what"], "seconds": seconds, "arms": arms, "steps": steps}
        path = ROOT / "benchmarks" / "results" / f"steps_{name}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        print_table(case["what"], arms)
        load = ", ".join(f"{value:.1f}" for value in machine["load_before"])
        print(f"\n{case['steps']} steps of each arm, {seconds:.0f} s, load {load} at the start.")


if __name__ == "__main__":
    main()
