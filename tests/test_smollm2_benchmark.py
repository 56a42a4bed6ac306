"""The arithmetic task and the benchmark on it: splits, resuming, and the figures of the report. Tiny model."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaroll_trl.tasks import get_task
from adaroll_trl.tasks.arithmetic import Arithmetic

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "smollm2"))

import report  # noqa: E402
import run  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402
import training  # noqa: E402

RECIPES = ROOT / "recipes" / "smollm2-135m-instruct" / "arithmetic"


# The task


def value_of(question: str) -> int:
    a, operator, b = question.split()
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]


@pytest.mark.parametrize("source", ["300", "300:7", "120:7:+-"])
def test_every_gold_answer_is_right_and_no_question_comes_twice(source):
    task = Arithmetic()
    rows = list(task.records("train", source))
    assert len(rows) == int(source.split(":")[0])
    assert len({row["prompt_id"] for row in rows}) == len(rows)
    for row in rows:
        assert int(row["answer"]) == value_of(row["question"])
        assert task.verify(f" {row['answer']}\n7 + 1 = 9", row["answer"])
        assert not task.verify(f" {int(row['answer']) + 1}", row["answer"])
        assert task.question_text(row).endswith(f"\n{row['question']} =")


def test_splits_share_no_sum_whatever_the_sources_and_the_order_of_the_operands():
    def unordered(split: str, source: str) -> set[tuple[str, ...]]:
        return {
            tuple(sorted(row["question"].split())) if "-" not in row["question"] else (row["question"],)
            for row in Arithmetic().records(split, source)
        }

    for first, second in (("2000:0", "1000:0"), ("2000:3", "1000:8")):
        assert not unordered("train", first) & unordered("test", second)


def test_the_solved_examples_are_not_asked():
    text = Arithmetic().question_text({"question": "1 + 1"})
    examples = [line.split(" = ")[0] for line in text.splitlines()[:-1]]
    asked = {row["question"] for split in ("train", "test") for row in Arithmetic().records(split, "2000")}
    assert examples
    assert not asked & set(examples)


def test_records_depend_on_the_seed_only():
    first, again, other = (list(Arithmetic().records("test", source)) for source in ("50:1", "50:1", "50:2"))
    assert first == again
    assert first != other


def test_operators_and_digits_are_spread():
    rows = [row["question"].split() for row in Arithmetic().records("train", "300")]
    shares = {operator: np.mean([row[1] == operator for row in rows]) for operator in "+-*"}
    assert all(0.25 < share < 0.42 for share in shares.values())
    assert {(row[1], len(row[0]), len(row[2])) for row in rows} >= {("+", 1, 1), ("+", 2, 2), ("-", 2, 2), ("*", 2, 1)}
    assert {row[1] for row in map(str.split, (r["question"] for r in Arithmetic().records("train", "30:0:*")))} == {
        "*"
    }


@pytest.mark.parametrize("completion", ["", "none", "-", "one", "\n", ",,", "9" * 10_000])
def test_no_text_is_too_strange(completion):
    assert Arithmetic().verify(completion, "12") is False


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("many", "source='many' is no arithmetic"),
        ("0", "source='0'"),
        ("20:x", "source='20:x'"),
        ("20:0:/", "20:0:/"),
        ("99999", "asks for 99999 records"),
    ],
)
def test_a_source_that_cannot_be_read_says_so(source, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        list(Arithmetic().records("train", source))


# Runs


@pytest.fixture
def patchy_grading(monkeypatch):
    """Half of the tiny model's noise counts as right, so that there is something to train on."""
    monkeypatch.setattr(Arithmetic, "verify", lambda self, completion, answer: sum(map(ord, completion)) % 2 == 0)


@dataclass(frozen=True)
class Interrupted(training.HeldOut):
    """Pulls the plug at its evaluation."""

    def evaluate(self, model: Any, processing_class: Any, task: Any) -> dict[str, Any]:
        raise KeyboardInterrupt


def options_of(model_dir: Path, results: Path, work: Path, **more: Any) -> argparse.Namespace:
    options = run.parse(["--model", str(model_dir), "--steps", "2", "--eval-problems", "6"])
    return argparse.Namespace(**{**vars(options), "results": results, "work": work, "seeds": [0], **more})


