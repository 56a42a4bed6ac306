"""The contract with TRL, small enough to run against each supported version (`scripts/trl_contract.sh`).

What a round relies on: two method signatures, that a call with `num_generations` set to 1 is possible, and the keys of
the output. Everything here must hold from TRL 1.8 on.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.checks import warn_if_trl_changed
from adaroll_trl.run_folder import CHECKPOINT_PREFIX, LOG_FILE
from tests.compatibility import BUDGET, adaptive, check_run, number_in, parity
from tests.environments import TOOLS, Adder, ScriptedModel, build_tool_model_dir, check_tool_rows, echoing_rollout
from tests.tiny import (
    FixedCounts,
    RecordingTrainer,
    completions_of,
    length_reward,
    make_trainer,
    parity_reward,
    patchy_reward,
    prompts_of,
    same_weights,
    weights,
)

pytestmark = pytest.mark.contract

NEWER_TRL = """
import warnings
import trl
from trl import GRPOTrainer
trl.__version__ = "9.9.0"
def _calculate_rewards(self, inputs, completions): ...
GRPOTrainer._calculate_rewards = _calculate_rewards
warnings.simplefilter("always")
import adaroll_trl
adaroll_trl.AdaRollGRPOTrainer
"""
EQUIVALENCE: dict[str, dict[str, Any]] = {
    "default": {},
    "dr_grpo_no_scale": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "grpo_beta": {"loss_type": "grpo", "beta": 0.1},
    "num_iterations": {"num_iterations": 2, "max_steps": 6},
    "normalize_then_sum": {
        "reward": [parity_reward, length_reward],
        "reward_weights": [1.0, 0.3],
        "multi_objective_aggregation": "normalize_then_sum",
    },
    "none_rewards": {"reward": patchy_reward},
}
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}


def test_signatures_are_those_a_round_calls():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_trl_changed()


def test_the_names_in_a_runs_folder_are_those_of_transformers():
    assert (TRAINER_STATE_NAME, f"{PREFIX_CHECKPOINT_DIR}-") == (LOG_FILE, CHECKPOINT_PREFIX)


def test_importing_with_a_newer_trl_that_differs_warns():
    command = [sys.executable, "-c", NEWER_TRL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stderr.split())
    assert "TRL 9.9.0 has GRPOTrainer._calculate_rewards(self, inputs, completions), where adaroll_trl expects" in text
    assert "It is tested up to TRL 1.16" in text
    assert "_generate_and_score_completions(" not in text


@pytest.mark.parametrize("case", EQUIVALENCE)
def test_one_uniform_round_is_grpo_bit_for_bit(case, model_dir, tmp_path):
    common = {"model_dir": model_dir, "output_dir": tmp_path, "max_steps": 4, **EQUIVALENCE[case]}
    plain = make_trainer(GRPOTrainer, plain_config=True, **common)
    start = weights(plain)
    plain.train()
    ours = make_trainer(AdaRollGRPOTrainer, allocator="uniform", **common)
    ours.train()
    assert not same_weights(start, weights(plain))
    assert same_weights(weights(plain), weights(ours))
    for expected, found in zip(plain.state.log_history, ours.state.log_history, strict=True):
        for name in expected.keys() - TIMES:
            both_nan = isinstance(expected[name], float) and math.isnan(expected[name]) and math.isnan(found[name])
            assert both_nan or expected[name] == found[name], name


def test_three_unequal_rounds(build):
    trainer = build(
        RecordingTrainer, allocator="uniform", min_rollouts=1, max_steps=1, max_completion_length=40, beta=0.1
    )
    trainer.allocator = FixedCounts([[2, 2, 2], [2, 0, 2], [0, 1, 1]])
    start = weights(trainer)
    trainer.train()
    ((_, output),) = trainer.recorded
    assert sorted(prompts_of(output).count(prompt) for prompt in set(prompts_of(output))) == [3, 4, 5]
    log = trainer.state.log_history[0]
    ids = completions_of(output)
    rewards = parity_reward(completions=ids, completion_ids=ids)
    assert log["reward"] == pytest.approx(sum(rewards) / 12)
    assert log["rewards/parity_reward/mean"] == log["reward"]
    assert log["completions/mean_length"] == pytest.approx(sum(map(len, ids)) / 12)
    assert log["completions/max_length"] == max(map(len, ids))
    assert log["num_tokens"] == sum(map(len, ids)) + sum(map(len, prompts_of(output)))
    assert log["adaroll/rounds"] == 3
    assert output["num_items_in_batch"] == sum(map(len, ids))
    assert not same_weights(start, weights(trainer))


@pytest.mark.parametrize("allocator", ["adaroll", "adaroll_joint"])
def test_adaptive_rounds(model_dir, tmp_path, allocator):
    check_run(adaptive(model_dir, tmp_path, allocator=allocator, block_size=2, draws_per_round=2))


def test_a_stream_with_continuous_batching(model_dir, tmp_path):
    """Rows, rewards and advantages are those of the prompts that were chosen, not of those that TRL prepared."""
    small = {"num_blocks": 64, "max_batch_tokens": 128}
    trainer = adaptive(
        model_dir,
        tmp_path,
        stream_rollouts=True,
        in_flight=3,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config=small,
        max_steps=2,
    )
    trainer.train()
    (inputs, output) = trainer.recorded[0]
    assert len(output["advantages"]) == len(inputs) == BUDGET
    prompts, completions = prompts_of(output), completions_of(output)
    rewards = torch.tensor(list(trainer._logs["rewards"]["parity"]))
    assert rewards.tolist() == [float(sum(ids) % 2) for ids in completions]
    assert list(trainer._logs["extra"]["group"]) == sorted(trainer._logs["extra"]["group"])
    for prompt in set(prompts):
        rows = [row for row, other in enumerate(prompts) if other == prompt]
        assert output["advantages"][rows].sum().item() == pytest.approx(0.0, abs=1e-4)


def test_completions_table(model_dir, tmp_path):
    trainer = adaptive(model_dir, tmp_path, log_completions=True)
    check_run(trainer)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00003.parquet")
    assert len(table) == BUDGET
    assert {"group", "group_size", "round", "belief_mean", "parity", "advantage"} <= set(table.columns)


def test_rollout_func(model_dir, tmp_path):
    def reward(seen: list[int], **kwargs: Any) -> list[float]:
        assert seen == kwargs["number"]
        return parity(**kwargs)

    check_run(adaptive(model_dir, tmp_path, reward=reward, trainer_kwargs={"rollout_func": echoing_rollout}))


def test_environment_and_tools(tmp_path):
    model_dir = build_tool_model_dir(tmp_path / "model")
    trainer = adaptive(
        model_dir, tmp_path, success_reward="parity", trainer_kwargs={"environment_factory": Adder}, **TOOLS
    )
    ScriptedModel(trainer)
    outputs = check_run(trainer, lambda ids: [])
    check_tool_rows(trainer, outputs, lambda n: 3 * n + 100)
    for prompt in prompts_of(outputs[-1]):
        text = trainer.processing_class.decode(prompt)
        assert text.count(f" Secret {100 + number_in(text)}.") == text.count("Secret") == 1


def test_log_metric_and_log_extra(model_dir, tmp_path):
    def reward(log_metric: Any, log_extra: Any, **kwargs: Any) -> list[float]:
        log_extra("asked", list(kwargs["number"]))
        for number in kwargs["number"]:
            log_metric("asked_mean", float(number))
        return parity(**kwargs)

    trainer = adaptive(model_dir, tmp_path, reward=reward)
    check_run(trainer)
    asked = list(trainer._logs["extra"]["asked"])
    assert asked == [number_in(prompt) for prompt in trainer._logs["prompt"]]
    assert trainer.state.log_history[2]["asked_mean"] == pytest.approx(sum(asked) / BUDGET)


def test_checkpoints_go_back_and_forth(model_dir, tmp_path):
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "belief_decay": 1.0}
    first = adaptive(model_dir, tmp_path, **{**options, "max_steps": 2})
    first.train()
    beliefs = json.loads((tmp_path / "checkpoint-2" / "adaroll_state.json").read_text())["beliefs"]
    assert sum(map(sum, beliefs.values())) == BUDGET
    again = adaptive(model_dir, tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 4
    assert sum(map(sum, again._beliefs.state_dict().values())) == 2 * BUDGET
    plain = make_trainer(
        GRPOTrainer, plain_config=True, model_dir=model_dir, output_dir=tmp_path, max_steps=6, save_strategy="no"
    )
    plain.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert plain.state.global_step == 6
    assert all(torch.isfinite(value).all() for value in weights(plain).values())


def test_evaluation_is_trls(model_dir, tmp_path, sums):
    trainer = adaptive(
        model_dir,
        tmp_path,
        per_device_eval_batch_size=4,
        num_generations_eval=2,
        max_steps=1,
        trainer_kwargs={"eval_dataset": sums.select(range(4))},
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert math.isfinite(metrics["eval_reward"])
    assert not any("adaroll" in name for name in metrics)


def test_model_card(model_dir, tmp_path):
    trainer = adaptive(model_dir, tmp_path)
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()
    assert "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training" in card
