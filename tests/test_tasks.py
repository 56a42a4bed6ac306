"""The data sets: what their loaders read from small samples and from the published files, and the rewards."""

from __future__ import annotations

import doctest
import json
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from adaroll_trl.tasks import TASK_NAMES, Task, completion_text, get_task
from adaroll_trl.tasks.gsm8k import GSM8K
from adaroll_trl.tasks.logiqa import in_label_order
from adaroll_trl.tasks.sources import read_rows

SAMPLES = Path(__file__).parent / "data"
PUBLISHED = Path(__file__).parents[2] / "shared" / "data"  # beside the repository, where somebody put it

# task, split, file, records, distinct prompts
SETS = [
    ("gsm8k", "train", "gsm8k/train.jsonl", 7_473, 7_473),
    ("gsm8k", "test", "gsm8k/test.jsonl", 1_319, 1_319),
    ("logiqa", "validation", "logiqa/Eval.txt", 651, 651),
    ("logiqa", "test", "logiqa/Test.txt", 651, 651),
    ("colota", "train", "colota/CoLoTa_qa.json", 1_521, 1_509),
    ("colota", "test", "colota/CoLoTa_qa.json", 170, 169),
]
SMALL = [
    ("gsm8k", "train", "gsm8k", 4),
    ("gsm8k", "test", "gsm8k", 2),
    ("math", "train", "math", 7),
    ("math", "test", "math", 2),
    ("math", "train", "math_files", 3),
    ("logiqa", "train", "logiqa", 3),
    ("logiqa", "validation", "logiqa", 1),
    ("logiqa", "test", "logiqa", 2),
    ("colota", "train", "colota", 21),
    ("colota", "test", "colota", 2),
]

# How a right answer may be worded, beside the form that the prompt asks for.
OTHER_FORMS = {
    "gsm8k": lambda gold: f"So it is ${float(gold):,.2f} in all.",
    "math": lambda gold: f"The answer is ${gold}$.",
    "logiqa": lambda gold: f"The correct option is **({gold.lower()})**.\n",
    "colota": lambda gold: f"{ {'yes': 'True', 'no': 'False'}[gold] }, as far as I know.",
}
ASKED_FORMS = {
    "gsm8k": lambda gold: f"First 3, then $\\boxed{{{gold}}}$.",
    "math": lambda gold: f"First $\\boxed{{0.123}}$, then $\\boxed{{{gold}}}$.",
    "logiqa": lambda gold: f"Not A.\nAnswer: {gold}",
    "colota": lambda gold: f"Yes and no.\nAnswer: {gold.capitalize()}",
}
WRONG = {
    "gsm8k": lambda gold: f"{float(gold) + 1:g}",
    "math": lambda gold: "0.123",
    "logiqa": lambda gold: "ABCD"["BCDA".index(gold)],
    "colota": lambda gold: {"yes": "no", "no": "yes"}[gold],
}


def published(file: str) -> str:
    path = PUBLISHED / file
    if not path.is_file():
        pytest.skip(f"needs {file}, a published data set that is not part of the repository")
    return str(path)


def check_every_gold_answer(task: Task, name: str, answers: list[str]) -> None:
    for gold in set(answers):
        assert task.readable(gold), gold
        assert task.verify(ASKED_FORMS[name](gold), gold), gold
        assert task.verify(OTHER_FORMS[name](gold), gold), gold
        assert not task.verify(ASKED_FORMS[name](WRONG[name](gold)), gold), gold
        assert not task.verify("", gold)
        assert task.extract(ASKED_FORMS[name](gold)) is not None


@pytest.mark.parametrize(
    "module", ["answers", "base", "custom", "logiqa", "mathematics", "sources", "verifiers", "competition_math"]
)
def test_examples_in_docstrings(module):
    assert doctest.testmod(import_module(f"adaroll_trl.tasks.{module}")).failed == 0