def test_an_interrupted_run_goes_on_from_its_checkpoint_as_if_nothing_had_been(model_dir, tmp_path, patchy_grading):
    task = get_task("arithmetic")
    words = ["--model_name_or_path", str(model_dir), "--max_steps", "5", "--save_steps", "2", "--disable_tqdm", "true"]
    held_out = training.HeldOut.of(task, None, 4, 2, max_tokens=5)
    recipe = RECIPES / "grpo.yaml"
    whole = training.run_recipe(recipe, tmp_path / "whole", words, held_out, [4, 5])

    folder = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        training.run_recipe(recipe, folder, words, Interrupted([], [], [], 2, 5), [4])
    assert [line["step"] for line in training.read_steps(folder)] == [1, 2, 3]
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "sec')  # the interruption hit a line
    resumed = training.run_recipe(recipe, folder, words, held_out, [4, 5])

    assert [step["step"] for step in resumed["steps"]] == [1, 2, 3, 4, 5]
    assert [step["groups"] for step in resumed["steps"]] == [step["groups"] for step in whole["steps"]]
    assert [step["log"]["grad_norm"] for step in resumed["steps"]] == pytest.approx(
        [step["log"]["grad_norm"] for step in whole["steps"]], rel=1e-3
    )
    assert any(step["log"]["grad_norm"] > 0 for step in whole["steps"])
    assert resumed["evaluations"]["5"]["right"] == whole["evaluations"]["5"]["right"]
    assert not list(folder.glob("checkpoint-*"))


def test_stored_runs_make_a_report_and_are_not_repeated(model_dir, tmp_path, patchy_grading):
    results = tmp_path / "docs" / "tiny"
    options = options_of(model_dir, results, tmp_path / "work")
    names = run.run_names("adaroll", options.seeds)
    assert run.missing_runs(names, results) == names == ["before", "grpo-seed0", "adaroll-seed0"]
    for name in names:
        run.run_one(name, options)
    assert run.missing_runs(names, results) == []

    before, runs = summary.read_runs(results)
    for arm in ("grpo", "adaroll"):
        stored = runs[0][arm]
        assert [sum(group[1] for group in step["groups"]) for step in stored["steps"]] == [48, 48]
        assert list(stored["evaluations"]) == ["1", "2"]
        assert all(0 < step["rollout_seconds"] < step["seconds"] for step in stored["steps"])
        assert all(step["tokens"] > 0 for step in stored["steps"])
    assert {group[1] for step in runs[0]["grpo"]["steps"] for group in step["groups"]} == {6}
    assert len({group[1] for step in runs[0]["adaroll"]["steps"] for group in step["groups"]}) > 1
    prompts = [[{group[0] for group in step["groups"]} for step in run_["steps"]] for run_ in runs[0].values()]
    assert prompts[0] == prompts[1], "both arms of a seed train on the same prompts in the same order"

    report.write_report(results)
    text = results.with_suffix(".md").read_text()
    start = summary.accuracy(before).value
    assert f"| - | 0 | pass@1 | {start:.3f} [" in text
    assert "| rollouts | 96 | 96 |" in text
    assert str(tmp_path) not in text + (results / "grpo-seed0.json").read_text()
    assert results.with_suffix(".png").stat().st_size > 10_000


