"""The process that a check runs in: `python -m adaroll_trl.gpu_check.worker LAUNCH.json`.

It makes the checks of its launch one after the other and writes a line of JSON for each. After the first that fails it
ends, so that the next one starts with a GPU in a known state; `runner.py` then starts another process for the rest.
Under torchrun every process makes the same checks and the first one writes.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .context import CannotCheckError, CheckFailedError, Context
from .report import Row

_GIB = 2**30


def _load(path: str) -> Callable[[Context], str]:
    """'hardware:bf16' of this package, or 'package.module:function'."""
    module, _, name = path.partition(":")
    home = f"{__package__}.{module}" if "." not in module else module
    function: Callable[[Context], str] = getattr(importlib.import_module(home), name)
    return function


def _peak_gib(reset: bool = False) -> float | None:
    """What torch had allocated at most on the current GPU since the last reset; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return float(torch.cuda.max_memory_allocated()) / _GIB


def _make(name: str, function: str, context: Context, started: float) -> Row:
    try:
        _peak_gib(reset=True)
        note = _load(function)(context)
        return Row(name, "ok", note, time.time() - started, _peak_gib())
    except CannotCheckError as reason:
        return Row(name, "skipped", str(reason), time.time() - started)
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        note = lines[0] if isinstance(error, CheckFailedError) else f"{type(error).__name__}: {lines[0]}"
        return Row(name, "FAILED", note, time.time() - started)


def main() -> None:
    launch = json.loads(Path(sys.argv[1]).read_text())
    writes = os.environ.get("RANK", "0") == "0"
    started = float(launch["started"])  # the first check pays for the start of the process
    code = 0
    for check in launch["checks"]:
        # A process that hangs says where, before it is ended
        left = float(check["limit"]) - (time.time() - started)
        faulthandler.dump_traceback_later(max(0.1, 0.8 * left))
        row = _make(check["name"], check["function"], Context(**launch["context"], options=check["options"]), started)
        faulthandler.cancel_dump_traceback_later()
        if writes:
            with open(launch["results"], "a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        if row.result == "FAILED":
            code = 1
            break
        started = time.time()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for what libraries do at the end: the checks are made


if __name__ == "__main__":
    main()
