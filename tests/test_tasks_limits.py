"""The process that compares mathematics: it ends what hangs, serves many threads, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from adaroll_trl.tasks.limits import LimitedProcess
from adaroll_trl.tasks.mathematics import MathVerifier

HANGS = r"\boxed{9^{9^{9^{9}}}}"  # math-verify evaluates it
LIMIT = 0.5  # seconds of processor time


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier(time_limit=LIMIT)
    yield made
    made.process.close()


def gone(pid: int) -> bool:
    """Whether a process has ended; one that has, and whose parent has not asked yet, counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def in_thread(work):
    result = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive()
    return result[0]


def test_an_answer_that_hangs_is_wrong_in_any_thread_and_the_next_one_is_compared(verifier):
    assert in_thread(lambda: verifier.verify(r"\boxed{0.5}", r"\frac{1}{2}"))
    first = verifier.process.pid
    with pytest.warns(UserWarning, match="did not come to an end within 0.5 s.*counts as wrong"):
        assert verifier.verify(HANGS, "1") is False
    assert gone(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no second warning
        assert in_thread(lambda: verifier.verify(r"\boxed{8^{9^{9^{9}}}}", "1")) is False
        started = time.perf_counter()
        assert verifier.verify(HANGS, "1") is False  # remembered
        assert time.perf_counter() - started < 0.2
    assert verifier.late == 2
    assert verifier.verify(r"\boxed{0.25}", r"\frac{1}{4}")
    assert verifier.process.pid != first


def test_many_threads_get_their_own_answers(verifier):
    answers: dict[int, list[bool]] = {}

    def ask(number):
        answers[number] = [verifier.verify(f"\\boxed{{{number}.0}}", str(one)) for one in (number, number + 1)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(100, 124)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert answers == {number: [True, False] for number in range(100, 124)}


def test_a_process_that_is_killed_is_started_again(verifier):
    verifier.verify(r"\boxed{1.0}", "1")
    pid = verifier.process.pid
    os.kill(pid, 9)
    assert verifier.verify(r"\boxed{2.50}", "2.5")
    assert verifier.process.pid != pid


def test_the_overhead_of_a_question_is_small(verifier):
    verifier.readable("1")
    times = []
    for _ in range(50):
        started = time.perf_counter()
        verifier.process.ask({"gold": "1", "given": "1"})
        times.append(time.perf_counter() - started)
    assert min(times) < 0.02


FORKED = r"""
import os, sys
from adaroll_trl.tasks.mathematics import MathVerifier

if __name__ != "__main__":
    raise SystemExit("the main script was run again")
verifier = MathVerifier()
assert verifier.verify(r"\boxed{0.5}", r"\frac{1}{2}")
print(verifier.process.pid, flush=True)
sys.stdin.readline()  # the test says when to go on
verifier.process._lock.acquire()  # as if another thread were asking
child = os.fork()
if child == 0:
    assert verifier.process.pid is None
    assert verifier.verify(r"\boxed{0.25}", r"\frac{1}{4}")
    verifier.process.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
verifier.process._lock.release()
assert verifier.verify(r"\boxed{0.2}", r"\frac{1}{5}")
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_forked_process_has_its_own_and_none_outlives_its_parent(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORKED)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        if end == "kill":
            parent.kill()
        else:
            parent.stdin.write("\n")
            parent.stdin.flush()
        assert parent.wait(timeout=60) == (0 if end == "exit" else -9)
    for _ in range(100):
        if gone(pid):
            return
        time.sleep(0.1)
    pytest.fail("the process is still there")


def test_a_script_that_cannot_start_says_why(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text('print(\'{"error": "no module named x"}\')')
    with pytest.raises(RuntimeError, match=r"broken.py did not start with .*: no module named x"):
        LimitedProcess(script, 1.0).ask({})
    script.write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="no sign of life"):
        LimitedProcess(script, 1.0).ask({})


def test_the_parent_ends_a_process_that_does_not_end_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("adaroll_trl.tasks.limits.PATIENCE", 1.0)
    script = tmp_path / "sleeps.py"
    script.write_text("import sys, time\nprint('{}', flush=True)\nsys.stdin.readline()\ntime.sleep(600)")
    process = LimitedProcess(script, 0.3)
    started = time.monotonic()
    assert process.ask({}) is None
    assert time.monotonic() - started < 60
    assert process.pid is None


def test_time_limits_are_positive():
    with pytest.raises(ValueError, match="time_limit=0 must be a number of seconds above 0"):
        MathVerifier(time_limit=0)
