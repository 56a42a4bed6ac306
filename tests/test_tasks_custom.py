"""Data sets of a user's own: where rows come from, and tasks out of columns."""

from __future__ import annotations

import json

import pytest

from adaroll_trl.tasks import ColumnTask
from adaroll_trl.tasks.custom import pick_verifier
from adaroll_trl.tasks.sources import read_rows

ROWS = [
    {"question": f"{number} + 1?", "answer": f"<<x>>\n#### {number + 1}", "hard": f"Level {number}"}
    for number in range(8)
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# Sources


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_local_files_of_every_kind(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    elif suffix == ".json":
        path.write_text(json.dumps({"version": 1, "data": ROWS}))
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(ROWS)
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert read_rows(str(path)) == ROWS


@pytest.mark.parametrize(
    "name", ["train.jsonl", "Train.jsonl", "data/train-00000-of-00001.jsonl", "my/train_set.jsonl"]
)
def test_a_folder_has_a_file_for_each_split(tmp_path, name):
    write(tmp_path / name, ROWS[:3])
    write(tmp_path / "test.jsonl", ROWS[3:4])
    write(tmp_path / "valid.jsonl", ROWS[4:6])
    write(tmp_path / "training_log.jsonl", ROWS)  # "train", but not the word
    assert read_rows(str(tmp_path), "train") == ROWS[:3]
    assert read_rows(str(tmp_path), "test") == ROWS[3:4]
    assert read_rows(str(tmp_path), "validation") == ROWS[4:6]


def test_shards_are_one_split(tmp_path):
    for shard in range(2):
        write(tmp_path / f"test-0000{shard}-of-00002.jsonl", ROWS[shard : shard + 1])
    assert read_rows(str(tmp_path), "test") == ROWS[:2]


def test_folders_that_leave_it_open_name_what_is_there(tmp_path):
    with pytest.raises(ValueError, match=r"no file for the split 'train' \(there: no data files\)"):
        read_rows(str(tmp_path))
    write(tmp_path / "main" / "train.jsonl", ROWS)
    write(tmp_path / "other" / "train.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"several files .*main/train.jsonl, other/train.jsonl\). Name one file"):
        read_rows(str(tmp_path))


def test_a_data_set_that_was_saved(tmp_path):
    from datasets import Dataset, DatasetDict

    DatasetDict(train=Dataset.from_list(ROWS)).save_to_disk(str(tmp_path))
    assert read_rows(str(tmp_path)) == ROWS
    with pytest.raises(ValueError, match="has no split 'test'; it has 'train'"):
        read_rows(str(tmp_path), "test")


def test_a_file_of_the_other_split_is_refused(tmp_path):
    path = write(tmp_path / "test-set.jsonl", ROWS)
    with pytest.raises(ValueError, match="is called the test split, but the train split was asked for"):
        read_rows(path, "train")
    assert read_rows(path, "test") == ROWS
    assert read_rows(write(tmp_path / "testimony.jsonl", ROWS), "train") == ROWS


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        read_rows(str(tmp_path / "absent.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{not json\n")
    with pytest.raises(ValueError, match=r"cannot be read as \.jsonl"):
        read_rows(str(broken))
    (tmp_path / "rows.xml").write_text("<rows/>")
    with pytest.raises(ValueError, match="must end in one of"):
        read_rows(str(tmp_path / "rows.xml"))
    (tmp_path / "numbers.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="no records with named columns"):
        read_rows(str(tmp_path / "numbers.json"))


def test_a_hub_set_that_is_not_to_be_had_is_one_sentence(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no network\nand a long trace")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    with pytest.raises(
        ValueError, match=r"nobody/nothing:main' is neither a local file or folder .*: no network\. "
    ) as caught:
        read_rows("nobody/nothing:main")
    assert "\n" not in str(caught.value)


def test_a_hub_set_with_a_script_is_read_from_its_copy(monkeypatch):
    def load(name, config, *, split, revision=None):
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found set.py")
        return [{"name": name, "config": config, "split": split, "revision": revision}]

    monkeypatch.setattr("datasets.load_dataset", load)
    row = {"name": "a/set", "config": "main", "split": "test", "revision": "refs/convert/parquet"}
    assert read_rows("a/set:main", "test") == [row]


# Columns


def test_columns_with_usual_names(tmp_path):
    task = ColumnTask()
    data = task.load("train", write(tmp_path / "rows.jsonl", ROWS))
    assert data["answer"] == [str(number + 1) for number in range(8)]
    assert data["level"] == [1] * 8  # calculator spans
    assert data["hard"][3] == "Level 3"  # other columns stay
    assert data["prompt"][0][0]["content"].startswith("0 + 1?\n\nSolve it")
    assert "boxed" in data["prompt"][0][0]["content"]
    assert len(set(data["prompt_id"])) == 8
    assert task.verifier.name == "number"
    assert task.reward.__name__ == "answer_accuracy"
    assert task.reward(completions=["1,000", "\\boxed{3}"], answer=["1000", "2"]) == [1.0, 0.0]


def test_columns_by_name(tmp_path):
    rows = [{"body": "Is it?", "said": True, "key": 7, "hard": "Level 2"}, {"body": "Is he?", "said": False, "key": 8}]
    task = ColumnTask(
        "body", "said", id_column="key", level_column="hard", verifier="yes_no", instruction="Say yes or no."
    )
    data = task.load("test", write(tmp_path / "rows.jsonl", [rows[0], {**rows[1], "hard": None}]))
    assert data["answer"] == ["yes", "no"]
    assert data["prompt_id"] == ["7", "8"]
    assert data["level"] == [2, None]
    assert data["prompt"][1][0]["content"] == "Is he?\n\nSay yes or no."


def test_the_first_split_decides_on_the_verifier(tmp_path):
    task = ColumnTask()
    with pytest.raises(ValueError, match="load a split first, or name a verifier"):
        task.reward(completions=["1"], answer=["1"])
    task.load("train", write(tmp_path / "train.jsonl", [{"question": "a?", "answer": "red"}]))
    task.load("test", write(tmp_path / "test.jsonl", [{"question": "b?", "answer": "12"}]))
    assert task.verifier.name == "text"


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        (["1", "$2,000", "-3.5"], "number"),
        (["A", "c"], "letter"),
        (["yes", "False"], "yes_no"),
        (["12", r"\sqrt{2}"], "math"),
        (["A", "12"], "text"),
        (["red"], "text"),
    ],
)
def test_verifiers_follow_the_gold_answers(answers, name):
    assert pick_verifier(answers) == name


def test_conversations_stay_conversations(tmp_path):
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "1+1?"}]
    source = write(tmp_path / "rows.jsonl", [{"prompt": talk, "answer": "2"}])
    assert ColumnTask().load("train", source)["prompt"] == [talk]
    data = ColumnTask(instruction="In digits.").load("train", source)
    assert data["prompt"][0] == [talk[0], {"role": "user", "content": "1+1?\n\nIn digits."}]


