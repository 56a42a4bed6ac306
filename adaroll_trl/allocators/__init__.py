"""Allocators by name: `make_allocator("adaroll", utility="mixed")`."""

from __future__ import annotations

from typing import Any

from .base import AllocationState, Allocator
from .uniform import UniformAllocator

_CLASSES: dict[str, type[Allocator]] = {"uniform": UniformAllocator}

ALLOCATOR_NAMES: tuple[str, ...] = tuple(_CLASSES)


def make_allocator(name: str, **options: Any) -> Allocator:
    """Build an allocator.

    Args:
        name (`str`): one of `ALLOCATOR_NAMES`.
        **options: the allocator's own options.

    Raises:
        ValueError: if the name is unknown or an option is not one of the allocator's.
    """
    if name not in _CLASSES:
        raise ValueError(f"allocator={name!r} is not known. Use one of {', '.join(ALLOCATOR_NAMES)}.")
    try:
        return _CLASSES[name](**options)
    except TypeError as error:
        raise ValueError(f"allocator {name!r} does not take these options {sorted(options)}: {error}") from error


__all__ = ["ALLOCATOR_NAMES", "AllocationState", "Allocator", "make_allocator"]
