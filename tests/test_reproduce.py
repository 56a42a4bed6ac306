"""`scripts/reproduce.py`: every cell from its recipe, resumed where it stopped, beside the paper's figures."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from adaroll_trl.config import AdaRollOptions
from adaroll_trl.evaluation.store import read_results
from adaroll_trl.reproduction import command
from adaroll_trl.reproduction.cells import EvalOptions, Plan
from adaroll_trl.reproduction.command import main, make_plan, parse, select
from adaroll_trl.reproduction.paper import DATASETS, METHODS, MODELS, TABLES, TEST_PROMPTS, paper_accuracy
from adaroll_trl.reproduction.runner import SubprocessRunner, run_cell, train_arguments

ROOT = Path(__file__).resolve().parent.parent
LLAMA, GEMMA = MODELS[0], MODELS[2]


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """The folders that every tiny run begins with."""
    folder = tmp_path_factory.mktemp("twins")
    command._prepare_twins(folder, Console())
    return [folder / "twins", folder / "data"]


@pytest.fixture(scope="module")
def out(twins, tmp_path_factory):
    """Both tables on one twin and data set: all eleven trainings, a step each."""
    folder = tmp_path_factory.mktemp("reproduce")
    link(twins, folder)
    assert main(ROOT, ["--tiny", *one_cell_of(folder), "--max_steps", "1"]) == 0
    return folder


def link(twins, folder):
    for part in twins:
        (folder / part.name).symlink_to(part)


def one_cell_of(folder, model=LLAMA, dataset="gsm8k"):
    return ["--output_dir", str(folder), "--models", model, "--datasets", dataset]


def cells_of(folder, *arguments, table=1):
    settings = parse(["--tiny", "--output_dir", str(folder), *arguments])
    return select(settings, make_plan(settings, ROOT), table)


def table_of(folder, number):
    with (folder / f"table_{number}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_tables_hold_what_was_measured_and_what_the_paper_says(out):
    assert [row["method"] for row in table_of(out, 1)] == list(TABLES[1][1])
    rows = table_of(out, 2)
    assert [row["method"] for row in rows] == list(TABLES[2][1])
    for row in rows:
        folder = out / LLAMA / "gsm8k" / row["method"] / "seed-42" / "eval-transformers-1"
        correct = [prompt["num_correct"] for prompt in read_results(folder / "gsm8k")["prompts"]]
        assert row["state"] == "done"
        assert (int(row["prompts"]), float(row["accuracy"])) == (24, pytest.approx(100 * np.mean(correct), abs=1e-3))
        assert float(row["low"]) < float(row["accuracy"]) < float(row["high"])
        assert float(row["paper"]) == paper_accuracy(LLAMA, "gsm8k", row["method"])
    gains = {row["method"]: row["paper_gain"] for row in rows}
    assert gains == {
        "grpo": "",
        "adaroll-mixed": "3.03",
        "dr_grpo": "",
        "dr_grpo_adaroll": "1.52",
        "dapo": "",
        "dapo_adaroll": "3.03",
    }
    text = (out / "table_1.md").read_text()
    assert text.count("not public") == 1 + 5 + 1  # untrained, five utilities, and the note
    assert "gsm8k 24 (paper 1319)" in text


def test_each_cell_trains_what_its_recipe_and_its_method_say(out):
    for cell in cells_of(out, "--models", LLAMA, "--datasets", "gsm8k", "--max_steps", "1"):
        assert cell.state() == "done"
        if not cell.method.trained:
            continue
        state = json.loads((cell.folder / "train" / "checkpoint-1" / "trainer_state.json").read_text())
        logged = {name for entry in state["log_history"] for name in entry}
        assert state["global_step"] == 1
        assert ("adaroll/frac_prompts_mixed" in logged) == (cell.method.name != "grpo")
        if cell.method.settings:
            utility = cell.method.settings["utility"]
            assert cell.settings["utility"] == utility
            assert f"--utility {utility}" in cell.log.read_text()


def test_what_is_done_is_not_run_again(out, monkeypatch, capsys):
    def nothing_to_run(*arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(command, "InProcessRunner", lambda: nothing_to_run)
    assert main(ROOT, ["--tiny", *one_cell_of(out), "--max_steps", "1"]) == 0
    assert "AdaRoll-GRPO, std_mass" in capsys.readouterr().out


@pytest.mark.parametrize("methods", [[], ["--methods", "grpo"], ["--methods", "adaroll-std", "--seeds", "7"]])
def test_a_folder_of_other_settings_is_refused_and_left_alone(out, methods, capsys):
    """Also where the cells that were asked for are not there yet: they would share a table with the others."""
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    assert main(ROOT, ["--tiny", *one_cell_of(out), "--max_steps", "2", "--table", "1", *methods]) == 2
    error = capsys.readouterr().err
    assert "holds a run with max_steps=1, now 2: choose another output_dir" in error
    assert len(error.splitlines()) == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


def test_a_run_of_some_cells_keeps_the_rows_of_the_others(out):
    arguments = ["--tiny", *one_cell_of(out), "--max_steps", "1", "--methods"]
    assert main(ROOT, [*arguments, "grpo"]) == 0
    of_llama = [row for row in table_of(out, 1) if (row["model"], row["dataset"]) == (LLAMA, "gsm8k")]
    assert [row["method"] for row in of_llama] == list(TABLES[1][1])
    assert {row["state"] for row in of_llama} == {"done"}
    # Another evaluation has a table of its own
    assert main(ROOT, [*arguments, "untrained", "--table", "1", "--eval_limit", "3"]) == 0
    own = table_of(out, "1-eval-transformers-1-first-3")
    assert {(row["method"], row["prompts"]) for row in own if row["state"] == "done"} == {("untrained", "3")}
    assert [row for row in table_of(out, 1) if row["dataset"] == "gsm8k" and row["model"] == LLAMA] == of_llama


def test_the_gemma_twin_and_every_data_set(out, capsys):
    """Untrained on all four; a pair trained on yes or no."""
    arguments = ["--tiny", "--output_dir", str(out), "--models", GEMMA, "--table", "1", "--max_steps", "1"]
    assert main(ROOT, [*arguments, "--methods", "untrained"]) == 0
    gemma = [row for row in table_of(out, 1) if row["model"] == GEMMA]
    assert {row["dataset"] for row in gemma} == set(DATASETS)
    assert any(float(row["accuracy"]) > 0 for row in gemma)
    assert main(ROOT, [*arguments, "--datasets", "colota", "--methods", "grpo", "adaroll-balanced"]) == 0
    colota = [row for row in table_of(out, 1) if (row["model"], row["dataset"]) == (GEMMA, "colota")]
    assert [row["method"] for row in colota] == ["untrained", "grpo", "adaroll-balanced"]
    assert {row["state"] for row in colota} == {"done"}
    assert "not public" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a start of Python, a run and its rest: half a minute, but not on a busy machine
def test_a_killed_run_goes_on_at_its_last_checkpoint(twins, tmp_path):
    link(twins, tmp_path)
    arguments = [*one_cell_of(tmp_path), "--methods", "untrained", "adaroll-mixed", "--table", "1", "--max_steps", "6"]
    first, second = cells_of(tmp_path, *arguments)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "reproduce.py"), "--tiny", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    try:
        deadline = time.monotonic() + 900
        while second.last_checkpoint() is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (first.state(), second.state()) == ("done", "begun")
    done = (first.results / "results.json").stat().st_mtime_ns
    reached = int(second.last_checkpoint().name.rsplit("-")[1])
    assert reached < 6

    assert main(ROOT, ["--tiny", *arguments]) == 0
    assert (first.state(), second.state()) == ("done", "done")
    assert (first.results / "results.json").stat().st_mtime_ns == done
    assert f"checkpoint-{reached} " in second.log.read_text().replace("\n", " ")
    state = json.loads((second.folder / "train" / "checkpoint-6" / "trainer_state.json").read_text())
    steps = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    assert steps == list(range(1, 7))


def test_a_failed_cell_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    class Broken:
        def __call__(self, kind, arguments, log):
            log.write_text("what went wrong\n")
            return 3

    monkeypatch.setattr(command, "InProcessRunner", Broken)
    monkeypatch.setattr(command, "_prepare_twins", lambda *arguments: None)
    assert main(ROOT, ["--tiny", *one_cell_of(tmp_path), "--table", "1"]) == 1
    printed = capsys.readouterr().out
    cells = cells_of(tmp_path, "--models", LLAMA, "--datasets", "gsm8k")
    assert len(cells) == 8
    assert printed.count("failed: training ended with status 3") == 7
    assert printed.count("failed: evaluation ended with status 3") == 1
    assert all(cell.state() == ("begun") for cell in cells)
    assert {row["state"] for row in table_of(tmp_path, 1)} == {"failed"}
    assert str(cells[1].log) in (tmp_path / "table_1.md").read_text()


def test_the_commands_of_a_real_cell(tmp_path):
    """A launcher, a recipe, an interrupted training: what would be typed."""
    scripts = tmp_path / "root" / "scripts"
    scripts.mkdir(parents=True)
    for kind in ("train", "eval"):
        (scripts / f"{kind}.py").write_text("import os, sys\nprint(os.environ.get('LAUNCHED'), sys.argv[1:])\n")
    plan = Plan(ROOT / "recipes", tmp_path / "out", seeds=[3], max_steps=7, sources={"math": "/data/math"})
    (cell,) = plan.cells(1, [LLAMA], ["math"], ["adaroll-std"])
    for step, whole in ((50, True), (100, True), (150, False)):  # the last one was being written
        checkpoint = cell.folder / "train" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        if whole:
            (checkpoint / "trainer_state.json").write_text("{}")
    shutil.copytree(cell.folder / "train" / "checkpoint-100", cell.folder / "train" / "checkpoint-best")
    runner = SubprocessRunner(tmp_path / "root", launch=f"env LAUNCHED=yes '{sys.executable}'")
    assert run_cell(cell, runner) is None
    printed = [line for line in cell.log.read_text().splitlines() if not line.startswith("$")]
    train, evaluate = (line.split(" ", 1) for line in printed)
    assert (train[0], evaluate[0]) == ("yes", "None")
    expected = ["--config", str(ROOT / "recipes" / LLAMA / "math" / "adaroll.yaml"), "--dataset_name", "/data/math"]
    expected += ["--seed", "3", "--utility", "std", "--max_steps", "7", "--output_dir", str(cell.folder / "train")]
    assert train[1] == str([*expected, "--resume_from_checkpoint", str(cell.folder / "train" / "checkpoint-100")])
    assert evaluate[1].startswith(str(["--model", str(cell.folder / "train"), "--task", "math"])[:-1])
    assert "'--max_tokens', '1024'" in evaluate[1]


def test_the_recipes_know_every_cell():
    plan = Plan(ROOT / "recipes", Path("out"), evaluation=EvalOptions(4, "vllm", 9))
    cells = {number: list(plan.cells(number)) for number in TABLES}
    assert [len(of_table) for of_table in cells.values()] == [96, 24, 48]
    for cell in (cell for of_table in cells.values() for cell in of_table):
        assert cell.settings["task"] == cell.dataset
        assert cell.results == cell.folder / "eval-vllm-4-first-9" / cell.dataset
        if cell.method.trained:
            assert cell.settings["trainer"] == ("adaroll" if cell.method.baseline else "grpo")
            words = train_arguments(cell)
            given = dict(zip(words[::2], words[1::2], strict=True))
            assert all(given[f"--{name}"] == str(value) for name, value in cell.method.settings.items())
    shared = {cell.folder for cell in cells[1]} & {cell.folder for cell in cells[2]}
    assert len(shared) == 2 * len(DATASETS)  # GRPO and AdaRoll of table 2 are table 1's


def test_all_arms_of_table_3_train_on_the_same_prompts_as_often_and_differ_in_allocation_only():
    plan = Plan(ROOT / "recipes", Path("out"), seeds=[1, 2])
    of_arm = {}
    for cell in plan.cells(3):
        if cell.method.trained:
            of_arm.setdefault((cell.model, cell.dataset, cell.seed), []).append(cell)
    allocation = {*AdaRollOptions.__dataclass_fields__, "trainer"}
    for arms in of_arm.values():
        assert [cell.method.name for cell in arms] == list(TABLES[3][1][1:])
        common = [{key: value for key, value in cell.settings.items() if key not in allocation} for cell in arms]
        assert all(one == common[0] for one in common)
        assert common[0]["num_train_epochs"] == 5


def test_prompts_that_come_back_have_a_table_without_the_paper(out, capsys):
    assert main(ROOT, ["--tiny", *one_cell_of(out), "--max_steps", "1", "--table", "3"]) == 0
    rows = [row for row in table_of(out, 3) if row["model"] == LLAMA]  # another test has cells of another model
    assert [row["method"] for row in rows] == list(TABLES[3][1])
    assert {row["state"] for row in rows} == {"done"}
    assert {(row["paper"], row["paper_gain"]) for row in rows} == {("", "")}
    assert [bool(row["gain"]) for row in rows] == [False, False, True, True]
    text = (out / "table_3.md").read_text()
    assert "This table is not the paper's" in text
    assert "not public" not in text
    *_, paper, carried = cells_of(out, "--models", LLAMA, "--datasets", "gsm8k", "--max_steps", "1", table=3)
    for cell, rounds in ((paper, 4), (carried, 1)):
        state = json.loads((cell.folder / "train" / "checkpoint-1" / "trainer_state.json").read_text())
        (log,) = (entry for entry in state["log_history"] if "adaroll/rounds" in entry)
        assert log["adaroll/rounds"] == rounds


def test_fewer_gpus_train_every_arm_with_the_batch_that_was_asked_for():
    arguments = ["--table", "3", "--models", LLAMA, "--datasets", "gsm8k", "--gradient_accumulation_steps", "64"]
    settings = parse(arguments)
    for cell in select(settings, make_plan(settings, ROOT), 3):
        if cell.method.trained:
            assert cell.settings["gradient_accumulation_steps"] == 64
            assert "--gradient_accumulation_steps 64" in " ".join(train_arguments(cell))


def test_the_papers_figures_are_counts_of_its_test_sets():
    figures = [(dataset, paper_accuracy(LLAMA, dataset, method)) for method in METHODS for dataset in DATASETS]
    known = [(dataset, figure) for dataset, figure in figures if figure is not None]
    assert len(known) == 24
    for dataset, figure in known:
        right = round(figure / 100 * TEST_PROMPTS[dataset])
        assert figure == pytest.approx(100 * right / TEST_PROMPTS[dataset], abs=0.01)


def test_a_dry_run_lists_the_cells_and_touches_nothing(tmp_path, capsys):
    assert main(ROOT, ["--dry_run", *one_cell_of(tmp_path / "none"), "--table", "2", "--seeds", "1", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 6 * 2
    assert all("to do" in line for line in lines[1:])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tabel", "1"], "'--tabel' is no option. Did you mean '--table'?"),
        (["--table", "4"], "table=4 must be one of 1, 2, 3"),
        (["--models", "llama"], "models='llama' must be one of llama-3.1-8b-instruct"),
        (["--methods", "adaroll"], "methods='adaroll' must be one of"),
        (["--tiny", "--launch", "accelerate launch"], "launch='accelerate launch' has no effect with tiny=True"),
        (["--tiny", "--gradient_accumulation_steps", "64"], "gradient_accumulation_steps=64 has no effect with tiny"),
        (["--gradient_accumulation_steps", "0"], "gradient_accumulation_steps=0 must be at least 1"),
        (["--max_steps", "0"], "max_steps=0 must be at least 1"),
        (["--datasets", "colota"], "data_dir=None has no folder 'colota'"),
        (["--dry_run", "--datasets", "colota"], "data_dir=None has no folder 'colota'"),
        (["--dry_run", "--data_dir", "/nowhere"], "data_dir='/nowhere': there is no such folder"),
        (["--seeds", "1", "2", "1"], "seeds=[1, 2, 1] holds 1 twice"),
        *(
            (["--" + name, one, one], f"{name}=[{one!r}, {one!r}]")
            for name, one in (("models", LLAMA), ("datasets", "math"), ("methods", "grpo"))
        ),
        (["--table", "1", "1"], "table=[1, 1] holds 1 twice"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(arguments, message, capsys, tmp_path):
    assert main(ROOT, ["--output_dir", str(tmp_path / "none"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "none").exists()
