"""Measure kappa at the start of every fresh regime: the noise of one rollout against the spread between prompts.

    python benchmarks/learning/kappa.py

prints a line a start and writes docs/results/learning/kappa.json, where starts that were measured before stay. Only
starts that the stored runs began from are measured. The estimate is `adaroll_trl.noise.estimate_kappa` on exact
gradients, one backward pass a rollout and no projection. The second figure weighs each parameter by one over
the root mean square of the rollouts' gradients, which stands for Adam's scaling.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cell import MAX_TOKENS
from regimes import REGIMES
from run import RESULTS, ROOT, make_starts
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from adaroll_trl.demo.problems import Problem, exact_match
from adaroll_trl.evaluation.generation import Completion, sample_completions
from adaroll_trl.files import write_json
from adaroll_trl.noise import KappaEstimate, estimate_kappa, rollout_gradients

FRESH = ("H", "U", "HH")  # those with repeated prompts are warmed up alike


def gradient(model: Any, tokenizer: Any, problem: Problem, completion: Completion) -> torch.Tensor:
    """Of the log-probability of one completion, (parameters,)."""
    prompt = tokenizer(problem.prompt)["input_ids"]
    written = tokenizer(completion.text)["input_ids"] + ([tokenizer.eos_token_id] if completion.finished else [])
    ids = torch.tensor([prompt + written])
    mask = torch.ones((1, len(written)), dtype=torch.long)
    return rollout_gradients(model, ids, torch.ones_like(ids), mask, dimension=None)[0]


def measure(name: str, seed: int, work: Path, prompts: int, rollouts: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    regime, start = REGIMES[name], REGIMES[name].start(seed, work)
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
    problems = [p for p in regime.problems(np.random.default_rng((seed, 11)), prompts, set()) for _ in range(rollouts)]
    texts = [problem.prompt for problem in problems]
    completions = sample_completions(model, tokenizer, texts, max_tokens=MAX_TOKENS, batch_size=960, seed=seed)
    pairs = list(zip(problems, completions, strict=True))
    right = np.array([exact_match(completion.text, problem.answer) for problem, completion in pairs])
    rates = right.reshape(prompts, rollouts).mean(axis=1)
    groups = np.repeat(np.arange(prompts), rollouts)
    used = np.isin(groups, np.flatnonzero((rates > 0) & (rates < 1)))
    rows = [gradient(model, tokenizer, *pair) for pair, kept in zip(pairs, used, strict=True) if kept]
    gradients = torch.stack(rows).numpy()
    scaled = gradients / (np.sqrt((gradients**2).mean(axis=0)) + 1e-8)
    return {
        "regime": name,
        "seed": seed,
        "prompts": prompts,
        "rollouts": rollouts,
        "pass_rate": float(rates.mean()),
        "below_0.1": float((rates < 0.1).mean()),
        "above_0.9": float((rates > 0.9).mean()),
        "kappa": _numbers(estimate_kappa(gradients, groups[used], right[used])),
        "kappa_adam": _numbers(estimate_kappa(scaled, groups[used], right[used])),
    }


def _numbers(estimate: KappaEstimate) -> list[float | None]:
    """The estimate and both ends of its interval; None for infinity, which JSON does not have."""
    return [round(value, 3) if math.isfinite(value) else None for value in (estimate.kappa, *estimate.interval)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--regimes", choices=FRESH, nargs="+", default=FRESH)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "learning")
    options = parser.parse_args(arguments)
    path, starts = options.results / "kappa.json", options.work / "starts"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = {(one["regime"], one["seed"]): one for one in stored}
    for name in options.regimes:
        for seed in options.seeds:
            make_starts(starts, options.results, [(name, seed)])
            found[name, seed] = measure(name, seed, starts, options.prompts, options.rollouts)
            print(json.dumps(found[name, seed]), flush=True)
            write_json(
                path, [found[key] for key in sorted(found, key=lambda key: (FRESH.index(key[0]), key[1]))], indent=1
            )


if __name__ == "__main__":
    main()