@pytest.mark.parametrize(("name", "split", "file", "count", "distinct"), SETS)
def test_published_files(name, split, file, count, distinct):
    source, task = published(file), get_task(name)
    data = task.load(split, source)
    assert len(data) == count
    assert len(set(data["prompt_id"])) == distinct == len({json.dumps(prompt) for prompt in data["prompt"]})
    assert all([message["role"] for message in prompt] == ["user"] for prompt in data["prompt"])
    check_every_gold_answer(task, name, data["answer"])


@pytest.mark.parametrize(("name", "split", "folder", "count"), SMALL)
def test_samples(name, split, folder, count):
    task = get_task(name)
    data = task.load(split, str(SAMPLES / folder))
    assert len(data) == count
    assert set(data.column_names) >= {"prompt", "answer", "prompt_id"}
    assert task.instruction
    for prompt in data["prompt"]:
        assert prompt[-1]["content"].endswith(task.instruction)
    check_every_gold_answer(task, name, data["answer"])


# GSM8K


def test_gsm8k_solutions_are_right_as_completions():
    task = get_task("gsm8k")
    for split in ("train", "test"):
        for row in read_rows(published(f"gsm8k/{split}.jsonl"), split):
            gold = row["answer"].rsplit("####", 1)[1].strip()
            assert task.verify(row["answer"], gold), row["answer"]


def test_gsm8k_gold_numbers_and_levels():
    data = get_task("gsm8k").load("train", str(SAMPLES / "gsm8k"))
    assert data["answer"] == ["27", "17400", "-5", "2.5"]
    assert data["level"] == [2, 1, 1, 0]


def test_prompt_ids_depend_on_the_question_only(tmp_path):
    data = get_task("gsm8k").load("train", str(SAMPLES / "gsm8k"))
    lines = (SAMPLES / "gsm8k" / "train.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join(reversed(lines)))
    again = get_task("gsm8k").load("test", str(tmp_path / "some.jsonl"), instruction="Be brief.")
    assert again["prompt_id"] == data["prompt_id"][::-1]
    assert again["prompt"][0][0]["content"].endswith("Be brief.")
    assert (
        get_task("gsm8k")
        .load("train", str(SAMPLES / "gsm8k"), instruction="")["prompt"][3][0]["content"]
        .endswith("in m?")
    )


# MATH


def test_math_answers_and_levels():
    data = get_task("math").load("train", str(SAMPLES / "math"))
    assert data["answer"][:3] == [r"\frac{1}{2}", "(-2,2)", r"3\text{ metres}"]
    assert data["answer"][5:] == [r"\sqrt{\left(\frac{4}{2}\right)}", "7"]
    assert data["level"] == [1, 3, 2, None, 4, 5, 1]
    assert get_task("math").load("test", str(SAMPLES / "math"))["answer"] == [r"90^\circ", "12_8"]


def test_math_in_one_file_a_problem_is_the_same_data():
    one, other = (get_task("math").load("train", str(SAMPLES / name)) for name in ("math", "math_files"))
    assert set(other["prompt_id"]) <= set(one["prompt_id"])
    assert other["level"] == [4, 5, 2]  # in the order of subjects and numbers


def test_math_defaults_to_the_train_set_and_to_math_500(monkeypatch):
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split))
        return [{"problem": "p", "solution": r"\boxed{1}", "level": "Level 1"}]

    monkeypatch.setattr("datasets.load_dataset", load)
    get_task("math").load("train")
    get_task("math").load("test")
    assert asked == [
        ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
        ("HuggingFaceH4/MATH-500", None, "test"),
    ]
    asked.clear()
    assert len(get_task("math").load("test", "EleutherAI/hendrycks_math")) == 7
    assert asked[0] == ("EleutherAI/hendrycks_math", "algebra", "test")


def test_a_solution_without_a_box_is_refused(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"problem": "p", "solution": "It is 5."}))
    with pytest.raises(ValueError, match="solution of 'p' has no"):
        get_task("math").load("train", str(tmp_path))


# LogiQA


