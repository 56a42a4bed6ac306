"""The demo: its task, its data, its records and tables, and a run of both arms from start to end."""

from __future__ import annotations

import doctest
import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from adaroll_trl.demo.problems import DemoError, builtin_problems, exact_match, level_bins
from adaroll_trl.demo.record import ArmResult, RolloutRecord
from adaroll_trl.demo.report import DemoResult, verdict
from adaroll_trl.demo.settings import Settings
from adaroll_trl.demo.user_data import read_rows, user_problems


def columns(**given):
    usual = {"prompt_column": None, "answer_column": None, "level_column": None, "instruction": None, "chat": False}
    return {"name": "set", "num_train": 4, "num_held_out": 2, "seed": 0, **usual, **given}


@pytest.mark.parametrize("name", ["demo.display", "demo.problems", "plots"])
def test_examples_in_docstrings(name):
    results = doctest.testmod(import_module(f"adaroll_trl.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


# The built-in task


def test_builtin_answers_are_right():
    for problem in builtin_problems(50, 24, seed=3).train:
        digits, answer = problem.prompt[1:-1], problem.answer
        assert answer == (digits[::-1] if problem.prompt[0] == "R" else "".join(sorted(digits)))
        assert problem.level == len(digits)


def test_builtin_task_is_reproducible_and_holds_problems_out():
    first, second = builtin_problems(300, 24, seed=1), builtin_problems(300, 24, seed=1)
    assert first.train == second.train
    assert not {problem.key for problem in first.train} & {problem.key for problem in first.held_out}
    assert sorted(problem.level for problem in first.held_out) == sorted([*range(3, 15)] * 2)


def test_tokenizer_gives_every_character_back():
    from adaroll_trl.demo.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    ids = tokenizer("R0123456789=")["input_ids"]
    assert len(ids) == 12
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "R0123456789="
    assert tokenizer.unk_token_id not in tokenizer("RS=0123456789")["input_ids"]


def test_level_bins_cover_every_level_once():
    levels = np.repeat(np.arange(1, 9), 5)
    bins = level_bins(levels.tolist())
    assert len(bins) <= 4
    assert (sum(one.holds(levels).astype(int) for one in bins) == 1).all()
    assert level_bins([None, None]) == []
    assert [one.label for one in level_bins([2, 2, 2])] == ["2"]


# A user's own data


ROWS = [
    {"question": f"{number} + 1?", "answer": f"<<x>>\n#### {number + 1}", "hard": f"Level {number}"}
    for number in range(8)
]


def test_problems_of_a_data_set():
    problems = user_problems(ROWS, **columns(level_column="hard", chat=True))
    assert (len(problems.train), len(problems.held_out)) == (4, 2)
    for problem in [*problems.train, *problems.held_out]:
        question = problem.prompt[0]["content"]
        assert question.startswith(f"{problem.level} + 1?")
        assert "####" in question  # numbers: the instruction asks for the format
        assert problem.answer == str(problem.level + 1)
    assert problems.grade("so 1,001.0", "1001") == 1.0


def test_plain_prompts_and_an_instruction_of_ones_own():
    problems = user_problems(ROWS, **columns(instruction=" Be brief."))
    assert problems.train[0].prompt.startswith("Question: ")
    assert problems.train[0].prompt.endswith("+ 1? Be brief.\nAnswer:")
    assert problems.train[0].level == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_column": "body"}, "prompt_column='body': the data set has no such column; it has question, answer"),
        ({"level_column": "size"}, "level_column='size'"),
        ({"num_held_out": 7}, "8 usable records, too few"),
    ],
)
def test_bad_columns_are_named(given, message):
    with pytest.raises(DemoError, match=message):
        user_problems(ROWS, **columns(**given))


def test_unusual_columns_ask_for_an_option():
    with pytest.raises(DemoError, match=r"columns \(x, y\) has a usual name for the question: say prompt_column"):
        user_problems([{"x": "1", "y": "2"}] * 8, **columns())


def test_a_data_set_that_is_not_to_be_had_is_one_sentence(tmp_path):
    with pytest.raises(DemoError, match=r"--dataset: source=.*absent\.jsonl'.*there is no such file"):
        read_rows(str(tmp_path / "absent.jsonl"))


# Records and the report


def test_record_groups_rollouts_over_rounds():
    record = RolloutRecord()
    reward = record.reward_function(exact_match)

    def call(step, prompts, completions):
        return reward(
            completions=completions,
            answer=["a"] * len(prompts),
            prompt_id=prompts,
            level=[3] * len(prompts),
            completion_ids=[[1, 2]] * len(prompts),
            trainer_state=SimpleNamespace(global_step=step),
        )

    assert call(0, ["5", "6", "6"], ["a", "b", "b"]) == [1.0, 0.0, 0.0]
    call(0, ["6", "5"], ["a", "a"])
    call(1, ["5"], ["b"])
    groups = record.groups()
    assert groups.prompt.tolist() == [5, 6, 5]
    assert groups.rollouts.tolist() == [2, 3, 1]
    assert groups.successes.tolist() == [2, 1, 0]
    assert groups.mixed.tolist() == [False, True, False]
    assert record.tokens == 12


def test_evaluation_steps_end_with_the_last(tmp_path):
    assert Settings(tmp_path, steps=7, eval_times=3).evaluation_steps == {2, 5, 7}
    assert Settings(tmp_path, steps=2, eval_times=10).evaluation_steps == {1, 2}
    assert Settings(tmp_path, eval_times=0).evaluation_steps == set()


def comparison(tmp_path, grpo, adaroll):
    result = DemoResult(Settings(tmp_path), builtin_problems(1, 24, 0), np.zeros(len(grpo)))
    for name, accuracy in (("grpo", grpo), ("adaroll", adaroll)):
        result.arms[name] = ArmResult(name, RolloutRecord().groups(), 0, [1.0], [(1, np.array(accuracy))])
    return result


def test_verdict_claims_nothing_within_the_error(tmp_path):
    text = verdict(comparison(tmp_path, [0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]))
    assert text.startswith("AdaRoll minus GRPO, held-out accuracy: +0.000 ± 0.408")
    assert text.endswith("not evidence of a difference.")


def test_verdict_warns_of_other_seeds_beyond_the_error(tmp_path):
    text = verdict(comparison(tmp_path, [0.0] * 20, [1.0] * 19 + [0.0]))
    assert "another seed" in text
    assert "not evidence" not in text


def test_both_arms_from_start_to_end(tmp_path, capsys):
    from adaroll_trl.cli import main

    options = "--steps 2 --prompts 4 --num-generations 4 --eval-prompts 12 --eval-samples 1 --eval-times 1"
    extra = "--probe-samples 4 --warm-up-steps 4 --max-completion-length 4 --rounds 2"
    assert main(["demo", *options.split(), *extra.split(), "--output-dir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "AdaRoll minus GRPO, held-out accuracy:" in output
    results = json.loads((tmp_path / "results.json").read_text())
    for arm in ("grpo", "adaroll"):
        groups = results["arms"][arm]["groups"]
        assert sum(groups["rollouts"]) == 2 * 4 * 4  # the same number of rollouts
        assert json.loads((tmp_path / arm / "training_args.json").read_text())["num_generations"] == 4
    pairs = [
        sorted(set(zip(one["groups"]["step"], one["groups"]["prompt"], strict=True)))
        for one in results["arms"].values()
    ]
    assert pairs[0] == pairs[1]  # and the same prompts in the same steps
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert "Training" in (tmp_path / "report.txt").read_text()
