"""Checks of the allocators' own options."""

from __future__ import annotations

import math
import numbers
from typing import Any


def number(name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """`value` as a float in [low, high] (or in (low, high]), or a ValueError that names it."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not (is_number and low <= value <= high and not (open_low and value == low)):
        least = f"above {low:g}" if open_low else f"of at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ValueError(f"{name}={value!r} must be a number {least}{most}.")
    return float(value)


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int of at least `least` (and at most `most`), or a ValueError that names it."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limit = "" if most is None else f" and at most {most:,}"
        raise ValueError(f"{name}={value!r} must be an integer of at least {least}{limit}.")
    return int(value)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """`value` if it is one of `choices`, or a ValueError that lists them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known. Use one of {', '.join(map(repr, choices))}.")
    return str(value)