def test_logiqa_options_stand_behind_their_own_labels():
    data = get_task("logiqa").load("train", str(SAMPLES / "logiqa"))
    assert data["answer"] == ["B", "C", "A"]
    assert "\nA. Ben\nB. Cem\nC. Ann\nD. Nobody\n" in data["prompt"][1][0]["content"]
    assert "\nA. Sunshine\nB. Rain\nC. Snow\nD. Fog\n" in data["prompt"][2][0]["content"]
    validation = get_task("logiqa").load("validation", str(SAMPLES / "logiqa"))
    assert "\nA. Both\nB. City B.Q\nC. Neither\nD. City C.Q\n" in validation["prompt"][0][0]["content"]


def test_logiqa_traps_of_the_published_files():
    without = permuted = 0  # records in which an option does not begin with its own letter
    for file in ("Eval.txt", "Test.txt"):
        lines = Path(published(f"logiqa/{file}")).read_text(encoding="utf-8").split("\n")
        for start in range(0, len(lines) - 7, 8):
            options = lines[start + 4 : start + 8]
            labels = [option[0] if option[1:2] == "." and option[0] in "ABCD" else None for option in options]
            without += labels != list("ABCD")
            if labels == ["A", "C", "B", "D"]:
                permuted += 1
                assert in_label_order(options) == [options[place][2:].strip() for place in (0, 2, 1, 3)]
    assert (without, permuted) == (42, 19)


def test_logiqa_from_the_hub_has_places_for_answers(monkeypatch):
    row = {"context": "c", "query": "q", "options": ["w", "x", "y", "z"], "correct_option": 2}
    monkeypatch.setattr("datasets.load_dataset", lambda name, config, *, split: [row])
    data = get_task("logiqa").load("test")
    assert data["answer"] == ["C"]
    assert data["prompt"][0][0]["content"].startswith("c\nq\nA. w\nB. x\nC. y\nD. z")
    monkeypatch.setattr("datasets.load_dataset", lambda name, config, *, split: [row | {"correct_option": 4}])
    with pytest.raises(ValueError, match="correct_option=4 must be 0, 1, 2 or 3"):
        get_task("logiqa").load("test")


def test_logiqa_text_of_another_shape_is_refused(tmp_path):
    (tmp_path / "Train.txt").write_text("\na\nc\nq\nA.1\nB.2\nC.3\n")
    with pytest.raises(ValueError, match="7 lines; a record has 8"):
        get_task("logiqa").load("train", str(tmp_path))
    (tmp_path / "Train.txt").write_text("\ne\nc\nq\nA.1\nB.2\nC.3\nD.4\n")
    with pytest.raises(ValueError, match="a letter a to d, not 'e'"):
        get_task("logiqa").load("train", str(tmp_path))


# CoLoTa


@pytest.mark.parametrize("published_file", [False, True])
def test_colota_splits_share_no_question(published_file):
    source = published("colota/CoLoTa_qa.json") if published_file else str(SAMPLES / "colota")
    train, test = (get_task("colota").load(split, source) for split in ("train", "test"))
    assert not set(train["prompt_id"]) & set(test["prompt_id"])
    everything = [*train["answer"], *test["answer"]]
    if published_file:
        assert Counter(everything) == {"yes": 837, "no": 854}  # S39 is the 854th
        assert Counter(test["answer"]) == {"yes": 84, "no": 86}
    else:
        assert len(everything) == 23


def test_colota_traps():
    rows = {
        row["prompt"][0]["content"].split("\n")[0]: row
        for split in ("train", "test")
        for row in get_task("colota").load(split, str(SAMPLES / "colota"))
    }
    assert rows["Did the mill run for 50 years?"]["answer"] == "no"  # S39
    first = rows["Was the first bridge older than the second?"]
    second = rows["Was the second bridge older than the first?"]
    assert first["prompt_id"] != second["prompt_id"]  # S200, twice
    assert len(rows) == 22  # one question of 23 records is there twice


