"""What a training run's folder, its `output_dir`, is made of. Known without torch, for what only reads runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

LOG_FILE = "trainer_state.json"  # transformers' `TRAINER_STATE_NAME`; of a checkpoint it is what is written last
STATE_FILE = "adaroll_state.json"
CHECKPOINT_PREFIX = "checkpoint-"  # transformers' `PREFIX_CHECKPOINT_DIR`, with the dash


def checkpoint_step(folder: Path) -> int | None:
    """The step in a checkpoint folder's name, or None for a name that the trainer does not give.

    >>> checkpoint_step(Path("run/checkpoint-12")), checkpoint_step(Path("run/checkpoint-best"))
    (12, None)
    """
    match = re.fullmatch(CHECKPOINT_PREFIX + "([0-9]+)", folder.name)  # \d and str.isdigit take what `int` does not
    return int(match[1]) if match else None


def checkpoints_in(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a run, the newest first, whether complete or not; empty where there is no such folder."""
    folders = [path for path in Path(output_dir).glob(f"{CHECKPOINT_PREFIX}*") if path.is_dir()]
    steps = {path: step for path in folders if (step := checkpoint_step(path)) is not None}
    return sorted(steps, key=lambda path: (steps[path], path), reverse=True)
