"""The GPU check: its dry run on the CPU, and that nothing that goes wrong in a check goes unseen.

What needs a GPU cannot run here. The vLLM checks run against the stand-ins of `tests/standin.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.version import Version

from adaroll_trl.gpu_check import __main__ as command
from adaroll_trl.gpu_check.context import CheckFailedError, Context
from adaroll_trl.gpu_check.plan import Check, Launch, make_plan
from adaroll_trl.gpu_check.report import Row, exit_code, table
from adaroll_trl.gpu_check.runner import Runner

HERE = "tests.workers.gpu_check"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs launches of the checks in `tests/workers/gpu_check.py`; the rows by name."""

    def run_plan(*launches: Launch, time_limit: float = 500.0) -> dict[str, Row]:
        context = {"device": "cpu", "model": "none", "tiny": True}
        rows = Runner(context, tmp_path, [], time_limit).run(launches)
        assert [row.check for row in rows] == [check.name for launch in launches for check in launch.checks]
        return {row.check: row for row in rows}

    return run_plan


def launch(*names: str, processes: int = 0, **fields: Any) -> Launch:
    return Launch(tuple(Check(name, f"{HERE}:{name}", **fields) for name in names), processes=processes)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_dry_run(tmp_path):
    """Every row of the plan, none failed, and the file holds the table that was printed."""
    script = ["bash", "scripts/gpu_check.sh", "--device", "cpu", "--logs", str(tmp_path), "--time-limit", "1100"]
    script += ["--output", str(tmp_path / "table.md"), "--extra", f"{HERE}:fine"]
    done = subprocess.run(
        script, cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=1150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "table.md").read_text() == done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    found = {cells[0][2:].strip(): cells[1].strip() for cells in rows}
    plan = make_plan("cpu", [], [f"{HERE}:fine"])
    assert list(found) == [check.name for launch in plan for check in launch.checks]
    skipped = {name for name, result in found.items() if result == "skipped"}
    assert skipped == {check.name for launch in plan for check in launch.checks if check.skip}
    assert {"full, AdaRoll, 4 rounds", "LoRA, AdaRoll, 4 rounds", "gloo x 2, DDP, AdaRoll"} <= found.keys() - skipped
    assert all(result == "ok" for name, result in found.items() if name not in skipped)


