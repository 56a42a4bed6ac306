"""Data sets with verifiable answers: how to load them, what to ask, and how to tell right from wrong."""

from .arithmetic import Arithmetic
from .base import Task, completion_text
from .colota import CoLoTa
from .competition_math import CompetitionMath
from .custom import ColumnTask
from .gsm8k import GSM8K
from .logiqa import LogiQA

TASKS: dict[str, Task] = {task.name: task for task in (CompetitionMath(), GSM8K(), LogiQA(), CoLoTa(), Arithmetic())}
"""The tasks that come with the library, by name."""

TASK_NAMES: tuple[str, ...] = tuple(TASKS)
"""Their names, which `get_task` and `--task` take."""


def get_task(name: str) -> Task:
    """The task of that name: one of `TASK_NAMES`, or `"package.module:TASK"`, a `Task` of your own or its class.

    Raises:
        ValueError: if there is none.
    """
    if name in TASKS:
        return TASKS[name]
    if ":" not in name:
        names = ", ".join(map(repr, TASK_NAMES))
        raise ValueError(f"task={name!r} is not a task: use one of {names}, or 'package.module:TASK'.")
    from ..config import load_by_path  # imports TRL

    found = load_by_path("task", name)
    task = found() if isinstance(found, type) and issubclass(found, Task) else found
    if not isinstance(task, Task):
        raise ValueError(f"task={name!r} is {type(task).__name__}, not a Task of adaroll_trl.tasks or its class.")
    return task


__all__ = ["TASKS", "TASK_NAMES", "ColumnTask", "Task", "completion_text", "get_task"]
