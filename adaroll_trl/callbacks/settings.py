"""The trainer's arguments in the run's folder, for `adaroll report`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..config import AdaRollOptions
from ..run_folder import CHECKPOINT_PREFIX, checkpoints_in
from ..settings_file import save_settings


class SettingsCallback(TrainerCallback):
    """Writes the trainer's arguments to `training_args.json` when training begins, and into every checkpoint.

    The file in `output_dir` is there whether or not the run saves checkpoints, and a resumed run writes it anew.
    Secrets are left out, see `adaroll_trl.settings_file.plain`. A file that cannot be written is a warning, and so is
    a new run in a folder that has checkpoints or completions of another one.

    Args:
        options (`AdaRollOptions`, *optional*): what the trainer takes for the options that its arguments lack; in
            AdaRoll's trainers, which give it, their defaults under a plain `GRPOConfig`.
    """

    def __init__(self, options: AdaRollOptions | None = None) -> None:
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save and state.global_step == 0:
            _warn_of_an_earlier_run(Path(args.output_dir))
        self._save(args, Path(args.output_dir))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}"
        if folder.is_dir():  # a search of hyperparameters saves elsewhere
            self._save(args, folder)

    def _save(self, args: Any, folder: Path) -> None:
        if not args.should_save:
            return
        try:
            save_settings(args, folder, None if self._options is None else vars(self._options))
        except Exception as error:  # whatever it is, it costs a table of the report and must not cost the run
            warnings.warn(
                f"The settings could not be written to {folder} ({type(error).__name__}: {error}). Training goes on; "
                "`adaroll report` will not know them.",
                stacklevel=2,
            )


def _warn_of_an_earlier_run(folder: Path) -> None:
    left = {
        "checkpoints": checkpoints_in(folder),
        "completions tables": list((folder / "completions").glob("*.parquet")),
    }
    if found := [f"{len(paths)} {kind}" for kind, paths in left.items() if paths]:
        warnings.warn(
            f"output_dir={str(folder)!r} has {' and '.join(found)} of an earlier run, and this run starts anew. "
            "What it saves mixes with them: resume_from_checkpoint=True may go on from the earlier run, and `adaroll "
            "report` takes both for one. Use another output_dir, or resume.",
            stacklevel=2,
        )
