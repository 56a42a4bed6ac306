"""What TRL's GRPOTrainer can do, this one can: each case trains a few steps with groups that AdaRoll made unequal."""

from __future__ import annotations

import asyncio
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import IterableDataset
from peft import LoraConfig
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    TrainerCallback,
    set_seed,
)

from tests.compatibility import BUDGET, GROUP, adaptive, check_run, ids_parity, number_in, parity
from tests.environments import (
    TOOLS,
    Adder,
    Doubler,
    ScriptedModel,
    add,
    add_later,
    build_tool_model_dir,
    check_tool_rows,
    echoing_rollout,
)
from tests.tiny import build_tokenizer, completions_of, length_reward, prompts_of, sums_dataset


@pytest.fixture
def make(model_dir: Path, tmp_path: Path) -> Any:
    """Builds an adaptive trainer: `make(beta=0.1)`."""
    return lambda **options: adaptive(options.pop("model_dir", model_dir), tmp_path, **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "adaroll_joint": {"allocator": "adaroll_joint", "block_size": 2, "draws_per_round": 2},
    "plain_prompts": {"dataset": sums_dataset(48, plain=True)},
    "mask_truncated_completions": {"mask_truncated_completions": True, "max_completion_length": 40},
    "top_entropy_quantile": {"top_entropy_quantile": 0.4},
    "beta": {"beta": 0.1},
    "sync_ref_model": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2},
    "num_iterations": {"num_iterations": 2, "max_steps": 8},
    "bf16": {"bf16": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "gradient_accumulation": {"gradient_accumulation_steps": 2, "max_steps": 2},
    "two_batches_in_a_step": {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 1},
    "lora": {"trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}, "beta": 0.05},
    "prompt_ids": {"dataset": sums_dataset(48).add_column("prompt_id", list(range(48))), "belief_decay": 0.5},
    "entropy_bonus": {"entropy_coef": 0.01},
    "adaptive_entropy": {"use_adaptive_entropy": True, "entropy_coef": 0.01},
    **{loss: {"loss_type": loss} for loss in ("grpo", "bnpo", "dr_grpo", "cispo", "sapo")},
    "sequence_level": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "vespo": {"loss_type": "vespo", "num_iterations": 2, "max_steps": 8},
    "off_policy_mask": {"off_policy_mask_threshold": 0.5, "num_iterations": 2, "max_steps": 8},
    "two_sided_clipping": {"delta": 2.0},
    "scale_by_batch": {"scale_rewards": "batch"},
    "no_scale": {"scale_rewards": False},
    "pad_to_multiple_of": {"pad_to_multiple_of": 8},
    "unused_columns_removed": {
        "remove_unused_columns": True,
        "reward": lambda completion_ids, **kwargs: [ids_parity(ids) for ids in completion_ids],
    },
    "dataloader_worker": {"dataloader_num_workers": 1},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option(make, case):
    trainer = make(**OPTIONS[case])
    check_run(trainer)


def test_iterable_dataset(make):
    rows = list(sums_dataset(48))
    check_run(make(dataset=IterableDataset.from_generator(lambda: iter(rows))))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"allocator": "adaroll_joint", "rounds": 3}, r"allocator='adaroll_joint' .*: rounds=3\."),
        ({"allocator": "uniform", "rounds": 3, "block_size": 2}, r"rounds=3, block_size=2\."),
        ({"allocator": "adaroll", "draws_per_round": 2, "kappa": 1.0}, r"draws_per_round=2, kappa=1.0\."),
        ({"allocator": "adaroll", "rounds": 3, "utility": "progress", "kappa": 1.0}, None),
        ({"allocator": "adaroll_joint", "rounds": 4, "block_size": 2, "draws_per_round": 2}, None),
    ],
)
def test_an_option_without_effect_is_named(make, options, named):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(**options)
    messages = [str(w.message) for w in caught if "No effect" in str(w.message)]
    assert len(messages) == int(named is not None)
    assert named is None or re.search(named, messages[0])


# Rewards


async def later_parity(completion_ids: list[list[int]], number: list[int], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0.01)
    return [ids_parity(ids) for ids in completion_ids]


