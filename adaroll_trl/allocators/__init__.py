"""Allocators by name: `make_allocator("adaroll", utility="mixed")`."""

from __future__ import annotations

from collections.abc import Callable

from ..utilities import Utility, UtilityFunction, make_utility
from .adaroll import AdaRollAllocator
from .base import AllocationState, Allocator
from .joint import AdaRollJointAllocator
from .uniform import UniformAllocator

_BUILDERS: dict[str, Callable[..., Allocator]] = {
    "uniform": lambda utility, block_size, draws_per_round, table_cache_dir: UniformAllocator(),
    "adaroll": lambda utility, block_size, draws_per_round, table_cache_dir: AdaRollAllocator(utility),
    "adaroll_joint": AdaRollJointAllocator,
}

ALLOCATOR_NAMES: tuple[str, ...] = tuple(_BUILDERS)


def make_allocator(
    name: str,
    *,
    utility: str | UtilityFunction | Utility = "mixed",
    kappa: float | None = None,
    block_size: int = 4,
    draws_per_round: int = 1,
    table_cache_dir: str | None = None,
) -> Allocator:
    """Build an allocator. Every name takes all options, and uses those that mean something to it.

    Args:
        name (`str`): one of `ALLOCATOR_NAMES`.
        utility (`str`, callable or `Utility`): what a group's outcomes are worth.
        kappa (`float`, *optional*): parameter of utility "progress"; None is its default.
        block_size, draws_per_round (`int`), table_cache_dir (`str`, *optional*): of "adaroll_joint".

    Raises:
        ValueError: if the name is unknown or an option is out of range.
    """
    if name not in _BUILDERS:
        raise ValueError(f"allocator={name!r} is not known. Use one of {', '.join(ALLOCATOR_NAMES)}.")
    if utility == "progress" and kappa is not None:
        utility = make_utility("progress", kappa=kappa)
    return _BUILDERS[name](
        utility=utility,
        block_size=block_size,
        draws_per_round=draws_per_round,
        table_cache_dir=table_cache_dir,
    )


__all__ = ["ALLOCATOR_NAMES", "AllocationState", "Allocator", "make_allocator"]
