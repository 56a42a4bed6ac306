"""A model and a data set of the user's own, from a local path or a Hub id, with an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks import ColumnTask, sources
from ..tasks.sources import Row, first_line
from ..tasks.verifiers import NumberVerifier
from .problems import DemoError, Grader, Problem, ProblemSet, Prompt

NUMBER_INSTRUCTION = "\nSolve it step by step, then give the final number after ####."


def read_rows(source: str, split: str = "train") -> list[Row]:
    """The records of a data set, as `tasks.sources.read_rows` finds them.

    Raises:
        DemoError: if there is no such file or set, or it does not hold records.
    """
    try:
        return sources.read_rows(source, split)
    except ValueError as error:
        raise DemoError(f"--dataset: {error}") from error


def user_problems(
    rows: Sequence[Row],
    *,
    name: str,
    prompt_column: str | None,
    answer_column: str | None,
    level_column: str | None,
    instruction: str | None,
    chat: bool,
    num_train: int,
    num_held_out: int,
    seed: int,
) -> ProblemSet:
    """Shuffle the records with `seed`, hold the first `num_held_out` out, and train on the next `num_train`.

    Raises:
        DemoError: if a column is missing or there are too few records.
    """
    task = ColumnTask(prompt_column, answer_column, level_column=level_column)
    try:
        records = task.records_of(rows)
        _ = task.reward  # refuses data without answers
    except (ValueError, ImportError) as error:
        raise DemoError(f"--dataset {name}: {error}") from error
    if len(records) < num_held_out + 2:
        raise DemoError(
            f"--dataset {name} has {len(records)} usable records, too few with --eval-prompts {num_held_out}."
        )
    chosen = np.random.default_rng(seed).permutation(len(records))[: num_held_out + num_train]
    if instruction is None:
        instruction = NUMBER_INSTRUCTION if isinstance(task.verifier, NumberVerifier) else ""
    problems = [
        Problem(_prompt(str(record["question"]), instruction, chat), record["answer"], record.get("level"))
        for record in (records[number] for number in chosen)
    ]
    level_name = level_column or "calculator steps"
    return ProblemSet(name, problems[num_held_out:], problems[:num_held_out], _grader(task), level_name)


def _grader(task: ColumnTask) -> Grader:
    return lambda completion, answer: float(task.verify(completion, answer))


def _prompt(question: str, instruction: str, chat: bool) -> Prompt:
    if chat:
        return [{"role": "user", "content": question + instruction}]
    return f"Question: {question}{instruction}\nAnswer:"


def load_policy(model: str, dtype: str) -> Any:
    """A causal language model from a local folder or a Hub id."""
    import torch
    from transformers import AutoModelForCausalLM

    _check_folder(model)
    try:
        return AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise DemoError(
            f"--model {model} is neither a local folder with a causal language model nor a model that the Hub client "
            f"can load: {first_line(error)}"
        ) from error


def load_tokenizer(model: str) -> Any:
    """The model's tokenizer, with a padding token."""
    from transformers import AutoTokenizer

    _check_folder(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", truncation_side="left")
    except (OSError, ValueError) as error:
        raise DemoError(
            f"--model {model} comes without a tokenizer that can be loaded: {first_line(error)}"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_folder(model: str) -> None:
    """A path that does not exist would else be taken for a strange Hub id."""
    path = Path(model).expanduser()
    if (model.startswith((".", "/", "~")) or path.is_file()) and not path.is_dir():
        raise DemoError(f"--model {model}: there is no such folder.")
