"""What AdaRoll adds to a checkpoint, and which checkpoints are whole.

The state of beliefs, allocator and prompt weights is one JSON file. It is written before everything else of its
checkpoint, and transformers writes `trainer_state.json` last; so a checkpoint that has the latter has all of it. A run
that ends while it saves leaves a folder without it, which must not be resumed from: `checkpoint_to_resume`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .config import AdaRollOptions
from .files import write_json
from .run_folder import LOG_FILE, STATE_FILE, checkpoints_in
from .settings_file import SETTINGS_FILE, plain


def save_state(folder: str, state: dict[str, Any]) -> None:
    """Write `state` into a checkpoint folder, whole or not at all, before the rest of the checkpoint.

    A folder of that name from an earlier attempt counts as incomplete from here on, until it is written in full.
    """
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, LOG_FILE))
    write_json(os.path.join(folder, STATE_FILE), state)


def load_state(folder: str) -> dict[str, Any] | None:
    """What `save_state` wrote, or None for a checkpoint of another trainer.

    "prior", "kappa", "calibration" and "weighting" may be missing: from a run with a fixed prior or kappa, or an older
    checkpoint. What is in each part is for its owner to check, see `naming_state_file`.

    Raises:
        ValueError: if the file is there and is not JSON, or has not the parts that `save_state` writes.
    """
    path = os.path.join(folder, STATE_FILE)
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
        optional = {name: state[name] for name in ("prior", "calibration", "weighting", "kappa") if name in state}
        return {"beliefs": state["beliefs"], "allocator": state["allocator"], **optional}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged: {error!r}. Resume from an earlier checkpoint, or delete this file to go on with "
            "every prompt's belief at the prior."
        ) from error


@contextmanager
def naming_state_file(folder: str) -> Iterator[None]:
    """An error of an owner of state, who finds that it cannot be his, says which file it comes from."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        text = str(error) if isinstance(error, ValueError) else repr(error)
        raise ValueError(f"{os.path.join(folder, STATE_FILE)} cannot be used: {text}") from error


def changed_options(folder: str, options: AdaRollOptions) -> str | None:
    """What to know where a checkpoint was made with other options; None where it was not, or nobody can tell.

    Not every change is the user's: an option that is left open follows the library's defaults, which may have changed.

    Args:
        folder (path): the checkpoint, with the `training_args.json` of its run.
        options (`AdaRollOptions`): of the run that goes on from it.
    """
    try:
        saved = json.loads((Path(folder) / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(saved, dict):
        return None
    # The folder of tables changes nothing in what is decided
    present = {name: plain(value) for name, value in vars(options).items() if name != "table_cache_dir"}
    changed = [name for name, value in present.items() if name in saved and saved[name] != value]
    if not changed:
        return None
    before, now = (", ".join(f"{name}={of[name]!r:.100}" for name in changed) for of in (saved, present))
    return f"{folder} was saved with {before}. This run goes on with {now}; to go on as before, set the former."


def is_complete(folder: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint was saved to its end."""
    try:
        return isinstance(json.loads((Path(folder) / LOG_FILE).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, RecursionError):
        return False


def checkpoint_to_resume(
    output_dir: str | os.PathLike[str], wanted: str | bool | None, warn: Callable[[str], None]
) -> str | None:
    """The folder to resume from.

    Args:
        output_dir (path): where the run saves.
        wanted (path, `bool` or None): as `Trainer.train` takes it, or "true" or "false" (a command line has only
            text). True is the newest complete checkpoint; what is newer and was not saved to its end is passed over,
            with a warning.
        warn (callable): called with that warning.

    Raises:
        ValueError: if a folder was named that is not there or not complete, or there is no complete checkpoint.
    """
    words = {"true": True, "false": False, "": False}
    chosen = words.get(wanted.lower(), wanted) if isinstance(wanted, str) else wanted
    if chosen is None or chosen is False:
        return None
    folders = checkpoints_in(output_dir)
    complete = next((folder for folder in folders if is_complete(folder)), None)
    if chosen is True:
        if complete is None:
            found = f" complete checkpoint: the run ended while {_names(folders)} was being saved" if folders else ""
            raise ValueError(
                f"resume_from_checkpoint={wanted!r}: output_dir={str(output_dir)!r} has no{found or ' checkpoint'}."
            )
        passed_over = folders[: folders.index(complete)]
        if passed_over:
            warn(f"Resuming from {complete}: the run ended while {_names(passed_over)} was being saved.")
        return str(complete)
    if not os.path.isdir(chosen):
        raise ValueError(f"resume_from_checkpoint={wanted!r}: there is no such folder. 'true' takes the newest.")
    if not is_complete(chosen):
        instead = f" The newest complete one is {complete}." if complete else ""
        raise ValueError(
            f"resume_from_checkpoint={wanted!r} is not complete: {LOG_FILE}, which is written last, is "
            f"missing or cut short, so the run ended while this checkpoint was being saved.{instead}"
        )
    return str(chosen)


def _names(folders: list[Path]) -> str:
    return ", ".join(folder.name for folder in folders)
