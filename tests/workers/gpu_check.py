"""Checks that end in every way a check can end; `tests/test_gpu_check.py` runs them in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from adaroll_trl.gpu_check.context import CannotCheckError, Context, require


def fine(context: Context) -> str:
    return f"on {context.device} in process {os.getpid()} | {sorted(context.options)}"


def wrong(context: Context) -> str:
    require(1 + 1 == 3, "one and one is not three")
    return "never"


def broken(context: Context) -> str:
    raise RuntimeError("a tensor is on fire\nand more about it")


def cannot_tell(context: Context) -> str:
    raise CannotCheckError("no way to tell")


def crashes(context: Context) -> str:
    os.abort()


def hangs(context: Context) -> str:
    """With a child in a session of its own, as torchrun's workers and vLLM's engine are."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(context.scratch, "pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return "never"


def second_process_fails(context: Context) -> str:
    if os.environ["RANK"] == "1":
        raise RuntimeError("only here")
    return "fine here"
