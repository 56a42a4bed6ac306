"""Sampling a policy outside training: held-out accuracy, and the success rate of single prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .problems import Grader, Problem


@contextmanager
def _sampling_mode(model: Any, seed: int) -> Iterator[None]:
    """Evaluation mode and a generator of its own, so that looking at a policy does not change its training."""
    was_training, had_cache = model.training, model.config.use_cache
    model.eval()
    model.config.use_cache = True
    try:
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(seed)
            yield
    finally:
        model.train(was_training)
        model.config.use_cache = had_cache


def _as_text(tokenizer: Any, problem: Problem) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    return str(tokenizer.apply_chat_template(problem.prompt, tokenize=False, add_generation_prompt=True))


def sample_rewards(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    grade: Grader,
    *,
    samples: int,
    max_tokens: int,
    batch_size: int,
    seed: int,
) -> NDArray[np.float64]:
    """Rewards of `samples` completions at temperature 1 for each problem, float64 of shape (problems, samples)."""
    order = [(row, problem) for row, problem in enumerate(problems) for _ in range(samples)]
    rewards: list[list[float]] = [[] for _ in problems]
    with _sampling_mode(model, seed):
        for start in range(0, len(order), batch_size):
            chunk = order[start : start + batch_size]
            texts = [_as_text(tokenizer, problem) for _, problem in chunk]
            encoded = tokenizer(
                texts, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False
            ).to(model.device)
            output = model.generate(
                **encoded,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
            completions = tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
            for (row, problem), completion in zip(chunk, completions, strict=True):
                rewards[row].append(grade(completion, problem.answer))
    return np.array(rewards)


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean and its standard error; the error is nan for fewer than two values."""
    if values.size == 0:
        return float("nan"), float("nan")
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else float("nan")
    return float(values.mean()), float(error)