def test_the_second_pair_is_equal_until_prompts_come_back_and_then_gives_to_those_with_signal(
    model_dir, tmp_path, monkeypatch
):
    """The second pair, on 8 prompts and three steps: one step a visit."""

    def verify(self: Arithmetic, completion: str, answer: str) -> bool:  # always, or half of the time
        return int(answer) % 2 == 1 or sum(map(ord, completion)) % 2 == 0

    monkeypatch.setattr(Arithmetic, "verify", verify)
    pair = run.PAIRS["repeated"]._replace(prompts=["--dataset_name", "8:0"], evaluations=3)
    monkeypatch.setitem(run.PAIRS, "repeated", pair)
    results = tmp_path / "docs" / "tiny"
    words = ["--prompts", "repeated", "--model", str(model_dir), "--steps", "3", "--eval-problems", "6"]
    options = run.parse([*words, "--results", str(results), "--work", str(tmp_path / "work"), "--seeds", "4"])
    names = run.run_names(pair.arm, options.seeds)
    assert names == ["before", "grpo-seed4", "progress_carry-seed4"]
    for name in names:
        run.run_one(name, options)

    _, runs = summary.read_runs(results)
    carried = summary.groups_of(runs[4]["progress_carry"])
    for step in (1, 2, 3):
        assert carried["rollouts"][carried["step"] == step].sum() == 48
        assert len(set(carried["prompt"][carried["step"] == step])) == 8
    assert summary.visits_of(carried).tolist() == [1] * 8 + [2] * 8 + [3] * 8
    assert [list(runs[4][arm]["evaluations"]) for arm in runs[4]] == [["1", "2", "3"]] * 2
    assert set(summary.groups_of(runs[4]["grpo"])["rollouts"]) == {6}
    assert runs[4]["progress_carry"]["steps"][0]["log"]["adaroll/rounds"] == 1
    always = np.array([value_of(prompt) % 2 == 1 for prompt in carried["prompt"]])
    assert set(carried["rollouts"][carried["step"] == 1]) == {6}, "nothing is known at the first visit"
    plain, ours = (runs[4][arm] for arm in ("grpo", "progress_carry"))
    assert plain["steps"][0]["groups"] == ours["steps"][0]["groups"]
    assert plain["steps"][0]["log"]["grad_norm"] == ours["steps"][0]["log"]["grad_norm"] > 0
    assert plain["evaluations"]["1"]["right"] == ours["evaluations"]["1"]["right"]
    later = carried["step"] > 1
    assert carried["rollouts"][later & always].max() < 6, "solved whenever it was asked"
    assert carried["rollouts"][later & ~always].min() > 6
    assert carried["rollouts"].min() >= 2

    report.write_report(results, "the command")
    text = results.with_suffix(".md").read_text()
    assert "    the command\n" in text
    assert "8 prompts, each 3 times" in text
    assert "## By visit" in text
    assert "AdaRoll-GRPO (progress) minus GRPO" in text
    assert "`mixed`" not in text


def test_a_failed_run_is_named_and_the_others_are_stored(tmp_path, monkeypatch):
    script = tmp_path / "stand_in.py"
    script.write_text(
        "import sys, pathlib\n"
        "name = sys.argv[sys.argv.index('--only') + 1]\n"
        f"pathlib.Path({str(tmp_path)!r}, name + '.json').touch() if name != 'grpo-seed0' else sys.exit('no')\n"
    )
    monkeypatch.setattr(run, "__file__", str(script))
    monkeypatch.setattr(sys, "argv", ["run.py"])
    options = argparse.Namespace(jobs=2, work=tmp_path / "work")
    assert run.run_all(["before", "grpo-seed0", "adaroll-seed0"], options) == ["grpo-seed0"]
    assert run.missing_runs(["before", "grpo-seed0", "adaroll-seed0"], tmp_path) == ["grpo-seed0"]


# Figures


def run_with(groups: list[list[list[Any]]], right: list[int]) -> dict[str, Any]:
    evaluation = {"samples": 4, "ids": ["1 + 1", "9 + 9"], "right": right, "completions": [], "cpu_seconds": 60.0}
    steps = [
        {
            "step": number + 1,
            "seconds": 10.0,
            "rollout_seconds": 4.0,
            "cpu_seconds": 6.0,
            "tokens": 7,
            "groups": rows,
            "log": {},
        }
        for number, rows in enumerate(groups)
    ]
    return {"steps": steps, "evaluations": {"9": evaluation, "10": evaluation}}


FIRST = run_with([[["1 + 2", 4, 0], ["3 + 4", 4, 2]], [["5 + 6", 4, 4], ["7 + 8", 4, 1]]], [1, 4])
SECOND = run_with([[["3 + 4", 2, 1], ["1 + 2", 6, 1]], [["7 + 8", 6, 3], ["5 + 6", 2, 2]]], [3, 2])


