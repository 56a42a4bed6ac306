"""The command line: bad input ends in one sentence, and defaults follow the kind of run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from adaroll_trl.cli import build_parser, main, make_settings
from adaroll_trl.demo.problems import DemoError


def settings(*arguments: str):
    return make_settings(build_parser().parse_args(["demo", *arguments]))


def test_builtin_defaults():
    chosen = settings()
    assert (chosen.prompts, chosen.num_generations, chosen.micro_batch) == (16, 8, 128)
    assert chosen.arms == ("grpo", "adaroll")
    assert chosen.adaroll == {}  # the library's defaults, not the demo's


def test_a_model_of_ones_own_has_defaults_of_its_own():
    chosen = settings("--model", "m", "--dataset", "d", "--prompts", "3", "--num-generations", "5")
    assert chosen.lr == 1e-6
    assert chosen.warm_up_steps == 0
    assert chosen.rollouts_per_step % chosen.micro_batch == 0
    assert chosen.micro_batch == 5


def test_options_reach_the_settings():
    chosen = settings("--arm", "adaroll", "--rounds", "2", "--steps", "7", "--lr", "0.5")
    assert chosen.arms == ("adaroll",)
    assert chosen.adaroll == {"rounds": 2}
    assert (chosen.steps, chosen.lr) == (7, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "somewhere"], "--dataset is missing"),
        (["--dataset", "somewhere"], "--model is missing"),
        (["--answer-column", "gold"], "--answer-column gold needs --model and --dataset"),
        (["--model", "m", "--dataset", "d", "--warm-up-steps", "5"], "--warm-up-steps 5 is of the built-in model"),
        (["--arm", "grpo", "--rounds", "2"], "--rounds 2 has no effect with --arm grpo"),
        (["--steps", "0"], "--steps 0 must be at least 1"),
        (["--num-generations", "1"], "--num-generations 1 must be at least 2"),
        (["--micro-batch", "7"], "must divide --prompts 16 x --num-generations 8 = 128"),
    ],
)
def test_bad_options_name_the_option_and_the_value(arguments, message):
    with pytest.raises(DemoError, match=message):
        settings(*arguments)


def test_bad_input_is_one_sentence_and_exit_status_2(tmp_path, capsys):
    missing = str(tmp_path / "no_model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "1 + 1", "answer": "2"}) + "\n")
    status = main(["demo", "--model", missing, "--dataset", str(rows), "--output-dir", str(tmp_path / "out")])
    assert status == 2
    assert capsys.readouterr().err == f"error: --model {missing}: there is no such folder.\n"


def test_the_demo_takes_no_abbreviations(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--step", "3"])
    assert "unrecognized arguments: --step 3" in capsys.readouterr().err


def test_help_does_not_import_torch():
    code = (
        "import sys, adaroll_trl.cli as cli\n"
        "for words in (['demo', '--help'], ['--help']):\n"
        "    try:\n        cli.main(words)\n    except SystemExit:\n        pass\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout
    for command in ("demo", "train", "eval"):
        assert f"    {command} " in done.stdout
