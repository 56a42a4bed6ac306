"""Running cells: each is a training command and an evaluation command, the very ones that a user would type."""

from __future__ import annotations

import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .cells import Cell

Kind = str  # "train" or "eval"


class Runner(Protocol):
    """Runs `scripts/<kind>.py` with arguments, its output in a log file, and returns the exit status."""

    def __call__(self, kind: Kind, arguments: Sequence[str], log: Path) -> int: ...


@dataclass(frozen=True)
class SubprocessRunner:
    """A process for each command, so that each has the accelerators to itself.

    Args:
        root (`Path`): the folder that holds `scripts`.
        launch (`str`): what starts the training, instead of Python: `accelerate launch --config_file ...`.
    """

    root: Path
    launch: str = ""

    def __call__(self, kind: Kind, arguments: Sequence[str], log: Path) -> int:
        start = shlex.split(self.launch) if kind == "train" and self.launch else [sys.executable]
        command = [*start, str(self.root / "scripts" / f"{kind}.py"), *arguments]
        with log.open("a", encoding="utf-8") as file:
            print(f"$ {shlex.join(command)}", file=file, flush=True)
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
            try:
                return process.wait()
            finally:  # an interrupted run ends its command: a launcher needs the signal to end its own processes
                if process.poll() is None:
                    process.terminate()
                    process.wait()


class InProcessRunner:
    """All commands in this process: for twins, whose training is shorter than a start of Python."""

    def __call__(self, kind: Kind, arguments: Sequence[str], log: Path) -> int:
        with log.open("a", encoding="utf-8") as file, ExitStack() as stack:
            print(f"$ scripts/{kind}.py {shlex.join(arguments)}", file=file, flush=True)
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
            try:
                return _main(kind)(list(arguments))
            except SystemExit as stop:  # how parsers refuse
                return int(bool(stop.code))
            except Exception:
                traceback.print_exc()
                return 1


def _main(kind: Kind) -> Callable[[list[str]], int]:
    if kind == "train":
        from ..training.run import main as train

        return train
    from ..evaluation.command import main as evaluate

    return evaluate


def run_cell(cell: Cell, runner: Runner) -> str | None:
    """Bring a cell to its end from wherever it is; the reason if it failed, else None.

    Raises:
        ValueError: if its folder holds a run of other settings.
    """
    cell.begin()
    if cell.method.trained and cell.state() == "begun":
        status = runner("train", train_arguments(cell), cell.log)
        if status:
            return f"training ended with status {status}"
        cell.note_trained()
    if cell.state() != "done":
        status = runner("eval", eval_arguments(cell), cell.log)
        if status:
            return f"evaluation ended with status {status}"
    return None


def train_arguments(cell: Cell) -> list[str]:
    """Of `scripts/train.py`: the recipe, what replaces its settings, and the checkpoint to go on from."""
    checkpoint = cell.last_checkpoint()
    options = {
        **cell.overrides,
        "output_dir": str(cell.folder / "train"),
        "resume_from_checkpoint": None if checkpoint is None else str(checkpoint),
    }
    return ["--config", str(cell.recipe), *_options(options)]


def eval_arguments(cell: Cell) -> list[str]:
    """Of `scripts/eval.py`, on the data set's test split, with the recipe's longest completion."""
    settings, options = cell.settings, cell.evaluation
    return _options(
        {
            "model": cell.trained_model,
            "task": settings["task"],
            "dataset_name": settings.get("dataset_name"),
            "output_dir": str(cell.results.parent),
            "max_tokens": settings["max_completion_length"],
            "num_samples": options.num_samples,
            "backend": options.backend,
            "limit": options.limit,
        }
    )


def _options(values: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in values.items():
        if value is not None:
            words = value if isinstance(value, (list, tuple)) else [value]
            arguments += [f"--{name}", *(str(word).lower() if isinstance(word, bool) else str(word) for word in words)]
    return arguments
