"""What AdaRoll adds to a checkpoint: one JSON file with the state of beliefs, allocator and prompt weights."""

from __future__ import annotations

import json
import os
from typing import Any

from .files import write_json

STATE_FILE = "adaroll_state.json"


def save_state(folder: str, state: dict[str, Any]) -> None:
    """Write `state` into a checkpoint folder, whole or not at all."""
    write_json(os.path.join(folder, STATE_FILE), state)


def load_state(folder: str) -> dict[str, Any] | None:
    """What `save_state` wrote, or None for a checkpoint of another trainer.

    "prior", "calibration" and "weighting" may be missing: from a run with a fixed prior, or an older checkpoint.

    Raises:
        ValueError: if the file is there and is not what `save_state` writes.
    """
    path = os.path.join(folder, STATE_FILE)
    if not os.path.exists(path):
        return None
    try:
        with open(path) as file:
            state = json.load(file)
        optional = {name: state[name] for name in ("prior", "calibration", "weighting") if name in state}
        return {"beliefs": state["beliefs"], "allocator": state["allocator"], **optional}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: {error!r}. Delete it to go on with every prompt's belief at the prior."
        ) from error