def test_signal_counts_prompts_and_rollouts_by_their_outcomes():
    assert summary.signal(FIRST) == {
        "prompts": 4,
        "rollouts": 16,
        "mixed": 0.5,
        "all_wrong": 0.25,
        "all_right": 0.25,
        "rollouts_in_mixed": 0.5,
        "size_of_mixed": 4,
        "steps_without": 0,
        "fewest": 4,
        "most": 4,
    }
    assert summary.signal(SECOND)["rollouts_in_mixed"] == pytest.approx(14 / 16)
    assert summary.signal(SECOND)["size_of_mixed"] == pytest.approx(14 / 3)
    assert summary.signal(run_with([[["1 + 2", 4, 0]], [["3 + 4", 4, 4]]], [0, 0]))["steps_without"] == 2
    assert summary.signal_difference(FIRST, SECOND).value == pytest.approx(0.25)


def test_a_prompt_without_rollouts_is_neither_right_nor_wrong_and_visits_are_told_apart():
    again = run_with([[["1 + 2", 6, 3], ["3 + 4", 2, 2]], [["3 + 4", 0, 0], ["1 + 2", 8, 2]]], [0, 0])
    figures = summary.signal(again)
    assert (figures["all_wrong"], figures["all_right"]) == (0.0, 0.25)
    assert (figures["mixed"], figures["fewest"]) == (0.5, 0)
    assert summary.visits_of(summary.groups_of(again)).tolist() == [1, 1, 2, 2]
    assert summary.by_visit(again) == [
        {"at_minimum": 0.5, "mixed": 0.5, "rollouts_in_mixed": 0.75},
        {"at_minimum": 0.5, "mixed": 0.5, "rollouts_in_mixed": 1.0},
    ]
    assert tables._rate(again, 1) == (pytest.approx(0.75), pytest.approx(0.25))


def test_over_seeds_the_seeds_are_the_sample():
    mean, half = summary.over_seeds([0.1, 0.2, 0.3])
    assert mean == pytest.approx(0.2)
    assert half == pytest.approx(4.302653 * 0.1 / np.sqrt(3))  # t with two degrees of freedom
    assert np.isnan(summary.over_seeds([0.1])[1])
    two = {"evaluations": {"1": FIRST["evaluations"]["9"], "2": SECOND["evaluations"]["9"]}}
    assert summary.over_evaluations(two).tolist() == [0.5, 0.75]


def test_differences_are_paired_by_problem():
    ends = [summary.last_evaluation(one) for one in (FIRST, SECOND)]
    change, error = summary.difference(*ends)
    assert change.value == pytest.approx(0.0)  # +1/2 and -1/2
    assert error == pytest.approx(np.std([0.5, -0.5], ddof=1) / np.sqrt(2))
    assert summary.difference(*ends, k=4)[0].value == pytest.approx(0.0)
    with pytest.raises(ValueError, match="cannot be paired"):
        summary.difference(ends[0], {**ends[1], "ids": ["9 + 9", "1 + 1"]})
    with pytest.raises(ValueError, match="cannot be paired"):
        summary.signal_difference(FIRST, run_with([[["1 + 2", 4, 0]]], [0, 0]))


def test_cost_adds_up_over_steps():
    figures = summary.cost(FIRST)
    assert (figures["tokens"], figures["step"], figures["rollouts"], figures["update"]) == (14, 10.0, 4.0, 6.0)
    assert (figures["cpu_minutes"], figures["wall_minutes"]) == pytest.approx((0.2, 1 / 3))
    assert figures["evaluation_cpu_minutes"] == 2.0


