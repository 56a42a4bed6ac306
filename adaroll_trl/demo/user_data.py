"""A model and a data set of the user's own, from a local path or a Hub id, with an error that says what is wrong."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .grading import as_number, gold_answer, pick_grader, solution_steps
from .problems import DemoError, Problem, ProblemSet, Prompt

PROMPT_COLUMNS = ("question", "problem", "prompt", "query", "instruction", "input")
ANSWER_COLUMNS = ("answer", "solution", "target", "output", "response")
NUMBER_INSTRUCTION = "\nSolve it step by step, then give the final number after ####."


def _read_jsonl(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _read_json(path: Path) -> list[Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):  # {"data": [...]}, as some sets are published
        content = next((value for value in content.values() if isinstance(value, list)), None)
    if not isinstance(content, list):
        raise ValueError("it holds no list of records")
    return content


def _read_csv(path: Path) -> list[Any]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _read_parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())


# Read here rather than with datasets.load_dataset, which would copy a local file into its cache first.
_READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def read_rows(spec: str, split: str = "train") -> list[dict[str, Any]]:
    """The records of a data set: a local .jsonl, .json, .csv or .parquet file, or a Hub id like `openai/gsm8k:main`.

    Raises:
        DemoError: if there is no such file or set, or it does not hold records.
    """
    path = Path(spec).expanduser()
    is_local = path.suffix in _READERS or path.exists() or spec.startswith((".", "/", "~"))
    rows = _read_local(path, spec) if is_local else _read_hub(spec, split)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DemoError(f"--dataset {spec} holds no records with named columns.")
    return rows


def _read_local(path: Path, spec: str) -> list[Any]:
    if not path.is_file():
        raise DemoError(f"--dataset {spec}: there is no such file.")
    if path.suffix not in _READERS:
        raise DemoError(f"--dataset {spec}: a local file must end in one of {', '.join(_READERS)}.")
    try:
        return _READERS[path.suffix](path)
    except (ValueError, OSError) as error:
        raise DemoError(f"--dataset {spec} cannot be read as {path.suffix}: {error}") from error


def _read_hub(spec: str, split: str) -> list[Any]:
    from datasets import load_dataset

    name, _, config = spec.partition(":")
    try:
        return list(load_dataset(name, config or None, split=split))
    except Exception as error:  # the Hub client raises a dozen types; each means that the set is not to be had
        raise DemoError(
            f"--dataset {spec} is neither a local file nor a data set that the Hub client can load (split {split!r}): "
            f"{_first_line(error)}"
        ) from error


def pick_column(rows: Sequence[dict[str, Any]], given: str | None, usual: Iterable[str], option: str) -> str:
    """The column that the user named, or the first of the usual names that exists."""
    columns = list(rows[0])
    if given is not None and given not in columns:
        raise DemoError(f"{option} {given}: the data set has no such column; it has {', '.join(columns)}.")
    found = given or next((name for name in usual if name in columns), None)
    if found is None:
        raise DemoError(f"None of the data set's columns ({', '.join(columns)}) has a usual name: say {option}.")
    return found


def user_problems(
    rows: Sequence[dict[str, Any]],
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
    prompt_column = pick_column(rows, prompt_column, PROMPT_COLUMNS, "--prompt-column")
    answer_column = pick_column(rows, answer_column, ANSWER_COLUMNS, "--answer-column")
    if level_column is not None:
        pick_column(rows, level_column, (), "--level-column")
    rows = [row for row in rows if row.get(prompt_column) and row.get(answer_column) not in (None, "")]
    if len(rows) < num_held_out + 2:
        raise DemoError(
            f"--dataset {name} has {len(rows)} usable records, too few with --eval-prompts {num_held_out}."
        )
    chosen = np.random.default_rng(seed).permutation(len(rows))[: num_held_out + num_train]
    answers = [gold_answer(str(rows[number][answer_column])) for number in chosen]
    if instruction is None:
        instruction = NUMBER_INSTRUCTION if all(as_number(answer) is not None for answer in answers) else ""
    problems = [
        Problem(
            _prompt(str(rows[number][prompt_column]), instruction, chat),
            answer,
            _level(rows[number], answer_column, level_column),
        )
        for number, answer in zip(chosen, answers, strict=True)
    ]
    level_name = level_column or "calculator steps"
    return ProblemSet(name, problems[num_held_out:], problems[:num_held_out], pick_grader(answers), level_name)


def _prompt(question: str, instruction: str, chat: bool) -> Prompt:
    if chat:
        return [{"role": "user", "content": question + instruction}]
    return f"Question: {question}{instruction}\nAnswer:"


def _level(row: dict[str, Any], answer_column: str, level_column: str | None) -> int | None:
    if level_column is None:
        return solution_steps(str(row[answer_column]))
    digits = "".join(character for character in str(row[level_column]) if character.isdigit())  # "Level 3"
    return int(digits) if digits else None


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
            f"can load: {_first_line(error)}"
        ) from error


def load_tokenizer(model: str) -> Any:
    """The model's tokenizer, with a padding token."""
    from transformers import AutoTokenizer

    _check_folder(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", truncation_side="left")
    except (OSError, ValueError) as error:
        raise DemoError(
            f"--model {model} comes without a tokenizer that can be loaded: {_first_line(error)}"
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _check_folder(model: str) -> None:
    """A path that does not exist would else be taken for a strange Hub id."""
    path = Path(model).expanduser()
    if (model.startswith((".", "/", "~")) or path.is_file()) and not path.is_dir():
        raise DemoError(f"--model {model}: there is no such folder.")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
