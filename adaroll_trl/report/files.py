"""What there is in a run's folder: the trainer's log, its settings, AdaRoll's state, and the completions tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..run_folder import CHECKPOINT_PREFIX, LOG_FILE, STATE_FILE, checkpoints_in
from ..settings_file import SETTINGS_FILE
from ..values import is_number
from .settings import MOST_BYTES, changed_settings, settings_of

_TABLE = re.compile(r"completions_(\d{1,12})\.parquet")
_MOST_BYTES_OF_A_LOG = 2**30  # a hundred thousand steps have half of it
_NO_SETTINGS = (
    f"Settings: neither folder nor checkpoints have {SETTINGS_FILE} (the pickle training_args.bin is not read). "
    "So a success is taken to be a sum of rewards of at least 0.5, and equal groups to have the mean size of those in "
    "the tables. AdaRoll's trainers and `adaroll train` write the file. For TRL's own trainer add SettingsCallback(); "
    "for a run that is over, save_settings(config, folder) writes it from the config that the run had. Both are in "
    "adaroll_trl.callbacks."
)
_LOOKED_FOR = (
    f"{LOG_FILE} (there or in a checkpoint-<step> folder; `trainer.save_state()` writes it) or "
    "completions/completions_<step>.parquet (which `log_completions=True` writes)"
)

FloatArray = NDArray[np.float64]


@dataclass
class RunFiles:
    """A training run on disk.

    Args:
        folder (`Path`): where it is.
        name (`str`): how the report calls it.
        history (list of `dict`): the trainer's log, an entry a logging step.
        settings (`dict`): the training arguments by name; empty where they are not there.
        state (`dict`): what AdaRoll saved in the newest checkpoint; empty for none.
        completions (list of `Path`): the completions tables, in the order of their steps.
        notes (list of `str`): what could not be read, and why.
    """

    folder: Path
    name: str
    history: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    completions: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def series(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Steps and values of a logged number, float64 arrays of one length; empty where it was never logged."""
        points = [
            (float(entry["step"]), float(entry[name]))
            for entry in self.history
            if is_number(entry.get(name)) and is_number(entry.get("step"))
        ]
        found = np.array(points, dtype=np.float64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def names(self, pattern: str) -> list[str]:
        """Logged names that match a regular expression as a whole, sorted."""
        return sorted({name for entry in self.history for name in entry if re.fullmatch(pattern, name)})

    @property
    def evaluation_steps(self) -> set[int]:
        """Steps at which the trainer evaluated: the completions in their tables are the evaluation's."""
        return {
            int(entry["step"]) for entry in self.history if "eval_runtime" in entry and is_number(entry.get("step"))
        }


def step_of(table: Path) -> int:
    """The step in a completions table's name."""
    match = _TABLE.fullmatch(table.name)
    return int(match[1]) if match else 0


def read_run(folder: Path, name: str | None = None) -> RunFiles:
    """Read what a run left in `folder`, all but the completions themselves.

    Raises:
        ValueError: if there is no such folder, or nothing of a GRPO run in it; names what was looked for.
    """
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "is not there"
        raise ValueError(f"{folder} {kind}. A report needs the output_dir of a run, with {_LOOKED_FOR}.")
    run = RunFiles(folder, name or folder.resolve().name)
    checkpoints = checkpoints_in(folder)
    run.completions = sorted(
        (path for path in (folder / "completions").glob("*.parquet") if _TABLE.fullmatch(path.name)), key=step_of
    )
    logs = [log for place in (folder, *checkpoints[:1]) if (log := _read_json(place / LOG_FILE, run.notes))]
    if not logs and len(checkpoints) > 1:  # the newest is damaged
        logs = [log for place in checkpoints[1:] if (log := _read_json(place / LOG_FILE, run.notes))][:1]
    if logs:
        newest = max(logs, key=_global_step)
        history = newest.get("log_history")
        run.history = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    _check_is_run(run, bool(logs))
    _read_settings(run, (folder, *checkpoints))
    for place in (*checkpoints, folder):
        run.state = run.state or _read_json(place / STATE_FILE, run.notes)
    return run


def _read_settings(run: RunFiles, places: Sequence[Path]) -> None:
    """The newest settings hold for the page; a note says since when, and what was different before."""
    for place in places:
        content = _read_json(place / SETTINGS_FILE, run.notes, MOST_BYTES)
        found = settings_of(content, _place(place / SETTINGS_FILE), run.notes) if content else {}
        if not run.settings:
            run.settings = found
        elif found and (changes := changed_settings(found, run.settings)):
            run.notes.append(
                f"The settings changed after {place.name}: {changes}. The newest hold for the whole page. Either the "
                "run was resumed with other settings, or another run was begun in the same folder, whose tables and "
                "log are then mixed with what the first one left."
            )
            break
    if not run.settings:
        run.notes.append(_NO_SETTINGS)


def _global_step(log: dict[str, Any]) -> float:
    step: Any = log.get("global_step")
    return float(step) if is_number(step) else 0.0


def _read_json(path: Path, notes: list[str], most_bytes: int = _MOST_BYTES_OF_A_LOG) -> dict[str, Any]:
    """A JSON object; empty where there is no such file, or none that can be read, which the notes then say."""
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            data = file.read(min(path.stat().st_size, most_bytes) + 1)
        if len(data) > most_bytes:
            raise ValueError(f"it has more than {most_bytes:,} bytes")
        content = json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{_place(path)} was skipped: it cannot be read ({error}).")
        return {}
    if not isinstance(content, dict):
        notes.append(f"{_place(path)} was skipped: it holds no JSON object.")
        return {}
    return content


def _place(path: Path) -> str:
    """A file's name, with its checkpoint's."""
    return f"{path.parent.name}/{path.name}" if path.parent.name.startswith(CHECKPOINT_PREFIX) else path.name


def _check_is_run(run: RunFiles, has_log: bool) -> None:
    rewards = any("reward" in entry for entry in run.history)
    if run.completions or rewards:
        return
    reasons = "".join(f" {note}" for note in run.notes)
    if run.history:
        raise ValueError(
            f"{run.folder} is the folder of a run without rewards: {LOG_FILE} never logs `reward`, as GRPO does, and "
            f"there is no completions/completions_<step>.parquet.{reasons}"
        )
    if has_log:
        raise ValueError(
            f"{run.folder} is the folder of a run that has logged nothing yet: {LOG_FILE} has an empty log, and there "
            f"is no completions/completions_<step>.parquet.{reasons}"
        )
    inside = sorted(path.name for path in run.folder.iterdir())
    runs = [name for name in inside if (run.folder / name / LOG_FILE).exists()]
    hint = f" Its folders {', '.join(runs[:5])} look like runs: name one of them, or two." if runs else ""
    has = f"It has {', '.join(inside[:8])}{', ...' if len(inside) > 8 else ''}." if inside else "It is empty."
    raise ValueError(f"{run.folder} holds no run. A report needs {_LOOKED_FOR}. {has}{hint}{reasons}")