def test_the_reading_says_what_the_intervals_say():
    def arms(first: list[int], second: list[int]) -> dict[str, Any]:
        many = [run_with([[["1 + 2", 4, 2]]], right * 60) for right in (first, second)]
        for one in many:
            for evaluation in one["evaluations"].values():
                evaluation["ids"] = [str(number) for number in range(120)]
        return dict(zip(("grpo", "adaroll"), many, strict=True))

    before = summary.last_evaluation(arms([1, 1], [1, 1])["grpo"])
    level, ahead, behind = arms([2, 2], [2, 2]), arms([1, 1], [3, 3]), arms([3, 3], [1, 1])
    assert "Every interval holds zero" in report.reading(before, {0: level, 1: level})
    assert "ahead in every seed" in report.reading(before, {0: ahead, 1: ahead})
    assert "behind in every seed" in report.reading(before, {0: behind, 1: behind})
    assert "contradict" in report.reading(before, {0: ahead, 1: behind})
    assert "is ahead beyond what the choice of problems explains in some seeds, not in all" in report.reading(
        before, {0: ahead, 1: level}
    )


def test_a_folder_without_a_pair_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"needs before\.json and both arms"):
        summary.read_runs(tmp_path)
    (tmp_path / "before.json").write_text("{}")
    (tmp_path / "grpo-seed0.json").write_text(json.dumps({"seed": 0, "arm": "grpo"}))
    with pytest.raises(ValueError, match=r"needs before\.json and both arms"):
        summary.read_runs(tmp_path)
    for arm in ("adaroll", "progress_carry"):
        (tmp_path / f"{arm}-seed0.json").write_text(json.dumps({"seed": 0, "arm": arm}))
    with pytest.raises(ValueError, match=r"needs before\.json and both arms"):  # three are no pair
        summary.read_runs(tmp_path)


# GSM8K


def test_gsm8k_grades_what_stands_before_the_first_blank_line():
    import gsm8k

    task = gsm8k.ContinuedGSM8K()
    prompt = task.prompt({"question": "How many?"})
    assert prompt.startswith("Question: ")
    assert prompt.endswith("\n\nQuestion: How many?\nAnswer:")
    assert task.verify(" 2 + 2 = 4. #### 4\n\nQuestion: More?\nAnswer: #### 9", "4")
    assert not task.verify(" 2 + 2 = 5. #### 5\n\nQuestion: More?\nAnswer: #### 4", "4")


def test_gsm8k_keeps_row_numbers_only_and_goes_on_where_it_stopped(model_dir, tmp_path, monkeypatch):
    import gsm8k

    monkeypatch.setattr(
        gsm8k.ContinuedGSM8K, "verify", lambda self, completion, answer: sum(map(ord, completion)) % 2 == 0
    )
    monkeypatch.setattr(gsm8k, "CHUNK", 3)
    rows = [{"question": f"Ann has {n} pens. Twice as many?", "answer": f"Twice.\n#### {2 * n}"} for n in range(2, 60)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = {"data": tmp_path, "model": model_dir, "results": tmp_path / "out", "work": tmp_path / "work"}
    words |= {"problems": 8, "samples": 3, "max-tokens": 6, "steps": 2}
    arguments = [text for name, value in words.items() for text in (f"--{name}", str(value))]

    assert gsm8k.main([*arguments, "--only", "pass_rates"]) == 0
    rates = training.read_json(tmp_path / "out" / "pass_rates.json")
    assert len(set(rates["ids"])) == len(rates["right"]) == 8
    assert all(0 <= int(row) < len(rows) for row in rates["ids"])
    assert 0 < sum(rates["right"]) < 24

    kept = {path: path.read_bytes() for path in (tmp_path / "work").glob("pass-rates-*.json")}
    assert len(kept) == 3
    (tmp_path / "out" / "pass_rates.json").unlink()
    min(kept).unlink()
    assert gsm8k.main(arguments) == 0
    again = training.read_json(tmp_path / "out" / "pass_rates.json")
    assert (again["ids"], again["right"]) == (rates["ids"], rates["right"])

    for arm in ("grpo", "adaroll"):
        steps = training.read_json(tmp_path / "out" / f"{arm}.json")["steps"]
        assert [sum(group[1] for group in step["groups"]) for step in steps] == [32, 32]
        assert all(isinstance(group[0], int) for step in steps for group in step["groups"])
    report_text = (tmp_path / "out.md").read_text()
    everything = report_text + "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert "pens" not in everything
    assert "--max-tokens 6" in report_text
    assert f"{sum(rates['right'])} of 24 are right" in report_text
    assert (tmp_path / "out.png").stat().st_size > 5_000
