"""Measures the pass-rate histograms that come with the simulator, on a CPU:

    python scripts/get_smollm2.py outputs/smollm2
    python scripts/measure_histograms.py smollm2-arithmetic demo smollm2-gsm8k

Writes adaroll_trl/simulation/histograms/<name>.json: how many prompts had k of `samples` completions right. Minutes;
`smollm2-gsm8k` is counted from docs/results/smollm2_gsm8k, which benchmarks/smollm2/gsm8k.py measured. What another
project published (`qwen2.5-1.5b-gsm8k`) was entered by hand, with its source.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from adaroll_trl.files import write_json

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "adaroll_trl" / "simulation" / "histograms"


def smollm2_arithmetic(model: Path) -> dict[str, Any]:
    """The 200 held-out problems of benchmarks/smollm2, before any training."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from adaroll_trl.evaluation.generation import sample_completions
    from adaroll_trl.tasks import get_task

    samples, problems = 16, 200
    task = get_task("arithmetic")
    data = task.load("test", None).select(range(problems))
    prompts = [prompt for prompt in data["prompt"] for _ in range(samples)]
    answers = [answer for answer in data["answer"] for _ in range(samples)]
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    options: dict[str, Any] = {"max_tokens": 5, "batch_size": 100, "seed": 0, "temperature": 1.0}
    completions = sample_completions(policy, tokenizer, prompts, **options)
    right = [task.verify(one.text, answer) for one, answer in zip(completions, answers, strict=True)]
    return {
        "description": "SmolLM2-135M-Instruct (4 bits) on generated arithmetic: 200 held-out problems, temperature 1",
        "samples": samples,
        "right": np.sum(np.reshape(right, (problems, samples)), axis=1),
    }


def demo(model: Path) -> dict[str, Any]:
    """The demo's model after its supervised warm-up, on problems as the demo trains on."""
    import torch

    from adaroll_trl.demo.evaluation import sample_rewards
    from adaroll_trl.demo.problems import builtin_problems
    from adaroll_trl.demo.settings import Settings
    from adaroll_trl.demo.tiny import build_model, build_tokenizer, warm_up

    torch.set_num_threads(1)
    samples, problems, settings = 32, 960, Settings(Path("outputs/demo"))
    tokenizer = build_tokenizer()
    policy = build_model(tokenizer, settings.seed)
    warm_up(policy, tokenizer, settings.warm_up_steps, settings.seed)
    built = builtin_problems(problems, settings.eval_prompts, settings.seed)
    options: dict[str, Any] = {"max_tokens": settings.max_completion_length, "batch_size": 512, "seed": 0}
    rewards = sample_rewards(policy, tokenizer, built.train, built.grade, samples=samples, **options)
    return {
        "description": "the tiny model of `adaroll demo` after its warm-up, on 960 of its training problems",
        "samples": samples,
        "right": (rewards > 0.5).sum(axis=1),
    }


def smollm2_gsm8k(model: Path) -> dict[str, Any]:
    """200 problems of the training split, before any training, as benchmarks/smollm2/gsm8k.py stored them."""
    stored = json.loads((ROOT / "docs" / "results" / "smollm2_gsm8k" / "pass_rates.json").read_text(encoding="utf-8"))
    return {
        "description": f"SmolLM2-135M-Instruct (4 bits) on GSM8K: {len(stored['right'])} problems of the training "
        f"split, temperature {stored['temperature']:g}",
        **{name: stored[name] for name in ("samples", "right", "machine", "date")},
    }


MEASURED = {"smollm2-arithmetic": smollm2_arithmetic, "demo": demo, "smollm2-gsm8k": smollm2_gsm8k}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(MEASURED))
    parser.add_argument("--model", type=Path, default=Path("outputs/smollm2"), help="of smollm2-arithmetic")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in options.names:
        found = MEASURED[name](options.model)
        prompts = np.bincount(found.pop("right"), minlength=found["samples"] + 1)
        here = {"machine": f"{os.cpu_count()} CPU cores, no GPU", "date": datetime.date.today().isoformat()}
        write_json(FOLDER / f"{name}.json", {**here, **found, "prompts": prompts.tolist()}, indent=1)
        mean = prompts @ np.arange(prompts.size) / prompts.sum() / found["samples"]
        print(f"{name}: {prompts.sum()} prompts, mean pass rate {mean:.3f}")


if __name__ == "__main__":
    main()
