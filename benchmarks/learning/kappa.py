"""Measure kappa at the start of every regime: the noise of one rollout against the spread between prompts.

    python benchmarks/learning/kappa.py

prints a line a start and writes docs/results/learning/kappa.json. With h = (r - mean) n / (n - 1) times the gradient
of a rollout's log-probability, the mean of h over a prompt's rollouts is unbiased for the gradient of its pass rate p.
Write that gradient as p (1 - p) u. Then

    c      trace of the variance of h within prompts, over p (1 - p)
    delta  trace of the variance of u between prompts, from products of two halves of a prompt's rollouts less products
           of different prompts
    kappa  c / delta

so that n rollouts on a prompt are worth m / (m + kappa) with m = (n - 1) p (1 - p) (utility `progress`). All gradients
are exact, one backward pass a rollout. The second column weighs each parameter by one over the root mean square of the
prompts' gradients, which stands for Adam's scaling. Errors: jackknife over prompts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from regimes import REGIMES, Regime
from run import RESULTS, ROOT
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from adaroll_trl.demo.problems import exact_match
from adaroll_trl.evaluation.generation import sample_completions

MAX_TOKENS = 16


def gradients(
    model: Any, tokenizer: Any, regime: Regime, seed: int, prompts: int, rollouts: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Gradient of each rollout's log-probability, (prompts, rollouts, parameters), and the rewards."""
    problems = regime.problems(np.random.default_rng((seed, 11)), prompts, set())
    repeated = [problem for problem in problems for _ in range(rollouts)]
    texts = sample_completions(
        model, tokenizer, [p.prompt for p in repeated], max_tokens=MAX_TOKENS, batch_size=960, seed=seed
    )
    rewards = np.array([exact_match(text.text, p.answer) for text, p in zip(texts, repeated, strict=True)])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    rows = []
    for problem, text in zip(repeated, texts, strict=True):
        prompt = tokenizer(problem.prompt)["input_ids"]
        ids = prompt + tokenizer(text.text)["input_ids"] + ([tokenizer.eos_token_id] if text.finished else [])
        logits = model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        log_probability = torch.log_softmax(logits, dim=-1)[range(len(ids) - len(prompt)), ids[len(prompt) :]].sum()
        rows.append(torch.cat([part.reshape(-1) for part in torch.autograd.grad(log_probability, weights)]))
    return torch.stack(rows).reshape(prompts, rollouts, -1), rewards.reshape(prompts, rollouts)


def kappa(per_rollout: torch.Tensor, rewards: np.ndarray, scale: torch.Tensor | None = None) -> tuple[float, float]:
    """kappa and its jackknife error over prompts."""
    n = rewards.shape[1]
    centred = torch.tensor(rewards - rewards.mean(axis=1, keepdims=True), dtype=per_rollout.dtype)
    h = centred[..., None] * per_rollout * (n / (n - 1))
    if scale is not None:
        h = h * scale
    half = n // 2
    first, second = (
        _unbiased(per_rollout[:, part], rewards[:, part], scale) for part in (slice(half), slice(half, n))
    )
    within = (h - h.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2)).numpy() / (n - 1)
    spread = [np.array(r.var(axis=1, ddof=1)) for r in (rewards, rewards[:, :half], rewards[:, half:])]  # p (1 - p)
    gram = (first @ second.T).numpy()
    expected = np.outer(spread[1], spread[2])

    def estimate(kept: np.ndarray) -> float:
        inner, weight = gram[np.ix_(kept, kept)], expected[np.ix_(kept, kept)]
        same, same_weight = np.trace(inner), np.trace(weight)
        delta = same / same_weight - (inner.sum() - same) / (weight.sum() - same_weight)
        return float(within[kept].sum() / spread[0][kept].sum() / delta)

    everything = np.arange(len(rewards))
    left_out = np.array([estimate(np.delete(everything, i)) for i in everything])
    error = np.sqrt((len(left_out) - 1) * left_out.var())
    return estimate(everything), float(error)


def _unbiased(per_rollout: torch.Tensor, rewards: np.ndarray, scale: torch.Tensor | None) -> torch.Tensor:
    """Unbiased estimate of each prompt's gradient from these rollouts, (prompts, parameters)."""
    n = rewards.shape[1]
    centred = torch.tensor(rewards - rewards.mean(axis=1, keepdims=True), dtype=per_rollout.dtype)
    mean = (centred[..., None] * per_rollout).sum(dim=1) / (n - 1)
    return mean if scale is None else mean * scale


def measure(name: str, seed: int, work: Path, prompts: int, rollouts: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    start = REGIMES[name].start(seed, work)
    model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
    per_rollout, rewards = gradients(model, tokenizer, REGIMES[name], seed, prompts, rollouts)
    scale = 1 / (_unbiased(per_rollout, rewards, None).square().mean(dim=0).sqrt() + 1e-8)
    return {
        "regime": name,
        "seed": seed,
        "prompts": prompts,
        "rollouts": rollouts,
        "pass_rate": float(rewards.mean()),
        "below_0.1": float((rewards.mean(axis=1) < 0.1).mean()),
        "above_0.9": float((rewards.mean(axis=1) > 0.9).mean()),
        "kappa": [round(value, 3) for value in kappa(per_rollout, rewards)],
        "kappa_adam": [round(value, 3) for value in kappa(per_rollout, rewards, scale)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "learning")
    options = parser.parse_args()
    (options.work / "starts").mkdir(parents=True, exist_ok=True)
    found = []
    for name in ("H", "U", "HH"):
        for seed in options.seeds:
            one = measure(name, seed, options.work / "starts", options.prompts, options.rollouts)
            print(json.dumps(one), flush=True)
            found.append(one)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "kappa.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