def test_a_failing_check_fails_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "make_plan", lambda *args: [launch("fine", "broken", "wrong")])
    assert command.main(["--device", "cpu", "--model", "none", "--logs", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "1 ok, 0 skipped, 2 FAILED" in printed.out
    assert "RuntimeError: a tensor is on fire |" in printed.out
    assert "| one and one is not three |" in printed.out
    assert "and more about it" in printed.err  # the log
    monkeypatch.setattr(command, "make_plan", lambda *args: [launch("fine")])
    assert command.main(["--device", "cpu", "--model", "none", "--logs", str(tmp_path)]) == 0


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(command, "visible_gpus", list)
    assert command.main([]) == 1
    assert "torch sees no GPU" in capsys.readouterr().err


def test_a_failure_hides_nothing_behind_it(run):
    rows = run(launch("broken", "fine", "crashes", "cannot_tell", "wrong"))
    results = {name: row.result for name, row in rows.items()}
    expected = {"broken": "FAILED", "fine": "ok", "crashes": "FAILED", "cannot_tell": "skipped", "wrong": "FAILED"}
    assert results == expected
    assert "SIGABRT" in rows["crashes"].note
    assert rows["cannot_tell"].note == "no way to tell"
    assert exit_code(list(rows.values())) == 1


def test_a_hanging_check_is_ended_with_all_its_processes(run, tmp_path):
    rows = run(launch("hangs", "fine", limit=8.0))
    assert rows["hangs"].result == "FAILED"
    assert rows["hangs"].note == "no result after 8 s"
    assert rows["fine"].result == "ok"
    assert not any(is_running(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    assert "in hangs" in (tmp_path / "01.log").read_text()  # where it hung


def test_what_is_out_of_time_has_failed(run):
    rows = run(launch("hangs", "fine", limit=60.0), launch("wrong"), time_limit=2.0)
    assert {name: (row.result, row.note) for name, row in rows.items()} == {
        "hangs": ("FAILED", "out of time"),
        "fine": ("FAILED", "not run: out of time"),
        "wrong": ("FAILED", "not run: out of time"),
    }


@pytest.mark.multiprocess
def test_all_processes_must_succeed(run):
    rows = run(launch("fine", processes=2, limit=240.0), launch("second_process_fails", processes=2, limit=240.0))
    assert rows["fine"].result == "ok"
    assert rows["second_process_fails"].result == "FAILED"


def test_a_skipped_check_is_not_started(run):
    rows = run(Launch((Check("no", f"{HERE}:crashes", skip="needs CUDA"), Check("yes", f"{HERE}:fine"))))
    assert (rows["no"].result, rows["no"].note, rows["no"].seconds) == ("skipped", "needs CUDA", None)
    assert rows["yes"].result == "ok"
    assert exit_code(list(rows.values())) == 0


def test_table():
    lines = table([Row("a", "ok", "x | y\nz", 1.25, 2.0), Row("longer", "FAILED", "why")]).splitlines()
    assert len(lines) == 4
    assert lines[2] == "| a      | ok     |     1.2 |     2.00 | x \\| y z |"
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}
    assert exit_code([]) == 1


@pytest.mark.parametrize("gpus", [["0"], ["GPU-a", "GPU-b", "GPU-c"]])
def test_plan_for_gpus(gpus):
    """Each name once; a plain process sees one GPU, NCCL all of them; vLLM's server wants one of its own."""
    plan = make_plan("cuda", gpus)
    names = [check.name for launch in plan for check in launch.checks]
    assert len(set(names)) == len(names)
    assert not any(check.skip == "needs CUDA" for launch in plan for check in launch.checks)
    nccl = [launch for launch in plan if "NCCL" in launch.checks[0].name]
    assert len(nccl) == 3
    assert all(launch.processes == len(gpus) and launch.gpus is None for launch in nccl)
    training = [launch for launch in plan if launch.checks[0].function.startswith("training") and launch not in nccl]
    assert all(launch.gpus == 1 and launch.processes == 0 for launch in training)
    assert training[-1].checks[0].options["server_gpu"] == gpus[-1]


# The vLLM checks, against stand-ins

needs_new_client = pytest.mark.skipif(
    Version(version("trl")) < Version("1.16"), reason="the stand-in speaks the protocol of TRL 1.16's client"
)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, model_dir: Path, tmp_path: Path) -> Any:
    """Runs a vLLM check on the CPU: `vllm("vllm_colocate", rounds=4, sleep=True)`."""
    from adaroll_trl.gpu_check import training
    from tests.standin import StandInServer, pretend_vllm

    @contextmanager
    def serve(*args: Any) -> Iterator[str]:
        with StandInServer() as server:
            yield server.url

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # colocate mode sets them for good: let monkeypatch take them back
        os.environ.pop(name)
    pretend_vllm(partial(monkeypatch.setattr, raising=False))
    monkeypatch.setattr(training, "serve", serve)
    monkeypatch.setattr(training, "LARGEST_LOGP_DIFFERENCE", 10.0)  # the stand-in's are made up

    def check(function: Any, **options: Any) -> str:
        function = getattr(training, function) if isinstance(function, str) else function
        return function(Context("cpu", str(model_dir), True, str(tmp_path), options))

    return check


@needs_new_client
def test_vllm_colocate(vllm, monkeypatch):
    from adaroll_trl.gpu_check import training

    for rounds, sleep in ((0, False), (4, True)):
        assert "1 sync a batch" in vllm("vllm_colocate", rounds=rounds, sleep=sleep)
    monkeypatch.setattr(training, "LARGEST_LOGP_DIFFERENCE", 0.1)
    with pytest.raises(CheckFailedError, match=r"log-probabilities differ by [1-9]"):
        vllm("vllm_colocate", rounds=4, sleep=True)


@needs_new_client
def test_a_sync_in_every_round_is_seen(vllm, monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr("adaroll_trl.trainer.kept_awake", lambda *args: nullcontext())
    with pytest.raises(CheckFailedError, match="8 weight syncs in 2 batches"):
        vllm("vllm_colocate", rounds=4, sleep=True)


@needs_new_client
def test_vllm_server(vllm):
    assert "1 sync a batch" in vllm("vllm_server", rounds=4, server_gpu="1")


@pytest.fixture
def costs(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`costs(capacity=4)` makes the check, with two batches of 8 prompts and 32 rollouts for each arm.

    The engine, `LLM.last`, runs no more than it was made for, and a token of each request a step.
    """
    import trl.generation.vllm_generation as generation_module

    from adaroll_trl.gpu_check import side_by_side
    from tests.standin import OutputKind, StandInLLM

    class Engine(StandInLLM):
        """`generate` by steps, so many requests at once as the engine has room for."""

        def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool) -> list[Any]:
            sampling_params.output_kind = OutputKind.FINAL_ONLY
            waiting, outputs = list(enumerate(prompts)), {}
            while waiting or self.llm_engine.has_unfinished_requests():
                while waiting and len(self.llm_engine.running) < self.options["max_num_seqs"]:
                    row, prompt = waiting.pop(0)
                    self.llm_engine.add_request(str(row), prompt, sampling_params)
                outputs |= {int(output.request_id): output for output in self.llm_engine.step()}
            return [outputs[row] for row in range(len(prompts))]

    monkeypatch.setattr(side_by_side, "BUDGET", 32)
    monkeypatch.setattr(side_by_side, "BATCHES", 2)
    for name, value in (("per_device_train_batch_size", 8), ("num_generations", 4), ("max_completion_length", 8)):
        monkeypatch.setitem(side_by_side._CONFIG, name, value)
    monkeypatch.setattr(generation_module, "LLM", Engine)
    return partial(vllm, side_by_side.costs)


@needs_new_client
def test_side_by_side(costs, monkeypatch):
    """One engine for all arms, each counted on its own; what costs too much, or does not spend its budget, fails."""
    import trl.generation.vllm_generation as generation_module

    from adaroll_trl.gpu_check import side_by_side

    note = costs(capacity=4)
    engine = generation_module.LLM.last
    assert engine.options["max_num_seqs"] == engine.llm_engine.most_at_once == 4
    arms = dict(re.findall(r"(\w+(?: rounds)?) (\d+) engine steps", note))
    assert list(arms) == list(side_by_side.ARMS)
    steps = {arm: int(found) for arm, found in arms.items()}
    # 32 completions of 5 to 8 tokens, 4 at a time, and up to 7 steps that each round waits
    assert all(40 <= found <= 64 + 4 * 7 for found in steps.values()), steps
    assert float(note.rsplit(" ", 1)[1]) == pytest.approx(steps["stream"] / steps["GRPO"], abs=0.02)

    assert "GRPO 8 engine steps" in costs(capacity=None)  # all at once
    assert generation_module.LLM.last.options["max_num_seqs"] == 32
    monkeypatch.setattr(side_by_side, "LARGEST_COST", 0.5)
    with pytest.raises(CheckFailedError, match="times GRPO's engine steps, not 0"):
        costs(capacity=4)
    monkeypatch.setattr(side_by_side, "BUDGET", 40)
    with pytest.raises(CheckFailedError, match="GRPO: 32 rollouts were rewarded in a batch, not 40"):
        costs(capacity=4)


@needs_new_client
def test_an_arm_that_fails_is_named(costs, monkeypatch):
    """And nobody waits for it for ever."""
    from adaroll_trl.gpu_check import side_by_side

    def fails(stream: Any) -> int:
        raise ZeroDivisionError("no more prompts")

    monkeypatch.setattr("tests.tiny.Hardest.next_prompt", fails)
    monkeypatch.setitem(side_by_side.ARMS, "stream", {"stream_rollouts": True, "allocator": "tests.tiny:HardestFirst"})
    with pytest.raises(RuntimeError, match="stream: ZeroDivisionError: no more prompts"):
        costs(capacity=4)
