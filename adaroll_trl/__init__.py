"""Adaptive rollout allocation for GRPO, as a plugin for TRL.

    from adaroll_trl import AdaRollGRPOTrainer as GRPOTrainer

The trainer is imported on first use, so that the solver and the simulator work without torch and TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import AdaRollGRPOConfig
    from .trainer import AdaRollGRPOTrainer, AdaRollMixin

__version__ = "0.1.0.dev0"
__all__ = ["AdaRollGRPOConfig", "AdaRollGRPOTrainer", "AdaRollMixin"]

_HOME = {"AdaRollGRPOConfig": ".config", "AdaRollGRPOTrainer": ".trainer", "AdaRollMixin": ".trainer"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
