"""The promise that keeps the trainer honest: `uniform` in one round is GRPOTrainer, bit for bit.

So are the defaults, until a prompt comes back.

Each case trains both for a few steps on the same data and compares every weight, and every metric that TRL logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from datasets import IterableDataset
from peft import LoraConfig
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from adaroll_trl import AdaRollGRPOTrainer, AdaRollMixin
from adaroll_trl.config import AdaRollOptions
from tests.tiny import (
    RandomCounts,
    length_reward,
    make_trainer,
    parity_reward,
    patchy_reward,
    same_weights,
    sums_dataset,
    weights,
)

TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime"}
TIMES |= {"eval_samples_per_second", "eval_steps_per_second"}
LOSSES = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
UNIFORM = {"allocator": "uniform"}
DEFAULTS = {"utility": None}  # which leaves it open, as a config does that says nothing
CASES: dict[str, dict[str, Any]] = {loss: {"loss_type": loss} for loss in LOSSES}
CASES |= {f"scale_{scale}": {"scale_rewards": scale} for scale in ("group", "batch", "none")}
CASES |= {
    "normalize_then_sum": {
        "multi_objective_aggregation": "normalize_then_sum",
        "reward": [parity_reward, length_reward],
        "reward_weights": [1.0, 0.3],
    },
    "two_rewards": {"reward": [parity_reward, length_reward], "reward_weights": [1.0, 0.3]},
    "beta": {"beta": 0.1},
    "num_iterations": {"num_iterations": 2, "max_steps": 8},
    "accumulation_2_generation_3": {"gradient_accumulation_steps": 2, "max_steps": 4},
    "accumulation_4_generation_2": {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
    "none_rewards": {"reward": [patchy_reward]},
    "plain_prompts": {"dataset": sums_dataset(48, plain=True)},
    "group_of_six": {"num_generations": 6},
    "mask_truncated": {"mask_truncated_completions": True},
    "entropy_quantile": {"top_entropy_quantile": 0.5},
    "sequence_level": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "pad_to_multiple": {"pad_to_multiple_of": 8},
}


def train_both(tmp_path: Path, model_dir: Path, own: dict[str, Any] = UNIFORM, **options: Any) -> tuple[Any, Any]:
    """A GRPOTrainer with a plain config and an AdaRollGRPOTrainer with options of its own, trained on the same."""
    common = {"model_dir": model_dir, "output_dir": tmp_path, "max_steps": 6, **options}
    plain = make_trainer(GRPOTrainer, plain_config=True, **common)
    plain.train()
    ours = make_trainer(AdaRollGRPOTrainer, **own, **common)
    ours.train()
    return plain, ours


def assert_same(plain: Any, ours: Any) -> None:
    assert same_weights(weights(plain), weights(ours))
    assert len(plain.state.log_history) == len(ours.state.log_history)
    for expected, found in zip(plain.state.log_history, ours.state.log_history, strict=True):
        for name in expected.keys() - TIMES:
            assert name in found
            both_nan = isinstance(expected[name], float) and math.isnan(expected[name]) and math.isnan(found[name])
            assert both_nan or expected[name] == found[name], name


@pytest.mark.parametrize("case", CASES)
def test_uniform_is_grpo(case, tmp_path, model_dir):
    plain, ours = train_both(tmp_path, model_dir, **CASES[case])
    assert_same(plain, ours)


BY_DEFAULT = ("dapo", "grpo", "dr_grpo", "sapo", "scale_batch", "scale_none", "normalize_then_sum", "beta")
BY_DEFAULT += ("num_iterations", "none_rewards", "mask_truncated", "group_of_six")


@pytest.mark.parametrize("generations", [2, 4])
@pytest.mark.parametrize("case", BY_DEFAULT)
def test_the_defaults_are_grpo_while_no_prompt_comes_back(case, generations, tmp_path, model_dir):
    options = {"num_generations": generations, **CASES[case]}
    plain, ours = train_both(tmp_path, model_dir, DEFAULTS, **options)
    assert ours.adaroll.utility == "progress"
    assert_same(plain, ours)


def solved_in_part(prompts, completions, **kwargs):
    """Some prompts are solved whatever is written; the others as `parity_reward` has it."""
    solved = [str(prompt).count("1") > 0 for prompt in prompts]
    parity = parity_reward(completions=completions, **kwargs)
    return [1.0 if done else value for done, value in zip(solved, parity, strict=True)]


def test_the_defaults_allocate_once_prompts_come_back(tmp_path, model_dir):
    options = {"dataset": sums_dataset(6), "reward": solved_in_part, "max_steps": 12, "logging_steps": 3}
    plain, ours = train_both(tmp_path, model_dir, DEFAULTS, **options)
    assert not same_weights(weights(plain), weights(ours))
    largest = [log["adaroll/rollouts_per_prompt/max"] for log in ours.state.log_history if "reward" in log]
    assert largest[:2] == [4, 4]  # each of the six prompts for the first time
    assert max(largest) > 4


def test_the_comparison_can_fail(tmp_path, model_dir):
    plain, ours = train_both(tmp_path, model_dir)
    start = make_trainer(GRPOTrainer, plain_config=True, model_dir=model_dir, output_dir=tmp_path)
    assert not same_weights(weights(start), weights(plain))
    other = make_trainer(
        AdaRollGRPOTrainer, allocator="uniform", model_dir=model_dir, output_dir=tmp_path, max_steps=6
    )
    other.allocator = RandomCounts(rounds=1)
    other.train()
    assert not same_weights(weights(ours), weights(other))


def test_lora(tmp_path, model_dir):
    lora = {"trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}, "beta": 0.05}
    plain, ours = train_both(tmp_path, model_dir, **lora)
    assert any("lora_B" in name and value.abs().sum() > 0 for name, value in weights(ours).items())
    assert_same(plain, ours)


def test_evaluation_with_its_own_number_of_generations(tmp_path, model_dir):
    plain, ours = train_both(
        tmp_path,
        model_dir,
        eval_strategy="steps",
        eval_steps=2,
        num_generations_eval=2,
        per_device_eval_batch_size=4,
        trainer_kwargs={"eval_dataset": sums_dataset(4)},
    )
    assert sum("eval_reward" in entry for entry in ours.state.log_history) == 3
    assert_same(plain, ours)


def test_iterable_dataset(tmp_path, model_dir):
    rows = list(sums_dataset(48))
    stream = IterableDataset.from_generator(lambda: iter(rows))
    plain, ours = train_both(tmp_path, model_dir, dataset=stream)
    assert_same(plain, ours)


def test_completions_table(tmp_path, model_dir):
    plain, ours = train_both(tmp_path, model_dir, log_completions=True)
    for key in ("prompt", "completion", "advantages"):
        assert list(plain._logs[key]) == list(ours._logs[key])
    assert list(ours._logs["extra"]["group"]) == [0] * 4 + [1] * 4 + [2] * 4


def test_the_mixin_over_another_grpo_trainer(tmp_path, model_dir):
    common = {"model_dir": model_dir, "output_dir": tmp_path, "max_steps": 4}
    plain = make_trainer(GMPOTrainer, config_class=GMPOConfig, **common)
    plain.train()
    ours = make_trainer(AdaRollGMPOTrainer, config_class=AdaRollGMPOConfig, allocator="uniform", **common)
    ours.train()
    assert_same(plain, ours)
    assert ours.state.log_history[0]["adaroll/rounds"] == 1


@dataclass
class AdaRollGMPOConfig(AdaRollOptions, GMPOConfig):
    pass


class AdaRollGMPOTrainer(AdaRollMixin, GMPOTrainer):
    pass
