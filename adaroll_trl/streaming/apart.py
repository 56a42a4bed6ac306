"""Calls of the reward functions that one process makes alone, in its own time.

TRL's `_calculate_rewards` ends with a gather over all processes. While a batch streams, each process scores rollouts
as they end, so these calls do not meet, and a gather would wait for ever. TRL has no way to score without it: here the
name `gather` in the modules that define the method is replaced while a batch streams, by one that hands back what a
scoring thread gives it, and leaves all other calls alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_here = threading.local()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` for the time being. What only its class had goes back to its class."""
    own = vars(owner)
    had, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def local_scoring(trainer_class: type) -> Iterator[None]:
    """For the time being, calls inside `alone` gather nothing."""
    modules = {sys.modules[base.__module__] for base in trainer_class.__mro__ if "_calculate_rewards" in vars(base)}
    with ExitStack() as stack:
        for module in modules:
            if hasattr(module, "gather"):
                stack.enter_context(replaced(module, "gather", _gather_unless_alone(module.gather)))
        yield


def _gather_unless_alone(gather: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda tensor: tensor if getattr(_here, "alone", False) else gather(tensor)


@contextmanager
def alone() -> Iterator[None]:
    """In this thread, no other process takes part."""
    _here.alone = True
    try:
        yield
    finally:
        _here.alone = False
