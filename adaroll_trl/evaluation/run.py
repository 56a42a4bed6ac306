"""From settings to results: sample what is not there yet, grade it, estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_json
from ..tasks import Task, get_task
from .backends import Backend, make_backend
from .generation import Completion
from .settings import EvalSettings
from .statistics import Estimate, mean_interval, pass_at_k
from .store import RESULTS, CompletionStore, read_results

Progress = Callable[[str, int, int], None]  # task, completions there, completions in all
INTERVAL = "Wilson interval over prompts, at the effective number of prompts"


def evaluate(
    settings: EvalSettings,
    make: Callable[[EvalSettings], Backend] = make_backend,
    progress: Progress = lambda task, done, total: None,
) -> dict[str, dict[str, Any]]:
    """Results by task: those of `results.json` in each task's folder.

    A task whose results are there is not run again, one that was interrupted goes on behind the last batch on the
    disk, and ends with the completions that it would have had without the interruption. The model is loaded once, and
    only if something is left to sample.

    Args:
        settings (`EvalSettings`): what to run.
        make: makes the backend.
        progress: told after each batch.

    Raises:
        ValueError: if model, data set or backend cannot be had, or the output folder holds other settings' results.
    """
    backend: Backend | None = None
    results = {}
    for name in settings.task:
        store = CompletionStore(Path(settings.output_dir) / name, settings.of_task(name), settings.overwrite)
        if not store.finished:
            task = get_task(name)
            rows = _rows(task, settings)
            backend = backend or make(settings)
            seconds = _sample(task, rows, backend, settings, store, progress)
            store.finish(_summary(task, rows, store.rows, settings, seconds))
        # Other values of k, or another level, need no new completions.
        results[name] = read_results(store.folder)
        results[name]["metrics"] = metrics(results[name]["prompts"], settings.k, settings.level)
        write_json(store.folder / RESULTS, results[name], indent=1)
    return results


def metrics(prompts: Sequence[Mapping[str, Any]], ks: Sequence[int], level: float) -> dict[str, dict[str, Any]]:
    """`accuracy` (which is pass@1) and each `pass@k`, with intervals, from the counts of each prompt."""
    samples = np.array([prompt["num_samples"] for prompt in prompts])
    correct = np.array([prompt["num_correct"] for prompt in prompts])
    estimates = {"accuracy": mean_interval(correct / samples, int(samples.max()), level)}
    for k in ks:
        if k > 1:
            estimates[f"pass@{k}"] = mean_interval(pass_at_k(samples, correct, k), int(samples.max()), level)
    return {name: _as_dict(estimate, level) for name, estimate in estimates.items()}


def _as_dict(estimate: Estimate, level: float) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "level": level, "interval": INTERVAL}


def _rows(task: Task, settings: EvalSettings) -> list[dict[str, Any]]:
    dataset = task.load(settings.split, settings.dataset_name)
    size = len(dataset) if settings.limit is None else min(settings.limit, len(dataset))
    if size == 0:
        raise ValueError(f"task={task.name!r}: split={settings.split!r} holds no prompts.")
    return [dict(row) for row in dataset.select(range(size))]


def _sample(
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    backend: Backend,
    settings: EvalSettings,
    store: CompletionStore,
    progress: Progress,
) -> float:
    """Fill the store up, batch by batch, and return the seconds it took."""
    started = time.perf_counter()
    assert settings.batch_size is not None
    order = [(prompt, sample) for prompt in range(len(rows)) for sample in range(settings.num_samples)]
    progress(task.name, len(store.rows), len(order))
    for batch, start in enumerate(range(0, len(order), settings.batch_size)):
        chunk = order[start : start + settings.batch_size]
        if len(store.rows) >= start + len(chunk):
            continue
        # A seed of its own for each batch, so that going on after an interruption changes nothing. Part of a batch may
        # be on the disk; all of it is sampled again.
        seed = int(np.random.SeedSequence([settings.seed, batch]).generate_state(1)[0]) // 2
        completions = backend.sample([rows[prompt]["prompt"] for prompt, _ in chunk], seed)
        graded = [
            _graded(task, rows[prompt], prompt, sample, completion)
            for (prompt, sample), completion in zip(chunk, completions, strict=True)
        ]
        store.add(graded[len(store.rows) - start :])
        progress(task.name, len(store.rows), len(order))
    return time.perf_counter() - started


def _graded(task: Task, row: Mapping[str, Any], prompt: int, sample: int, completion: Completion) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "prompt_id": str(row["prompt_id"]),
        "sample": sample,
        "completion": completion.text,
        "num_tokens": completion.num_tokens,
        "finished": completion.finished,
        "extracted": task.extract(completion.text),
        "answer": row["answer"],
        "correct": task.verify(completion.text, row["answer"]),
    }


def _summary(
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    graded: Sequence[Mapping[str, Any]],
    settings: EvalSettings,
    seconds: float,
) -> dict[str, Any]:
    correct = np.zeros(len(rows), dtype=np.int64)
    for one in graded:
        correct[one["prompt"]] += bool(one["correct"])
    prompts = [
        {"prompt_id": str(row["prompt_id"]), "num_samples": settings.num_samples, "num_correct": int(count)}
        | ({"level": row["level"]} if row.get("level") is not None else {})
        for row, count in zip(rows, correct, strict=True)
    ]
    return {
        "metrics": metrics(prompts, settings.k, settings.level),
        "truncated": float(np.mean([not one["finished"] for one in graded])),
        "no_answer": float(np.mean([one["extracted"] is None for one in graded])),
        # Nothing can be right there; they count as wrong, as in published accuracies over whole test sets.
        "unreadable_answers": sum(not task.readable(row["answer"]) for row in rows),
        "tokens_per_completion": float(np.mean([one["num_tokens"] for one in graded])),
        "seconds": seconds,
        "prompts": prompts,
    }
