"""Runs launches one after the other and turns what becomes of them into rows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from .plan import Check, Launch
from .report import Row

_POLL_SECONDS = 0.05
_ERROR_LINE = re.compile(r"^(?:\[rank\d+\]: *)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)")


class Runner:
    """Runs checks in processes of their own.

    Args:
        context (`dict`): the fields of `context.Context`, but `options`.
        scratch (`Path`): folder for logs and results.
        gpus (sequence of `str`): the visible GPUs, each as CUDA_VISIBLE_DEVICES names it.
        time_limit (`float`): seconds for everything; what has not begun by then has failed.
        on_row (callable): called with each row as soon as it is known.
    """

    def __init__(
        self,
        context: dict[str, Any],
        scratch: Path,
        gpus: Sequence[str],
        time_limit: float,
        on_row: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self.rows: list[Row] = []
        self.logs: dict[str, Path] = {}  # of the checks that failed
        self._context, self._scratch, self._gpus, self._on_row = context, scratch, gpus, on_row
        self._deadline = time.monotonic() + time_limit
        self._launches = 0

    def run(self, plan: Sequence[Launch]) -> list[Row]:
        """One row for each check of the plan, in its order."""
        for launch in plan:
            pending = []
            for check in launch.checks:
                if check.skip is None:
                    pending.append(check)
                else:
                    self._add(Row(check.name, "skipped", check.skip))
            while pending:
                if self._left() <= 0:
                    self._add(Row(pending.pop(0).name, "FAILED", "not run: out of time"))
                else:
                    pending = pending[self._launch(launch, pending) :]
        order = [check.name for launch in plan for check in launch.checks]
        return sorted(self.rows, key=lambda row: order.index(row.check))

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _add(self, row: Row, log: Path | None = None) -> None:
        self.rows.append(row)
        if row.result == "FAILED" and log is not None:
            self.logs[row.check] = log
        self._on_row(row)

    def _launch(self, launch: Launch, checks: Sequence[Check]) -> int:
        """Start one process for `checks` and wait; how many of them now have a row, at least one."""
        self._launches += 1
        files = {kind: self._scratch / f"{self._launches:02d}.{kind}" for kind in ("json", "results", "log")}
        files["json"].write_text(
            json.dumps(
                {
                    "checks": [
                        {"name": c.name, "function": c.function, "limit": c.limit, "options": c.options}
                        for c in checks
                    ],
                    "context": {**self._context, "scratch": str(self._scratch)},
                    "results": str(files["results"]),
                    "started": time.time(),
                }
            )
        )
        files["results"].write_text("")  # the folder may hold an earlier run
        with open(files["log"], "w") as log:
            process = subprocess.Popen(
                _command(launch, files["json"]),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment(launch),
            )
            try:
                return self._wait(process, launch, checks, files["results"], files["log"])
            finally:
                end_process(process.pid)
                process.wait()

    def _wait(
        self, process: subprocess.Popen[bytes], launch: Launch, checks: Sequence[Check], results: Path, log: Path
    ) -> int:
        done, since = 0, time.monotonic()
        # With several processes a row counts once all have ended well: the first may be done where another fails
        held: list[Row] = []
        while True:
            ended = process.poll() is not None  # before the rows are read: the last may come with the end
            for row in _read(results)[done:]:
                done, since = done + 1, time.monotonic()
                held.append(row)
                if not launch.processes:
                    self._add(held.pop(), log)
            if ended or (done == len(checks) and not launch.processes):
                break
            limit = checks[min(done, len(checks) - 1)].limit
            if time.monotonic() - since > limit or self._left() <= 0:
                why = f"no result after {limit:.0f} s" if self._left() > 0 else "out of time"
                self._add(Row(checks[done - len(held)].name, "FAILED", why, time.monotonic() - since), log)
                return done - len(held) + 1
            time.sleep(_POLL_SECONDS)
        code = process.returncode
        for row in held:
            self._add(row if code == 0 or row.result == "FAILED" else _failed(row.check, code, log), log)
        ended_by_itself = done > 0 and self.rows[-1].result == "FAILED"  # it makes no further check then
        if done < len(checks) and not ended_by_itself:
            self._add(_failed(checks[done].name, code, log), log)
            done += 1
        return done

    def _environment(self, launch: Launch) -> dict[str, str]:
        gpus = self._gpus if launch.gpus is None else self._gpus[: launch.gpus]
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),  # one process must not spread over all GPUs by itself
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # products that repeat to the bit; must be set from the start
            "PYTHONFAULTHANDLER": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRL_EXPERIMENTAL_SILENCE": "1",
        }


def _command(launch: Launch, file: Path) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={launch.processes}"]
    return [sys.executable, *(torchrun if launch.processes else []), "-m", f"{__package__}.worker", str(file)]


def _read(results: Path) -> list[Row]:
    """The rows that are there in full; a line that is still being written has no end yet."""
    return [Row(**json.loads(line)) for line in results.read_text().split("\n")[:-1]]


def _failed(check: str, code: int | None, log: Path) -> Row:
    """The row of a check whose process ended without one, or badly."""
    how = f"ended with status {code}"
    if code is not None and code < 0:
        how = f"ended by {signal.Signals(-code).name}"
    errors = [match[1] for line in log.read_text(errors="replace").splitlines() if (match := _ERROR_LINE.match(line))]
    return Row(check, "FAILED", f"its process {how}{': ' + errors[-1] if errors else ''}")


def end_process(pid: int) -> None:
    """End a process and all that descend from it, at once; nothing where it is gone."""
    try:
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
