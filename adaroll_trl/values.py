"""Checks of options' values: each returns the value, or raises a ValueError that names the option and shows it."""

from __future__ import annotations

import math
import numbers
from typing import Any


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def number(name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """`value` as a float in [low, high] (or in (low, high])."""
    if not (is_number(value) and low <= value <= high and not (open_low and value == low)):
        least = f"above {low:g}" if open_low else f"of at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ValueError(f"{name}={value!r} must be a number {least}{most}.")
    return float(value)


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int of at least `least` (and at most `most`)."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most:,}"
        raise ValueError(f"{name}={value!r} must be an integer of at least {least}{limit}.")
    return int(value)


def choice(name: str, value: Any, choices: tuple[str, ...], path_form: str | None = None) -> str:
    """`value` if it is one of `choices`, or (with `path_form`, which describes it) a path 'module:attribute'."""
    if not (value in choices or (path_form and isinstance(value, str) and ":" in value)):
        alternative = f", or {path_form}" if path_form else ""
        raise ValueError(f"{name}={value!r} is not known. Use one of {', '.join(map(repr, choices))}{alternative}.")
    return str(value)
