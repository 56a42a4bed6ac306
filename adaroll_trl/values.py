"""Checks of options' values: each returns the value, or raises a ValueError that names the option and shows it."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_COUNTED = 2**53  # above it a float no longer counts one by one


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number, and no bool."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


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


def finite_array(
    name: str, value: Any, shape: tuple[int | None, ...], low: float = 0.0, high: float = MOST_COUNTED
) -> NDArray[np.float64]:
    """`value`, lists of numbers as JSON has them, as a float64 array of `shape` (None: any length) in [low, high]."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(())
    if array.shape == (0,) and shape[0] is None:
        array = np.zeros((0, *(length or 0 for length in shape[1:])))
    wanted = " x ".join("any number" if length is None else str(length) for length in shape)
    if array.ndim != len(shape) or any(w not in (None, n) for w, n in zip(shape, array.shape, strict=True)):
        raise ValueError(f"{name} must be {wanted} numbers, not {repr(value)[:200]}.")
    bad = ~((array >= low) & (array <= high))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} has {array[place]} at {list(place)}: it must be a number from {low:g} to {high:g}.")
    return array


def choice(name: str, value: Any, choices: tuple[str, ...], path_form: str | None = None) -> str:
    """`value` if it is one of `choices`, or (with `path_form`, which describes it) a path 'module:attribute'."""
    if not (value in choices or (path_form and isinstance(value, str) and ":" in value)):
        alternative = f", or {path_form}" if path_form else ""
        raise ValueError(f"{name}={value!r} is not known. Use one of {', '.join(map(repr, choices))}{alternative}.")
    return str(value)
