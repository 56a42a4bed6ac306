"""Where the prompts of a run come from: a task, a data set of the user's own, or TRL's ways."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from trl import get_dataset

from ..tasks import ColumnTask, Task, get_task
from ..tasks.sources import first_line, is_local
from .arguments import TrainArguments

_COLUMN_REWARD = f"{ColumnTask.name}_accuracy"
_BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def find_task(script: TrainArguments) -> Task | None:
    """The task by name, or one made of a data set's columns; None where the data set is used as it is.

    A data set without `task` is used as it is if other rewards are given and no option asks for a mapping.

    Raises:
        ValueError: if there is no such task, or the options do not say what to train on.
    """
    if script.task is not None:
        return get_task(script.task)
    if script.datasets:
        return None
    if script.dataset_name is None:
        raise ValueError(
            "There is nothing to train on: give `task` (a task by name), `dataset_name` (a Hub id or a local path) or "
            "`datasets` (a mixture)."
        )
    others = script.reward_model_name_or_path or set(script.reward_funcs or ()) - {_COLUMN_REWARD}
    own = _COLUMN_REWARD in (script.reward_funcs or ())
    if script.columns or script.instruction is not None or own or not others:
        columns: dict[str, Any] = {**script.columns, "instruction": script.instruction}
        return ColumnTask(**columns)
    return None


def source_of(script: TrainArguments) -> str | None:
    """The Hub id, `id:config`, or local path that a task reads its records from; None is the task's own."""
    if script.dataset_name is None or script.dataset_config is None:
        return script.dataset_name
    return f"{script.dataset_name}:{script.dataset_config}"


def load_split(script: TrainArguments, task: Task | None, *, evaluation: bool = False) -> Any:
    """The train or the test split with a `prompt` column, cut to the first rows where a maximum is given.

    Raises:
        ValueError: if it cannot be had, has no `prompt` column, or has fewer rows than the maximum.
    """
    split = script.dataset_test_split if evaluation else script.dataset_train_split
    limit = "max_eval_samples" if evaluation else "max_train_samples"
    if task is not None:
        data = _load(task, split, script)
    else:
        splits = get_dataset(script) if script.datasets else _read(script)
        if split not in splits:
            raise ValueError(f"split {split!r}: the data set has the splits {', '.join(map(repr, splits))}.")
        data = splits[split]
    columns = data.column_names
    if columns is not None and "prompt" not in columns:
        raise ValueError(
            f"The data set has no column 'prompt'; it has {', '.join(map(repr, columns))}. Say which one holds the "
            "question with prompt_column, and the gold answer with answer_column."
        )
    most = getattr(script, limit)
    if most is None:
        return data
    if not hasattr(data, "__len__"):
        return data.take(most)
    if len(data) < most:
        raise ValueError(f"{limit}={most}: split {split!r} has {len(data)} rows.")
    return data.select(range(most))


def _load(task: Task, split: str, script: TrainArguments) -> Any:
    if script.instruction is None or script.task is None:  # a task made of columns has it already
        return task.load(split, source_of(script))
    if "instruction" not in inspect.signature(task.load).parameters:
        raise ValueError(f"instruction={script.instruction!r} has no effect with task={script.task!r}. Remove it.")
    return task.load(split, source_of(script), instruction=script.instruction)


def _read(script: TrainArguments) -> Any:
    """All splits, by `datasets`: a Hub id, a folder that `save_to_disk` wrote, another folder, or a file."""
    from datasets import DatasetDict, load_dataset, load_from_disk

    name, config = str(script.dataset_name), script.dataset_config
    path = Path(name).expanduser()
    if is_local(name) and not path.exists():
        raise ValueError(f"dataset_name={name!r}: there is no such file or folder.")
    try:
        if path.suffix in _BUILDERS and path.is_file():
            return load_dataset(_BUILDERS[path.suffix], data_files=str(path), streaming=script.dataset_streaming)
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            saved = load_from_disk(str(path))
            return saved if isinstance(saved, DatasetDict) else DatasetDict({script.dataset_train_split: saved})
        return load_dataset(str(path) if path.is_dir() else name, config, streaming=script.dataset_streaming)
    except Exception as error:  # the Hub client raises a dozen types; each means that the set is not to be had
        raise ValueError(
            f"dataset_name={name!r} is neither a local file or folder with a data set nor one that the Hub client can "
            f"load: {type(error).__name__}: {first_line(error)}"
        ) from error
