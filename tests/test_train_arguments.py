"""`adaroll train` before a model is loaded: parsing, what is refused, rewards and data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaroll_trl.training.arguments import parse
from adaroll_trl.training.resolve import resolve
from tests.tiny import parity_reward, sums_dataset

BASE = ["--use_cpu", "--bf16", "false", "--report_to", "none", "--num_generations", "4"]
ARITHMETIC = ("--task", "arithmetic", "--dataset_name", "60")
BASE += ["--per_device_train_batch_size", "4", "--steps_per_generation", "3", "--max_completion_length", "8"]


def resolved(*words: str, model: str = "some-model") -> Any:
    """Everything but the model, from a command line; `model` is not loaded."""
    return resolve(*parse([*BASE, "--output_dir", "unused", "--model_name_or_path", model, *words]))


def rows_file(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def write(**settings: Any) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(settings))
        return str(path)

    return write


# Parsing


def test_the_command_line_wins_over_the_recipe(recipe, tmp_path, monkeypatch):
    monkeypatch.delenv("ADAROLL_TEST_VARIABLE", raising=False)
    path = recipe(
        env={"ADAROLL_TEST_VARIABLE": 3},
        task="arithmetic",
        rounds=2,
        learning_rate=3e-6,
        use_peft=True,
        reward_funcs="think_format_reward",
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
    )
    for words in (["--config", path, "--rounds", "5"], [f"--config={path}", "--rounds=5"]):
        script, config, model = parse(words)
        assert (script.task, script.trainer, script.reward_funcs) == ("arithmetic", "adaroll", ["think_format_reward"])
        assert (config.rounds, config.learning_rate) == (5, 3e-6)
        assert model.use_peft
    assert os.environ["ADAROLL_TEST_VARIABLE"] == "3"
    monkeypatch.delenv("ADAROLL_TEST_VARIABLE")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"taks": "gsm8k"}, "'taks', which is no option. Did you mean 'task'"),
        ({"max_rollout": 9}, "'max_rollout', which is no option. Did you mean 'max_rollouts'"),
        ({"num_generations": "four"}, "has num_generations: 'four', which must be an integer"),
        ({"num_generations": 4.5}, "has num_generations: 4.5, which must be an integer"),
        ({"learning_rate": [1]}, r"has learning_rate: \[1\], which must be a number"),
        ({"trainer": "ppo"}, "trainer='ppo' is not known"),
        ({"max_train_samples": 0}, "max_train_samples=0 must be an integer of at least 1"),
    ],
)
def test_a_bad_recipe_names_the_key(recipe, settings, message):
    with pytest.raises(ValueError, match=message):
        parse(["--config", recipe(**settings)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: gsm8k\nrounds: [1\n", "recipe.yaml' is no valid YAML, line 3: "),
        ("task: !own gsm8k\n", "recipe.yaml' is no valid YAML, line 1: could not determine a constructor"),
        ("rounds: 2\ntask: gsm8k\nrounds: 3\n", "recipe.yaml' has 'rounds' twice, in lines 1 and 3"),
        ("env:\n  A: 2\n  A: 3\n", "recipe.yaml' has 'A' twice, in lines 2 and 3"),
    ],
)
def test_a_bad_file_is_named_with_the_line(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        parse(["--config", str(path)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--min_rollout=3"], "'--min_rollout=3' is no option. Did you mean '--min_rollouts'"),
        (["--max_step", "5"], "'--max_step' is no option. Did you mean '--max_steps'"),
        (["--num_generations=four"], "argument --num_generations.*: invalid int value: 'four'"),
        (["--config"], "--config is the last word"),
        (["--assume_processes", "2"], "assume_processes=2 has no effect without dry_run"),
    ],
)
def test_a_bad_command_line_names_the_word(words, message):
    with pytest.raises(ValueError, match=message):
        parse([*BASE, *words])


def test_a_dry_run_counts_processes_that_are_not_there(monkeypatch):
    words = [*BASE, "--dry-run", "--output_dir", "unused"]
    assert parse([*words, "--assume_processes", "6"])[1].generation_batch_size == 4 * 6 * 3
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert parse(words)[1].generation_batch_size == 4 * 2 * 3
    with pytest.raises(ValueError, match=r"per_device_train_batch_size=4 x 5 processes x steps_per_generation=3 .*"):
        parse([*words, "--num_generations", "8", "--assume_processes", "5"])
    # A plan for a GPU can be made where there is none
    assert parse([*words, "--bf16", "true", "--use_cpu", "false"])[1].bf16


# Options without effect


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainer", "grpo", "--rounds", "2"], "rounds=2 has no effect with trainer='grpo'.*--rounds 1"),
        (["--trainer", "grpo", "--allocator", "uniform"], "allocator='uniform' has no effect with trainer='grpo'"),
        (["--utility", "mixed", "--kappa", "3"], "No effect with allocator='adaroll' and utility='mixed': kappa=3.0"),
        (["--prompt_column", "q"], "prompt_column='q' has no effect with task='arithmetic'"),
        (["--verifier", "number"], "verifier='number' has no effect with task='arithmetic'"),
        (["--dataset_streaming"], "dataset_streaming=True has no effect here"),
        (["--streaming"], "streaming=True has no effect without `datasets`"),
        (["--soft_punish_cache", "2"], "soft_punish_cache=2 has no effect without 'get_soft_overlong_punishment'"),
        (["--max_eval_samples", "2"], "max_eval_samples=2 has no effect with eval_strategy='no'"),
        (["--lora_r", "8"], "lora_r=8 has no effect without use_peft"),
        (["--use_dora"], "use_dora=True has no effect without use_peft"),
        (["--use_bnb_nested_quant"], "use_bnb_nested_quant=True has no effect without load_in_4bit"),
        (["--load_in_4bit"], "load_in_4bit=True needs use_peft"),
        (["--ignore_bias_buffers"], "ignore_bias_buffers=True has no effect"),
        (["--generation_kwargs", '{"seed": 3}'], "generation_kwargs has seed=3"),
        (["--max_train_samples", "3000"], "max_train_samples=3000: split 'train' has 60 rows"),
        (["--success_reward", "nothing"], "success_reward='nothing' is not a reward function"),
        (["--reward_weights", "1", "2"], r"reward_weights=\[1.0, 2.0\] has 2 numbers for 1 rewards"),
    ],
)
def test_an_option_without_effect_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        resolved(*ARITHMETIC, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model_name_or_path", "/nowhere"], "model_name_or_path='/nowhere': there is no such folder"),
        (["--model_name_or_path", "outputs/no/such"], "model_name_or_path='outputs/no/such': there is no such folder"),
        (["--reward_model_name_or_path", "./no"], "reward_model_name_or_path='./no': there is no such folder"),
        (["--dataset_name", "/nowhere"], "'/nowhere': there is no such file or folder"),
        (["--max_completion_length", "0"], "max_completion_length=0 must be at least 1"),
        (["--learning_rate", "-1"], "learning_rate=-1.0 must be a finite number of at least 0"),
        (["--learning_rate", "nan"], "learning_rate=nan must be a finite number"),
        (["--warmup_steps", "-1"], "warmup_steps = -1"),
    ],
)
def test_a_dry_run_refuses_what_could_not_start(words, message):
    with pytest.raises(ValueError, match=message):
        resolved("--dry_run", "--task", "gsm8k", *words)


def test_a_dry_run_waits_for_a_file_that_a_recipe_wants():
    run = resolved("--dry_run", "--task", "colota", "--dataset_name", "data/colota/no_such_file.json")
    assert run.missing.startswith("This run cannot start until its data is there: ")
    with pytest.raises(ValueError, match="there is no such file"):
        resolved("--task", "colota", "--dataset_name", "data/colota/no_such_file.json")


def test_quantisation_without_bitsandbytes_says_what_to_install(monkeypatch):
    monkeypatch.setattr("adaroll_trl.training.refusals.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="load_in_4bit=True needs the package bitsandbytes: `pip install"):
        resolved(*ARITHMETIC, "--use_peft", "--load_in_4bit")


def test_a_model_and_data_are_needed():
    with pytest.raises(ValueError, match="There is nothing to train on: give `task`"):
        resolved()
    with pytest.raises(ValueError, match="dataset_config='main' has no effect without dataset_name"):
        resolved("--task", "arithmetic", "--dataset_config", "main")
    with pytest.raises(ValueError, match="model_name_or_path is missing"):
        resolve(*parse([*BASE, "--task", "arithmetic"]))


# Rewards


def reward_names(run: Any) -> list[str]:
    from adaroll_trl.training.rewards import reward_name

    return [reward_name(reward) for reward in run.rewards]


def test_rewards_by_name_and_by_path():
    run = resolved(
        *(*ARITHMETIC, "--reward_weights", "1", "0.5", "0.1", "0.2"),
        *("--reward_model_name_or_path", "some/judge", "--reward_funcs", "arithmetic_accuracy"),
        *("think_format_reward", "tests.tiny.parity_reward"),
    )
    assert reward_names(run) == ["judge", "arithmetic_accuracy", "think_format_reward", "parity_reward"]
    assert run.rewards[3] is parity_reward
    assert resolved(*ARITHMETIC, "--reward_funcs", "tests.tiny:parity_reward").rewards == [parity_reward]


def test_the_overlong_punishment_takes_its_lengths_from_the_run():
    words = (*ARITHMETIC, "--reward_funcs", "get_soft_overlong_punishment", "--max_completion_length")
    lengths = [[0] * 80, [0] * 81, [0] * 90, [0] * 100]
    assert resolved(*words, "100").rewards[0](completion_ids=lengths) == [0.0, -0.05, -0.5, -1.0]
    halved = resolved(*words, "100", "--soft_punish_cache", "50").rewards[0]
    assert halved(completion_ids=[[0] * 50, [0] * 75]) == [0.0, -0.5]
    with pytest.raises(ValueError, match="soft_punish_cache=100 must be below max_completion_length=100"):
        resolved(*words, "100", "--soft_punish_cache", "100")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["acuracy"], "'acuracy' is not known. Use 'arithmetic_accuracy', 'accuracy_reward'"),
        (["no_module.reward"], "reward_funcs='no_module:reward' cannot be loaded"),
        (["os.sep"], "'os.sep' is str, not a function"),
        (["arithmetic_accuracy", "arithmetic_accuracy"], "has a reward twice"),
        (["accuracy_reward"], "'accuracy_reward' cannot be called: missing a required argument: 'solution'"),
        (["trl.rewards.get_cosine_scaled_reward"], "'get_cosine_scaled_reward' cannot be called"),
    ],
)
def test_a_reward_that_cannot_work_is_refused_before_the_model_is_loaded(names, message):
    with pytest.raises(ValueError, match=message):
        resolved(*ARITHMETIC, "--reward_funcs", *names)


def test_success_is_accuracy_beside_shaping_rewards():
    both = (*ARITHMETIC, "--reward_funcs", "get_soft_overlong_punishment", "arithmetic_accuracy")
    run = resolved(*both)
    assert run.config.success_reward == "arithmetic_accuracy"
    assert "arithmetic_accuracy (of 2 rewards the one of accuracy" in run.success
    own = resolved(*both, "--success_reward", "soft_overlong_punishment_reward")
    assert own.config.success_reward == "soft_overlong_punishment_reward"
    assert resolved(*ARITHMETIC).config.success_reward is None
    assert resolved(*both, "--trainer", "grpo").config.success_reward is None  # would be an option without effect


# Data


def test_columns_make_a_task(tmp_path):
    rows = [{"q": f"{i} + 1", "gold": i + 1} for i in range(5)]
    run = resolved("--dataset_name", rows_file(tmp_path, rows), "--prompt_column", "q", "--answer_column", "gold")
    assert len(run.train_dataset) == 5
    assert run.train_dataset[1]["prompt"][0]["content"].startswith("1 + 1")
    assert reward_names(run) == ["answer_accuracy"]
    graded = run.rewards[0](completions=["it is 2", "it is 3"], answer=["2", "2"])
    assert graded == [1.0, 0.0]
    words = ["--dataset_name", rows_file(tmp_path, rows), "--prompt_column", "q", "--verifier", "number"]
    with pytest.raises(ValueError, match="verifier='number' has no effect beside reward_funcs"):
        resolved(*words, "--reward_funcs", "tests.tiny:parity_reward")


def test_prompts_with_rewards_of_ones_own_pass_through(tmp_path):
    mine = ("--reward_funcs", "tests.tiny:parity_reward")
    path = rows_file(tmp_path, [{"prompt": f"{i}?", "number": i} for i in range(6)])
    data = resolved("--dataset_name", path, *mine, "--max_train_samples", "4").train_dataset
    assert data.to_dict() == {"prompt": ["0?", "1?", "2?", "3?"], "number": [0, 1, 2, 3]}
    saved = tmp_path / "saved"
    sums_dataset(4).save_to_disk(str(saved))
    assert resolved("--dataset_name", str(saved), *mine).train_dataset.column_names == ["prompt", "number"]
    with pytest.raises(ValueError, match="split 'dev': the data set has the splits 'train'"):
        resolved("--dataset_name", path, *mine, "--dataset_train_split", "dev")
    bare = rows_file(tmp_path, [{"text": "1?"}])
    with pytest.raises(ValueError, match=r"has no column 'prompt'; it has 'text'. Say which .* prompt_column"):
        resolved("--dataset_name", bare, *mine)
    with pytest.raises(ValueError, match=r"dataset_name='./none.jsonl': there is no such file"):
        resolved("--dataset_name", "./none.jsonl", *mine)


def test_a_mixture_and_its_test_split(tmp_path, recipe):
    path = rows_file(tmp_path, [{"prompt": f"{i}?"} for i in range(8)])
    part = {"path": "json", "data_files": path}
    config = recipe(datasets=[part, {**part, "columns": ["prompt"]}], test_split_size=0.25)
    words = ("--config", config, "--reward_funcs", "tests.tiny:parity_reward")
    run = resolved(*words, "--eval_strategy", "steps", "--eval_steps", "1", "--max_eval_samples", "3")
    assert (len(run.train_dataset), len(run.eval_dataset)) == (12, 3)
    with pytest.raises(ValueError, match="dataset_name='x' has no effect beside `datasets`"):
        resolved(*words, "--dataset_name", "x")


def test_an_evaluation_split_is_loaded_only_where_it_is_used():
    assert resolved(*ARITHMETIC).eval_dataset is None
    run = resolved(*ARITHMETIC, "--eval_strategy", "steps", "--eval_steps", "1")
    assert not {*run.eval_dataset["prompt_id"]} & {*run.train_dataset["prompt_id"]}


def test_the_training_rows_are_no_evaluation_split(tmp_path):
    path = rows_file(tmp_path, [{"q": f"{i} + 1", "a": str(i + 1)} for i in range(6)])
    words = ("--dataset_name", path, "--prompt_column", "q", "--answer_column", "a")
    assert len(resolved(*words).train_dataset) == 6
    with pytest.raises(
        ValueError, match=r"first rows of the evaluation split 'test' are in the training split 'train'"
    ):
        resolved(*words, "--eval_strategy", "steps", "--eval_steps", "1")