async def later_or_never(completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if sum(ids) % 3 == 0 else len(set(ids)) / len(ids) for ids in completion_ids]


def test_async_and_weighted_rewards(make):
    trainer = make(
        reward=[parity, later_parity, later_or_never], reward_weights=[1.0, 0.25, 0.5], success_reward="parity"
    )

    def rewards(ids: list[int]) -> list[float]:
        share = float("nan") if sum(ids) % 3 == 0 else len(set(ids)) / len(ids)
        return [ids_parity(ids), ids_parity(ids), share]

    check_run(trainer, rewards)
    log = trainer.state.log_history[0]
    assert log["rewards/parity/mean"] == log["rewards/later_parity/mean"]
    assert "rewards/later_or_never/mean" in log


def test_normalize_then_sum(make):
    trainer = make(
        reward=[parity, length_reward],
        reward_weights=[1.0, 0.5],
        multi_objective_aggregation="normalize_then_sum",
        success_reward="parity",
    )
    check_run(trainer, lambda ids: [ids_parity(ids), len(set(ids)) / len(ids)], "normalize_then_sum")


@pytest.fixture(scope="module")
def reward_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sequence classifier with a tokenizer whose numbering is not the policy's."""
    path = tmp_path_factory.mktemp("reward") / "tiny-judge"
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["and so on"])
    set_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForSequenceClassification(config)
    torch.nn.init.normal_(model.score.weight, std=1.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("plain", [False, True], ids=["conversational", "plain"])
def test_reward_model(make, reward_model_dir, plain):
    trainer = make(
        reward=[str(reward_model_dir), parity],
        dataset=sums_dataset(48, plain=plain),
        success_reward="parity",
    )
    check_run(trainer, lambda ids: [])
    judge, tokenizer = trainer.reward_funcs[0], trainer.reward_processing_classes[0]
    logs = trainer._logs
    found = logs["rewards"]["tiny-judge"]
    assert len(set(found)) > BUDGET // 2
    for prompt, completion, reward in zip(logs["prompt"], logs["completion"], found, strict=True):
        text = prompt + completion if plain else tokenizer.apply_chat_template(prompt + completion, tokenize=False)
        with torch.no_grad():
            expected = judge(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0]
        assert reward == pytest.approx(expected.item(), abs=1e-3)


# Rollouts by the user's own function


def test_rollout_func_with_extra_fields(make):
    def reward(seen: list[int], backend: list[str], **kwargs: Any) -> list[float]:
        assert seen == kwargs["number"]
        assert set(backend) == {"local"}
        return parity(**kwargs)

    trainer = make(reward=reward, trainer_kwargs={"rollout_func": echoing_rollout})
    for output in check_run(trainer):
        tokenizer = trainer.processing_class
        for prompt, ids in zip(prompts_of(output), completions_of(output), strict=True):
            assert tokenizer.decode(ids).startswith(f"{number_in(tokenizer.decode(prompt))}:")
        assert output["tool_mask"].sum() == output["num_items_in_batch"] == output["completion_mask"].sum() - BUDGET
        assert (output["sampling_per_token_logps"] * output["completion_mask"]).sum() < 0


@pytest.mark.parametrize("size", ["trainer", "args"])
def test_rollout_func_that_draws_groups_by_itself(make, size):
    """Such a function takes every G-th prompt and draws G completions for it: in a round, G is 1."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        group = trainer.num_generations if size == "trainer" else trainer.args.num_generations
        return echoing_rollout([p for p in prompts[::group] for _ in range(group)], trainer)

    trainer = make(trainer_kwargs={"rollout_func": rollout})
    for output in check_run(trainer):
        tokenizer = trainer.processing_class
        assert all(
            tokenizer.decode(ids).startswith(f"{number_in(tokenizer.decode(prompt))}:")
            for prompt, ids in zip(prompts_of(output), completions_of(output), strict=True)
        )
    assert trainer.args.num_generations == trainer.num_generations == GROUP


def test_rollout_func_with_another_number_of_completions_is_refused(make):
    def doubled(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return echoing_rollout([p for p in prompts for _ in range(2)], trainer)

    def lenient(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [ids_parity(ids) for ids in completion_ids][: len(kwargs["number"])]

    trainer = make(reward=lenient, trainer_kwargs={"rollout_func": doubled})
    with pytest.raises(ValueError, match=r"rollout_func.*returned \d+ completions for \d+ prompts"):
        trainer.train()


# Tools and environments


@pytest.fixture(scope="module")
def tool_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tool_model_dir(tmp_path_factory.mktemp("tools") / "tiny-caller")


@pytest.mark.parametrize("tool", [add, add_later], ids=["sync", "async"])
def test_tools(make, tool_model_dir, tool):
    trainer = make(model_dir=tool_model_dir, trainer_kwargs={"tools": [tool]}, **TOOLS)
    ScriptedModel(trainer)
    outputs = check_run(trainer)
    check_tool_rows(trainer, outputs)


def test_environment_factory(make, tool_model_dir):
    def reward(environments: list[Any], **kwargs: Any) -> list[float]:
        assert [environment.number for environment in environments] == kwargs["number"]
        assert len({id(environment) for environment in environments}) == len(environments)
        return parity(**kwargs)

    trainer = make(
        model_dir=tool_model_dir,
        reward=reward,
        success_reward="reward",
        trainer_kwargs={"environment_factory": Adder},
        **TOOLS,
    )
    ScriptedModel(trainer)
    tokenizer = trainer.processing_class
    outputs = check_run(trainer, lambda ids: [ids_parity(ids), float("<tool_response>" in tokenizer.decode(ids))])
    check_tool_rows(trainer, outputs, lambda n: 3 * n + 100)
    for output in outputs:
        for prompt in prompts_of(output):
            text = tokenizer.decode(prompt)
            assert text.count(f" Secret {100 + number_in(text)}.") == text.count("Secret") == 1


def test_environments_chosen_by_the_row(make, tool_model_dir):
    def reward(environments: list[Any], environment: list[str], **kwargs: Any) -> list[float]:
        kinds = {"adder": Adder, "doubler": Doubler}
        assert all(type(e) is kinds[name] for e, name in zip(environments, environment, strict=True))
        return parity(**kwargs)

    data = sums_dataset(48)
    trainer = make(
        model_dir=tool_model_dir,
        dataset=data.add_column("environment", [["adder", "doubler"][i // 2 % 2] for i in range(48)]),
        reward=reward,
        success_reward="reward",
        trainer_kwargs={"environment_factory": {"adder": Adder, "doubler": Doubler}},
        **TOOLS,
    )
    ScriptedModel(trainer)
    outputs = check_run(trainer, lambda ids: [])
    check_tool_rows(trainer, outputs, lambda n: 3 * n + 100)
    rewards, groups = trainer._logs["rewards"], trainer._logs["extra"]["group"]
    for adder, doubler, group in zip(rewards["Adder"], rewards["Doubler"], groups, strict=True):
        assert np.isnan(doubler) == (group // 2 % 2 == 0)
        assert np.isnan(adder) == (group // 2 % 2 == 1)


def test_an_environment_with_carried_beliefs_needs_prompt_ids(make, tool_model_dir):
    options = {"trainer_kwargs": {"environment_factory": Adder}, "success_reward": "parity", "belief_decay": 0.5}
    trainer = make(model_dir=tool_model_dir, **options, **TOOLS)
    with pytest.raises(ValueError, match="needs a `prompt_id` column"):
        trainer.train()
    data = sums_dataset(48).add_column("prompt_id", list(range(48)))
    trainer = make(model_dir=tool_model_dir, dataset=data, **options, **TOOLS)
    ScriptedModel(trainer)
    check_run(trainer, lambda ids: [])
    assert sum(map(sum, trainer._beliefs.state_dict().values())) == 2 * BUDGET * 0.5


def test_an_environment_without_prompt_ids_trains_by_default_and_says_what_is_missing(make, tool_model_dir):
    defaults = {"utility": None, "rounds": None, "min_rollouts": 2}
    options = {"trainer_kwargs": {"environment_factory": Adder}, "success_reward": "parity", **defaults}
    trainer = make(model_dir=tool_model_dir, **options, **TOOLS)
    ScriptedModel(trainer)
    with pytest.warns(UserWarning, match="needs a `prompt_id` column.*plain GRPO.*utility='mixed'"):
        trainer.train()
    assert len(trainer._beliefs) == 0
    groups = [log["adaroll/rollouts_per_prompt/max"] for log in trainer.state.log_history if "reward" in log]
    assert groups
    assert set(groups) == {GROUP}


# Backends


CONTINUOUS = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 64}


def test_transformers_continuous_batching(make):
    trainer = make(use_transformers_continuous_batching=True, transformers_continuous_batching_config=CONTINUOUS)
    check_run(trainer)


def test_a_seed_for_continuous_batching_is_refused(make):
    config = {**CONTINUOUS, "seed": 3}
    with pytest.raises(ValueError, match="transformers_continuous_batching_config has seed=3"):
        make(use_transformers_continuous_batching=True, transformers_continuous_batching_config=config)


def test_liger_kernel_that_is_not_installed_is_named(make):
    with pytest.raises(ImportError, match="liger"):
        make(use_liger_kernel=True).train()


# Logs, callbacks, checkpoints


def test_completions_are_printed_with_the_added_columns(make, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    trainer = make(log_completions=True, num_completions_to_print=3, logging_steps=2)
    check_run_with_long_logs(trainer)
    printed = re.sub(r"[^\x20-\x7e]+", " ", capsys.readouterr().out)
    for column in ("Prompt", "Completion", "parity", "Advantage", "group", "group_size", "round", "belief_mean"):
        assert column in printed, column
    table = pd.read_parquet(tmp_path / "completions" / "completions_00002.parquet")
    assert len(table) == BUDGET
    assert {"group", "group_size", "round", "belief_mean", "parity", "advantage"} <= set(table.columns)
    assert table["round"].nunique() >= 2
    assert (table.groupby("group").size() == table.groupby("group")["group_size"].first()).all()


def check_run_with_long_logs(trainer: Any) -> None:
    trainer.train()
    assert all(np.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


def test_log_unique_prompts_and_extra_columns(make, tmp_path):
    def reward(log_extra: Any, log_metric: Any, **kwargs: Any) -> list[float]:
        log_extra("asked", list(kwargs["number"]))
        log_metric("largest", float(max(kwargs["number"])))
        return parity(**kwargs)

    trainer = make(reward=reward, log_completions=True, log_unique_prompts=True)
    check_run(trainer)
    table = pd.read_parquet(tmp_path / "completions" / "completions_00003.parquet")
    assert table["asked"].tolist() == [number_in(prompt) for prompt in table["prompt"]]
    assert "largest" in trainer.state.log_history[0]


def test_callbacks_see_every_step_and_the_metrics(make):
    class Watching(TrainerCallback):
        steps, logs = 0, []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps += 1

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            self.logs.append(logs)

    callback = Watching()
    check_run(make(trainer_kwargs={"callbacks": [callback]}))
    assert callback.steps == 4
    assert sum("adaroll/rounds" in entry for entry in callback.logs) == 2


@pytest.mark.parametrize("case", ["full", "lora"])
def test_resume_goes_on_as_if_it_had_not_stopped(make, model_dir, tmp_path, case):
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "belief_decay": 1.0}
    if case == "lora":
        options["trainer_kwargs"] = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}
    whole = make(**options)
    check_run(whole)
    resumed = make(**options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [row["number"] for row in resumed.recorded[0][0]] == [row["number"] for row in whole.recorded[1][0]]
    assert resumed._beliefs.state_dict().keys() == whole._beliefs.state_dict().keys()
    assert resumed.state.global_step == 4
    latest = make(**{**options, "max_steps": 6})
    latest.train(resume_from_checkpoint=True)
    assert latest.state.global_step == 6
    assert len(latest.recorded) == 1


def test_evaluation_between_rounds_of_training(make):
    trainer = make(
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=8,
        num_generations_eval=2,
        trainer_kwargs={"eval_dataset": sums_dataset(8)},
    )
    check_run_with_long_logs(trainer)
    assert sum("eval_reward" in entry for entry in trainer.state.log_history) == 4
    assert not any(name.startswith("eval_adaroll") for entry in trainer.state.log_history for name in entry)
