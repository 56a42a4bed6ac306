"""Callbacks that follow the allocation while a run trains.

`RoundProgressCallback`, `AdviceCallback` and `SettingsCallback` are in every AdaRoll trainer;
`trainer.remove_callback(AdviceCallback)` takes one out. The others are added:
`trainer.add_callback(AllocationTableCallback())`.
"""

from __future__ import annotations

from typing import Any

from ..settings_file import save_settings
from .advice import AdviceCallback
from .events import AllocationCallback, RoundProgressCallback
from .histograms import HistogramCallback
from .settings import SettingsCallback
from .table import AllocationTableCallback

__all__ = [
    "AdviceCallback",
    "AllocationCallback",
    "AllocationTableCallback",
    "HistogramCallback",
    "RoundProgressCallback",
    "SettingsCallback",
    "add_default_callbacks",
    "save_settings",
]


def add_default_callbacks(trainer: Any) -> None:
    """Add those that every AdaRoll trainer has, unless it was given one of the kind."""
    for callback in (RoundProgressCallback(), AdviceCallback(), SettingsCallback(trainer.adaroll)):
        if not any(isinstance(one, type(callback)) for one in trainer.callback_handler.callbacks):
            trainer.add_callback(callback)