def test_colota_split_does_not_depend_on_the_order(tmp_path):
    rows = json.loads((SAMPLES / "colota" / "CoLoTa_qa.json").read_text())
    (tmp_path / "CoLoTa_qa.json").write_text(json.dumps(rows[::-1]))
    one, other = (get_task("colota").load("test", str(folder)) for folder in (SAMPLES / "colota", tmp_path))
    assert set(one["prompt_id"]) == set(other["prompt_id"])


def test_colota_refuses_other_texts_for_answers(tmp_path):
    (tmp_path / "CoLoTa_qa.json").write_text(json.dumps([{"id": "S1", "query": "Is it?", "answer": "maybe"}]))
    with pytest.raises(ValueError, match="answer='maybe' of 'Is it\\?' must be true or false"):
        get_task("colota").load("train", str(tmp_path))


# Errors


@pytest.mark.parametrize("name", ["math", "gsm8k", "logiqa"])
def test_a_missing_set_is_one_error_that_names_both_ways(name):
    with pytest.raises(
        ValueError, match=r"HF_HUB_OFFLINE is set.*Give a Hub id or a local path.*folder with"
    ) as caught:
        get_task(name).load("test")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"there is no such file or folder\. Give a Hub id or a local path"):
        get_task(name).load("test", "./nowhere")


def test_colota_has_no_hub_id():
    with pytest.raises(ValueError, match=r"local path of that file or of its folder, or a Hub id"):
        get_task("colota").load("train")


def test_splits_that_are_not_there():
    with pytest.raises(ValueError, match="split='validation': the task 'gsm8k' has 'train', 'test'"):
        get_task("gsm8k").load("validation", str(SAMPLES / "gsm8k"))


def test_a_record_without_a_column_names_the_others(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"q": "1+1?", "answer": "#### 2"}))
    with pytest.raises(ValueError, match="a record has no 'question'; it has 'q', 'answer'"):
        get_task("gsm8k").load("train", str(tmp_path))
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "two"}))
    with pytest.raises(ValueError, match="'two' of '1\\+1\\?' ends on no number"):
        get_task("gsm8k").load("train", str(tmp_path))


# Rewards


def test_rewards_of_texts_and_conversations():
    reward = get_task("gsm8k").reward
    assert reward.__name__ == "gsm8k_accuracy"
    said = [{"role": "assistant", "content": "\\boxed{12}"}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "12."}]}]
    call = [
        {"role": "assistant", "content": "12", "tool_calls": [{"type": "function"}]},
        {"role": "tool", "content": "12"},
    ]
    completions = ["so 12", "so 13", said, parts, call, [*call, *said], [], [{"role": "assistant", "content": None}]]
    rewards = reward(prompts=[""] * 8, completions=completions, answer=["12"] * 8, level=[1] * 8)
    assert rewards == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert completion_text(call) == ""


def test_a_gold_answer_that_cannot_be_read_gives_no_reward():
    assert get_task("gsm8k").reward(completions=["12", "12"], answer=["twelve", "12"]) == [None, 1.0]
    assert get_task("math").reward(completions=["\\boxed{1}"] * 3, answer=["", r"\frac{1}{", "1"]) == [None, None, 1.0]


# Tasks by name


class Mine(GSM8K):
    """A task of a user's own."""

    name = "mine"


MINE = Mine()
NOT_A_TASK = "gsm8k"


def test_tasks_by_dotted_path():
    assert get_task("tests.test_tasks:MINE") is MINE
    assert isinstance(get_task("tests.test_tasks:Mine"), Mine)
    assert get_task("tests.test_tasks:Mine").reward.__name__ == "mine_accuracy"
    with pytest.raises(ValueError, match="is str, not a Task"):
        get_task("tests.test_tasks:NOT_A_TASK")
    with pytest.raises(ValueError, match="cannot be loaded"):
        get_task("tests.test_tasks:Nothing")
    with pytest.raises(ValueError, match="task='gsm9k' is not a task: use one of 'math', 'gsm8k'"):
        get_task("gsm9k")
    assert set(TASK_NAMES) >= {"math", "gsm8k", "logiqa", "colota", "arithmetic"}