def test_data_without_answers_is_for_rewards_of_ones_own(tmp_path):
    task = ColumnTask()
    data = task.load("train", write(tmp_path / "rows.jsonl", [{"prompt": "Tell a joke.", "topic": "cats"}]))
    assert data[0]["prompt"] == [{"role": "user", "content": "Tell a joke."}]
    assert data[0]["topic"] == "cats"
    with pytest.raises(ValueError, match=r"no answers to compare with; its columns are prompt, topic\. Name one"):
        _ = task.reward


def test_incomplete_rows_are_left_out_with_a_warning(tmp_path):
    rows = [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": None}, {"question": "", "answer": "3"}]
    with pytest.warns(UserWarning, match="2 of 3 rows have nothing in 'question' or 'answer'"):
        assert len(ColumnTask().load("train", write(tmp_path / "rows.jsonl", rows))) == 1
    with (
        pytest.warns(UserWarning, match="1 of 1 rows"),
        pytest.raises(ValueError, match="No row has something in 'question' and 'answer'"),
    ):
        ColumnTask().load("train", write(tmp_path / "rows.jsonl", rows[1:2]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_column": "body"}, "prompt_column='body': the data set has no such column; it has question, answer"),
        ({"answer_column": "said"}, "answer_column='said'"),
        ({"id_column": "key"}, "id_column='key'"),
        ({"level_column": "size"}, "level_column='size'"),
        ({"id_column": "answer"}, "id_column: '1' stands for two prompts, 'a\\?' and 'b\\?'"),
    ],
)
def test_bad_columns_are_named(tmp_path, given, message):
    source = write(tmp_path / "rows.jsonl", [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": "1"}])
    with pytest.raises(ValueError, match=message):
        ColumnTask(**given).load("train", source)


def test_what_a_column_task_needs(tmp_path):
    with pytest.raises(ValueError, match=r"verifier='numbers' is not known\. Use one of 'number', 'math'"):
        ColumnTask(verifier="numbers")
    with pytest.raises(ValueError, match="needs a source"):
        ColumnTask().load()
    source = write(tmp_path / "rows.jsonl", [{"x": "1", "y": "2"}])
    with pytest.raises(ValueError, match=r"columns \(x, y\) has a usual name for the question: say prompt_column"):
        ColumnTask().load("train", source)


def test_one_question_with_two_answers_is_two_prompts(tmp_path):
    rows = [{"question": "x?", "answer": gold} for gold in ("1", "2", "1")] + [{"question": "y?", "answer": "1"}]
    first, second, third, other = ColumnTask().load("train", write(tmp_path / "rows.jsonl", rows))["prompt_id"]
    assert first == third
    assert len({first, second, other}) == 3
    alone = ColumnTask().load("train", write(tmp_path / "alone.jsonl", rows[3:]))["prompt_id"]
    assert alone == [other]  # the same in every set


def test_a_list_is_no_gold_answer(tmp_path):
    rows = [{"question": "x?", "answer": ["1", "2"]}]
    with pytest.raises(
        ValueError, match=r"answer_column='answer' holds \['1', '2'\], but a gold answer must be one text"
    ):
        ColumnTask().load("train", write(tmp_path / "rows.jsonl", rows))
