"""What a check is told, and how it says that something is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CannotCheckError", "CheckFailedError", "Context", "require"]


@dataclass(frozen=True)
class Context:
    """What a check is told.

    Attributes:
        device (`str`): "cuda" or "cpu" (the dry run).
        model (`str`): folder or id of the model.
        tiny (`bool`): whether it is the random model that the check made itself.
        scratch (`str`): a folder to write to.
        options (`dict`): what `plan.py` gives this check.
    """

    device: str
    model: str
    tiny: bool
    scratch: str
    options: dict[str, Any]


class CheckFailedError(Exception):
    """A check found something wrong; its text is the note of the row."""


class CannotCheckError(Exception):
    """This machine cannot tell; its text is the note of a row that counts as skipped."""


def require(condition: bool, problem: str) -> None:
    """Raise `CheckFailedError` with `problem` unless the condition holds."""
    if not condition:
        raise CheckFailedError(problem)
