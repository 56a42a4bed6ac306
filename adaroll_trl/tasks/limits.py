"""A time limit that holds in any thread and against any code: the work is done in a process that can be killed.

`signal.alarm` works in the main thread only, and cannot stop a computation inside C code. A process of its own costs a
fraction of a millisecond a call once it runs. Its own timer ends it when an answer takes too much processor time; the
parent waits several times as long on the clock, for a machine under load, and kills it then. It is started with a
fresh interpreter, not forked: safe beside torch, CUDA, vLLM and DeepSpeed, and without running the user's main script
again.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

START_LIMIT = 300.0  # seconds until the script has imported what it needs
PATIENCE = 10.0  # seconds on the clock for each second of processor time that an answer may take


class LimitedProcess:
    """A script that answers JSON lines, started at the first question and again after each time-out.

    Any number of threads may ask; they take turns. A process forked from this one starts a script of its own.

    Args:
        script (`Path`): a Python file. It is run with `time_limit` as its argument, prints one JSON object when it is
            ready (`{}`, or `{"error": text}` if it cannot work), then one for each line it reads.
        time_limit (`float`): seconds of processor time that an answer may take, above 0. The script limits itself.
    """

    def __init__(self, script: Path, time_limit: float):
        self.script, self.time_limit = script, time_limit
        self._forget()
        _processes.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._ended = False

    def ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The script's answer, or None if it took longer than `time_limit`, or ended without one.

        Raises:
            RuntimeError: if the script cannot be started.
        """
        with self._lock:
            try:
                reply = self._exchange(question)
                if reply is None and self._died_idle():
                    reply = self._exchange(question)
            except BaseException:  # such as Ctrl-C: the answer to come is not to be taken for the next one's
                self._kill()
                raise
            if reply is None:
                self._kill()
            return reply

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any] | None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._send(json.dumps(question).encode() + b"\n")
        return self._receive(PATIENCE * self.time_limit)

    def _died_idle(self) -> bool:
        """Whether the process has ended, and not by its own timer: something else, such as a lack of memory on the
        machine, may have ended it before the question came."""
        assert self._process is not None
        if self._ended:
            return self._process.wait() != -getattr(signal, "SIGPROF", 0)
        return False

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            self._kill()

    @property
    def pid(self) -> int | None:
        """The process that runs now, if any."""
        return self._process.pid if self._process is not None else None

    def _start(self) -> None:
        self._kill()
        command = [sys.executable, "-P", str(self.script), str(self.time_limit)]  # -P: no module of ours hides another
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        ready = self._receive(START_LIMIT)
        if ready is None or "error" in ready:
            status = self._process.poll()
            self._kill()
            reason = ready["error"] if ready else f"no sign of life (exit status {status})"
            raise RuntimeError(f"{self.script.name} did not start with {sys.executable}: {reason}")

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            while line:
                line = line[self._process.stdin.write(line) :]
        except OSError:  # it has just died: there will be no answer
            pass

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next line, or None at the end of the time or of the process."""
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return None
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    self._ended = True
                    return None
                self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return dict(json.loads(line))

    def _kill(self) -> None:
        process, self._process, self._pending, self._ended = self._process, None, b"", False
        if process is None:
            return
        process.kill()
        process.wait()  # leaves no zombie
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


_processes: weakref.WeakSet[LimitedProcess] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked process: the script belongs to the parent, and a lock may have been held by a thread not here."""
    for process in list(_processes):
        if process._process is not None:
            process._process.returncode = 0  # not ours to wait for
        process._forget()


@atexit.register
def _at_exit() -> None:
    for process in list(_processes):
        process._kill()  # without the lock: a thread may hold it that has been stopped already


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
