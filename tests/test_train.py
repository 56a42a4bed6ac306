"""`adaroll train` and its dry run: the plan's numbers are those of the run, and the run trains."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from peft import PeftModel
from rich.console import Console
from transformers import PreTrainedModel
from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.cli import main
from adaroll_trl.config import options_of
from adaroll_trl.simulation import simulate
from adaroll_trl.training.allocation import plan_allocation, uniform_signal
from adaroll_trl.training.arguments import parse
from adaroll_trl.training.display import print_plan
from adaroll_trl.training.plan import TrainingPlan, make_plan
from adaroll_trl.training.resolve import resolve
from adaroll_trl.training.run import TRAINERS, build_trainer
from tests.vision import build_vision_dir

ROOT = Path(__file__).parent.parent
SETTINGS: dict[str, Any] = {
    "task": "arithmetic",
    "dataset_name": "40",
    "per_device_train_batch_size": 4,
    "steps_per_generation": 3,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 2,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "reward_funcs": ["tests.tiny:parity_reward"],
}


@pytest.fixture
def words(model_dir: Path, tmp_path: Path) -> Any:
    """A command line with a recipe: `words("--rounds", "2", learning_rate=1e-3)`."""

    def make(*more: str, **settings: Any) -> list[str]:
        path = tmp_path / "recipe.yaml"
        paths = {"model_name_or_path": str(model_dir), "output_dir": str(tmp_path / "out")}
        path.write_text(yaml.safe_dump({**SETTINGS, **paths, **settings}))
        return ["--config", str(path), *more]

    return make


@pytest.fixture
def plan_of(words: Any) -> Any:
    def make(*more: str, **settings: Any) -> TrainingPlan:
        return make_plan(resolve(*parse(words("--dry-run", *more, **settings))))

    return make


def text_of(plan: TrainingPlan) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    print_plan(plan, console)
    return console.export_text()


def logged(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


# The plan


def test_the_share_with_signal_of_equal_groups_is_exact():
    assert uniform_signal(8, (1.0, 1.0)) == pytest.approx(1 - 2 / 9)
    assert uniform_signal(2, (1.0, 1.0)) == pytest.approx(1 / 3)
    # Beta(1, 3): all 2 right with 1/10, all wrong with 3/5
    assert uniform_signal(2, (1.0, 3.0)) == pytest.approx(1 - 1 / 10 - 3 / 5)


@pytest.mark.parametrize("utility", ["mixed", "std"])
def test_the_share_with_signal_of_the_allocator_is_that_of_a_simulation(words, utility):
    options = options_of(parse(words(utility=utility))[1])
    plan = plan_allocation(options, 16, 8, 2, pytest.fail)
    other = simulate("adaroll", 16, 128, 4, utility, num_batches=500, seed=9, min_rollouts=2, max_rollouts=32)
    assert plan.signal_adaptive == pytest.approx(other.frac_prompts_mixed, abs=0.02)
    assert 0 < plan.signal_error < 0.005
    assert plan.signal_uniform == pytest.approx(7 / 9)
    assert plan.signal_uniform < plan.signal_adaptive < plan.signal_bound
    assert plan.utility_uniform < plan.utility_planned <= plan.utility_bound
    assert (plan.rounds, plan.min_rollouts, plan.max_rollouts) == (4, 2, 32)
    assert 8 < plan.largest_group <= 32
    assert plan.tables.cached is None
    assert min(plan.next_seconds, plan.first_seconds) > 0


def test_the_weighting_that_holds_is_shown(plan_of):
    def shown(**settings):
        return next(line for line in text_of(plan_of(**settings)).splitlines() if "prompt weighting" in line).split()

    assert "prompt" in shown(utility="progress")[3:]  # each utility brings its own
    assert "rollout" in shown(utility="mixed")
    assert "uniform" in shown(utility="mixed", prompt_weighting="uniform")


def test_joint_tables_are_measured_and_found_again(words, tmp_path):
    options = options_of(parse(words(allocator="adaroll_joint", table_cache_dir=str(tmp_path / "tables")))[1])
    first, again = (plan_allocation(options, 3, 4, 1, pytest.fail) for _ in range(2))
    (stored,) = (tmp_path / "tables").glob("joint-*.table")
    assert (first.tables.cached, again.tables.cached) == (False, True)
    assert 0 < first.tables.bytes <= stored.stat().st_size
    assert first.rounds == 1 + (12 - 6)
    assert first.signal_adaptive == pytest.approx(first.utility_planned, abs=4 * first.signal_error)


def test_the_dry_run_prints_the_plan_and_loads_nothing(words, capsys, monkeypatch):
    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", load)
    monkeypatch.setattr("torch.cuda.init", load)
    more = ("--dry_run", "--assume_processes", "4", "--bf16", "true", "--use_cpu", "false", "--max_steps", "-1")
    assert main(["train", *words(*more, num_train_epochs=3)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in (
        "48 = per_device_train_batch_size 4 x 4 processes x steps_per_generation 3",
        "12, with num_generations 4 rollouts on average",
        "27, of 16 rollouts each",  # 40 rows are 3 batches of 12 prompts, of 3 steps; 3 epochs
        "60.0% with equal groups (exact, under the prior)",
        "parity_reward (the only reward)",
        "task arithmetic from 40, split train: 40 rows",
    ):
        assert part in printed, part


def test_plain_grpo_has_a_plan_too(plan_of):
    plan = plan_of("--trainer", "grpo")
    assert plan.allocation is None
    assert plan.signal_uniform == pytest.approx(0.6)
    assert "GRPOTrainer (TRL)" in text_of(plan)


def test_the_plan_says_what_the_prior_will_become(plan_of, tmp_path):
    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "rate": i / 40} for i in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"task": None, "dataset_name": str(path), "prompt_column": "question", "prior_source": "empirical_bayes"}
    plan = plan_of(**own, prior_column="rate")
    assert "Beta(1, 1)" in text_of(plan)
    assert any("in the column 'rate' add 4 rollouts' worth" in note for note in plan.notes)
    assert any("fitted to outcomes, and moves away from Beta(1, 1)" in note for note in plan.notes)
    with pytest.raises(ValueError, match=r"prior_column='level': the data set has no such column"):
        plan_of(**own, prior_column="level")


def test_the_plan_says_that_it_is_for_first_visits(plan_of):
    def said(**options):
        notes = plan_of(utility=None, max_steps=-1, **options).notes
        return [word for word in ("come for the first time", "A prompt comes once") if word in " ".join(notes)]

    assert said(num_train_epochs=3) == ["come for the first time"]
    assert said(num_train_epochs=1) == ["A prompt comes once"]
    assert said(num_train_epochs=1, belief_decay=0.0, rounds=2) == []


def test_a_batch_with_nothing_to_decide_is_noted_and_too_few_rows_refused(plan_of):
    plan = plan_of("--steps_per_generation", "1")
    assert plan.allocation.allocator == "uniform"
    assert any("holds a single prompt" in note for note in plan.notes)
    once = plan_of("--steps_per_generation", "1", utility=None, max_steps=-1, num_train_epochs=1)
    assert not any("A prompt comes once" in note for note in once.notes)
    with pytest.raises(ValueError, match="The data has 2 rows, fewer than the 3 prompts of a generation batch"):
        plan_of(dataset_name="2")
    with pytest.raises(ValueError, match="max_rollouts=300: allocator 'adaroll' plans groups of up to 256"):
        plan_of(max_rollouts=300)


def test_what_cannot_be_had_offline_is_said(plan_of):
    plan = plan_of(task="gsm8k", dataset_name=None, reward_funcs=None, model_name_or_path="nobody/nothing")
    assert (plan.rows, plan.memory) == (None, None)
    assert plan.rewards == ("gsm8k_accuracy",)
    assert any(note.startswith("The data could not be looked at") for note in plan.notes)
    assert any(note.startswith("The model's configuration could not be looked at") for note in plan.notes)
    assert "note:" in text_of(plan)
    plan = plan_of(dataset_name="./missing.jsonl", prompt_column="q", task=None)
    assert plan.rows is None
    assert any(note.startswith("This run cannot start until its data is there") for note in plan.notes)


def test_the_table_gives_each_quantity_once_and_says_where_it_differs_from_what_was_asked(plan_of):
    plan = plan_of("--utility", "mixed", "--rounds", "1000")
    text = text_of(plan)
    assert "12 of 1000: every process needs a rollout in each round" in text
    assert "mixed: what is expected per prompt is the share of prompts with signal, above" in text
    assert f"{plan.allocation.utility_planned:.4f}" not in text
    text = text_of(plan_of("--utility", "std"))
    assert "(relaxed: the budget is met on average), at most" in text
    assert " of 4:" not in text


# Training


@pytest.mark.parametrize("trainer", ["grpo", "adaroll"])
def test_the_command_trains_and_resumes(words, tmp_path, trainer):
    saving = ("--trainer", trainer, "--save_strategy", "steps", "--save_steps", "1")
    assert main(["train", *words(*saving, "--max_steps", "1")]) == 0
    settings = [tmp_path / "out" / place / "training_args.json" for place in ("", "checkpoint-1", "checkpoint-2")]
    assert [json.loads(path.read_text())["max_steps"] for path in settings[:2]] == [1, 1]
    assert main(["train", *words(*saving, "--resume_from_checkpoint", "true")]) == 0
    history = logged(tmp_path / "out" / "checkpoint-2")
    assert [entry["step"] for entry in history if "rewards/parity_reward/mean" in entry] == [1, 2]
    assert [json.loads(path.read_text())["max_steps"] for path in settings] == [2, 1, 2]
    assert all(("adaroll/rounds" in entry) == (trainer == "adaroll") for entry in history if "reward" in entry)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_run_without_a_checkpoint_to_resume_from_stops_before_the_model_is_loaded(words, tmp_path, capsys):
    for given, message in (("true", "has no checkpoint"), (str(tmp_path / "no"), "there is no such folder")):
        assert main(["train", *words("--resume_from_checkpoint", given)]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"error: resume_from_checkpoint={given!r}: ")
        assert message in captured.err
        assert captured.out == ""


def test_lora_gives_adapters_and_the_plan_counts_them(words):
    script, config, model = parse(words(use_peft=True, lora_r=3, lora_target_modules=["q_proj", "v_proj"]))
    trainer = build_trainer(script, config, model)
    assert isinstance(trainer, AdaRollGRPOTrainer)
    assert isinstance(trainer.model, PeftModel)
    trained = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    memory = make_plan(resolve(script, config, model)).memory
    assert memory.trainable == trained == 2 * 2 * 3 * (64 + 64)
    assert memory.parameters == sum(p.numel() for p in trainer.model.parameters()) - trained
    assert (memory.gradients, memory.optimizer) == (4 * trained, 8 * trained)
    trainer.train()


def test_quantisation_reaches_the_trainer(words, monkeypatch):
    monkeypatch.setattr("adaroll_trl.training.refusals.find_spec", lambda name: True)  # as if it were installed
    monkeypatch.setitem(TRAINERS, "adaroll", lambda **arguments: arguments)
    settings = {"use_peft": True, "load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "dtype": "bfloat16"}
    script, config, model = parse(words(**settings, model_revision="v2"))
    arguments = build_trainer(script, config, model)
    assert arguments["quantization_config"].bnb_4bit_quant_type == "fp4"
    assert arguments["peft_config"].r == 16
    loading = arguments["args"].model_init_kwargs
    assert (loading["dtype"], loading["revision"]) == ("bfloat16", "v2")
    memory = make_plan(resolve(script, config, model)).memory
    assert memory.dtype == "4 bit"
    assert memory.weights < 2 * memory.parameters  # bfloat16 throughout, without the adapters


def test_evaluation_and_several_rewards_reach_the_trainer(words, model_dir):
    rewards = ["tests.tiny:parity_reward", "get_soft_overlong_punishment", "arithmetic_accuracy"]
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_eval_samples": 2}
    more = {"reward_funcs": rewards, "reward_weights": [0.5, 1.0, 2.0], "trainer": "grpo", "max_steps": 1}
    script, config, model = parse(words(**settings, **more))
    trainer = build_trainer(script, config, model)
    assert type(trainer) is GRPOTrainer
    assert trainer.reward_func_names == ["parity_reward", "soft_overlong_punishment_reward", "arithmetic_accuracy"]
    assert trainer.reward_weights.tolist() == [0.5, 1.0, 2.0]
    assert len(trainer.eval_dataset) == 2
    trainer.train()
    assert any("eval_rewards/arithmetic_accuracy/mean" in entry for entry in trainer.state.log_history)


def test_a_processor_model_trains_on_text(words, tmp_path):
    folder = build_vision_dir(tmp_path / "gemma3", "gemma3")
    script, config, model = parse(words(model_name_or_path=str(folder)))
    trainer = build_trainer(script, config, model)
    assert type(trainer.model).__name__ == "Gemma3ForConditionalGeneration"
    memory = make_plan(resolve(script, config, model)).memory
    assert memory.parameters == sum(parameter.numel() for parameter in trainer.model.parameters())
    trainer.train()
    assert trainer.state.global_step == 2


def test_overrides_replace_what_would_be_loaded(words, model_dir):
    from tests.tiny import parity_reward, sums_dataset

    script, config, model = parse(words(task="gsm8k", dataset_name=None, model_name_or_path="nobody/nothing"))
    trainer = build_trainer(
        script, config, model, model=str(model_dir), train_dataset=sums_dataset(8), reward_funcs=[parity_reward]
    )
    assert len(trainer.train_dataset) == 8


def test_the_command_line_and_the_script_are_one(words, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    run = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-m", "adaroll_trl", "train", *words("--max_steps", "1")], **run)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").is_file()
    script = [sys.executable, str(ROOT / "scripts" / "train.py")]
    bad = subprocess.run([*script, *words("--dry-run", "--roundz", "3")], **run)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.strip().endswith("error: '--roundz' is no option. Did you mean '--rounds'?")
