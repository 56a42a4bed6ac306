"""Allocators by name: `make_allocator("adaroll", utility="mixed")`."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from ..utilities import Utility, UtilityFunction, make_utility
from .adaroll import AdaRollAllocator
from .base import AllocationState, Allocator, RolloutStream, decides_in_rounds
from .cero import CeroAllocator
from .dars import DarsAllocator
from .hora import HoraAllocator
from .joint import AdaRollJointAllocator
from .knapsack import KnapsackAllocator
from .pilot_commit import PilotCommitAllocator
from .reinforce_ada import ReinforceAdaAllocator
from .thompson import ThompsonAllocator
from .uniform import UniformAllocator
from .vigor import VigorAllocator
from .vip import VIPAllocator

_CLASSES: dict[str, type[Allocator]] = {
    cls.name: cls
    for cls in (
        UniformAllocator,
        AdaRollAllocator,
        AdaRollJointAllocator,
        CeroAllocator,
        VIPAllocator,
        KnapsackAllocator,
        HoraAllocator,
        ReinforceAdaAllocator,
        VigorAllocator,
        PilotCommitAllocator,
        DarsAllocator,
        ThompsonAllocator,
    )
}

ALLOCATOR_NAMES: tuple[str, ...] = tuple(_CLASSES)
"""The names that `make_allocator` and the config's `allocator` take."""


def make_allocator(
    name: str,
    *,
    utility: str | UtilityFunction | Utility = "mixed",
    kappa: float | None = None,
    block_size: int = 4,
    draws_per_round: int = 1,
    table_cache_dir: str | None = None,
    **options: Any,
) -> Allocator:
    """Build an allocator. Every name takes the options below, and uses those that mean something to it.

    Args:
        name (`str`): one of `ALLOCATOR_NAMES`.
        utility (`str`, callable or `Utility`): what a group's outcomes are worth, to "adaroll" and "adaroll_joint".
        kappa (`float`, *optional*): parameter of utility "progress"; None is its default.
        block_size, draws_per_round (`int`), table_cache_dir (`str`, *optional*): of "adaroll_joint".
        **options: of this allocator alone, see its class and `own_options`.

    Raises:
        ValueError: if the name or an option is unknown, or an option is out of range.

    >>> make_allocator("reinforce_ada", mode="pos").k
    1
    """
    if name not in _CLASSES:
        raise ValueError(f"allocator={name!r} is not known. Use one of {', '.join(ALLOCATOR_NAMES)}.")
    check_own_options(name, options)
    if utility == "progress" and kappa is not None:
        utility = make_utility("progress", kappa=kappa)
    shared = {
        "utility": utility,
        "block_size": block_size,
        "draws_per_round": draws_per_round,
        "table_cache_dir": table_cache_dir,
    }
    taken = signature(_CLASSES[name]).parameters
    return _CLASSES[name](**{key: value for key, value in shared.items() if key in taken}, **options)


def own_options(name: str) -> tuple[str, ...]:
    """The options that an allocator takes beside those that all names take.

    >>> own_options("reinforce_ada")
    ('mode', 'k')
    """
    return tuple(key for key in signature(_CLASSES[name]).parameters if key not in _SHARED)


def check_own_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the allocator does not have.

    Raises:
        ValueError: naming the option and those that there are.
    """
    known = own_options(name)
    for option in options:
        if option not in known:
            takes = f"It takes {', '.join(known)}." if known else "It takes none."
            raise ValueError(f"allocator {name!r} has no option {option!r}. {takes}")


def check_own_values(name: str, options: Mapping[str, Any]) -> None:
    """Refuse values that the allocator of that name cannot take, by making one. A file of embeddings is not read.

    Raises:
        ValueError: naming the option and its value.
    """
    files = [key for key, value in options.items() if key == "embeddings" and isinstance(value, str)]
    make_allocator(name, **{key: value for key, value in options.items() if key not in files})


def allocator_class(name: str) -> type[Allocator] | None:
    """The class behind a name; None for one that is not known, such as the path of a class of the user's own."""
    return _CLASSES.get(name)


def streaming_allocators() -> tuple[str, ...]:
    """The names of those that can decide rollout by rollout while others are in flight (`Allocator.stream`)."""
    return tuple(name for name, cls in _CLASSES.items() if cls.streams)


def cannot_stream(allocator: Allocator | type[Allocator]) -> str:
    """Why an allocator decides in rounds only, and which do not."""
    return (
        f"{decides_in_rounds(allocator)} These can: {', '.join(streaming_allocators())}. Use one of them, or keep "
        "this one and generate in rounds."
    )


def maximises_utility(name: str) -> bool:
    """Whether the allocator of that name maximises the `utility` that it is given; the others have aims of their own.

    >>> maximises_utility("adaroll"), maximises_utility("vip")
    (True, False)
    """
    return "utility" in signature(_CLASSES[name]).parameters


_SHARED = ("utility", "block_size", "draws_per_round", "table_cache_dir")

__all__ = [
    "ALLOCATOR_NAMES",
    "AllocationState",
    "Allocator",
    "RolloutStream",
    "allocator_class",
    "cannot_stream",
    "check_own_options",
    "check_own_values",
    "make_allocator",
    "maximises_utility",
    "own_options",
    "streaming_allocators",
]
