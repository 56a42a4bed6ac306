"""Data sets with verifiable answers: how to load them, what to ask, and how to tell right from wrong."""

from .arithmetic import Arithmetic
from .base import Task, completion_text

TASKS: dict[str, Task] = {task.name: task for task in (Arithmetic(),)}
TASK_NAMES = tuple(TASKS)


def get_task(name: str) -> Task:
    """The task of that name, one of `TASK_NAMES`.

    Raises:
        ValueError: if there is none.
    """
    if name not in TASKS:
        raise ValueError(f"task={name!r} is not a task: use one of {', '.join(TASK_NAMES)}.")
    return TASKS[name]


__all__ = ["TASKS", "TASK_NAMES", "Task", "completion_text", "get_task"]
