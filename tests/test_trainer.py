"""The trainer on unequal groups: what reaches the loss, what is logged, what is remembered and what is refused."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer, AdaRollMixin
from adaroll_trl.checks import check_call, check_trainer, warn_if_trl_changed
from adaroll_trl.metrics import SuccessSignal
from adaroll_trl.vllm import kept_awake
from tests.test_advantages import plain_advantages
from tests.tiny import (
    FixedCounts,
    RandomCounts,
    RecordingTrainer,
    completions_of,
    length_reward,
    parity_reward,
    patchy_reward,
    prompts_of,
    same_weights,
    sums_dataset,
    weights,
)

PLANS = {
    "4, 3, 5 in three rounds": [[2, 2, 2], [2, 0, 2], [0, 1, 1]],
    "a group of one": [[1, 1, 1], [2, 0, 3], [3, 0, 1]],
    "one large group": [[1, 1, 1], [0, 9, 0]],
    "all at once": [[6, 4, 2]],
}


def unequal(build: Any, plan: Any, trainer_class: type = RecordingTrainer, **options: Any) -> Any:
    """A trainer on batches of 3 prompts and 12 rollouts that plays `plan`."""
    defaults = {"allocator": "uniform", "min_rollouts": 1, "max_completion_length": 12, "max_steps": 1}
    trainer = build(trainer_class, **{**defaults, **options})
    trainer.allocator = FixedCounts(plan) if isinstance(plan, list) else plan
    return trainer


def rewards_of(trainer: Any, output: dict[str, Any]) -> list[list[float]]:
    """Each row's rewards, from its tokens alone."""
    ids = completions_of(output)
    columns = [reward(completions=ids, completion_ids=ids) for reward in trainer.reward_funcs]
    return [[math.nan if value is None else value for value in row] for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_over_unequal_groups(build, plan, scale):
    trainer = unequal(
        build, plan, scale_rewards=scale, reward=[parity_reward, length_reward], reward_weights=[1.0, 0.5]
    )
    trainer.train()
    ((inputs, output),) = trainer.recorded
    prompts = prompts_of(output)
    assert sorted(Counter(prompts).values()) == sorted(np.sum(plan, axis=0))
    assert len(set(prompts)) == len({str(row["prompt"]) for row in inputs}) == 3
    expected = plain_advantages(rewards_of(trainer, output), prompts, [1.0, 0.5], scale, "sum_then_normalize")
    torch.testing.assert_close(output["advantages"], torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert output["completion_ids"].shape == output["completion_mask"].shape
    assert all(len(value) == 12 for value in output.values() if getattr(value, "ndim", 0) > 0)


def test_groups_all_alike_and_a_group_of_one_do_not_train(build):
    def by_prompt(number: list[int], **kwargs: Any) -> list[float]:
        return [0.1 * (n % 7) for n in number]  # alike within a prompt, and not exact in float

    trainer = unequal(build, PLANS["a group of one"], reward=by_prompt)
    start = weights(trainer)
    trainer.train()
    assert (trainer.recorded[0][1]["advantages"] == 0).all()
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 1
    assert same_weights(start, weights(trainer))


def test_trl_metrics_hold_over_all_rounds(build):
    trainer = unequal(
        build, PLANS["4, 3, 5 in three rounds"], reward=[parity_reward, patchy_reward], max_completion_length=60
    )
    trainer.train()
    ((_, output),) = trainer.recorded
    log = trainer.state.log_history[0]
    ids, eos = completions_of(output), trainer.eos_token_ids
    lengths = np.array([len(row) for row in ids], dtype=float)
    ended = np.array([row[-1] in eos for row in ids])
    assert 0 < ended.sum() < 12
    rewards = np.array(rewards_of(trainer, output))
    total = np.where(np.isnan(rewards).all(1), np.nan, np.nansum(rewards, axis=1))
    expected = {
        "num_tokens": sum(len(p) for p in prompts_of(output)) + lengths.sum(),
        "completions/mean_length": lengths.mean(),
        "completions/min_length": lengths.min(),
        "completions/max_length": lengths.max(),
        "completions/clipped_ratio": 1 - ended.mean(),
        "completions/mean_terminated_length": lengths[ended].mean(),
        "completions/min_terminated_length": lengths[ended].min(),
        "completions/max_terminated_length": lengths[ended].max(),
        "rewards/parity_reward/mean": rewards[:, 0].mean(),
        "rewards/parity_reward/std": rewards[:, 0].std(ddof=1),
        "rewards/patchy_reward/mean": np.nanmean(rewards[:, 1]),
        "rewards/patchy_reward/std": np.nanstd(rewards[:, 1], ddof=1),
        "reward": np.nanmean(total),
        "reward_std": np.nanstd(total, ddof=1),
    }
    for name, value in expected.items():
        assert log[name] == pytest.approx(value, rel=1e-5), name
    assert output["num_items_in_batch"].item() == lengths.sum()


def test_frac_reward_zero_std_counts_rows_of_silent_groups(build):
    def first_prompt_varies(number: list[int], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(i % 2) if n == min(number) else 1.0 for i, n in enumerate(number)]

    trainer = unequal(build, [[6, 5, 1]], reward=first_prompt_varies, shuffle_dataset=False)
    trainer.train()
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == pytest.approx(6 / 12)


def test_adaroll_metrics(build):
    trainer = unequal(build, PLANS["4, 3, 5 in three rounds"], utility="mass")
    trainer.train()
    ((_, output),) = trainer.recorded
    log = {name: value for name, value in trainer.state.log_history[0].items() if name.startswith("adaroll/")}
    groups: dict[Any, list[float]] = {}
    weight: dict[Any, float] = {}
    rows = zip(prompts_of(output), rewards_of(trainer, output), output["advantages"].tolist(), strict=True)
    for prompt, (reward,), advantage in rows:
        groups.setdefault(prompt, []).append(reward)
        weight[prompt] = weight.get(prompt, 0.0) + abs(advantage)
    sizes = [len(g) for g in groups.values()]
    mixed = [0 < sum(g) < len(g) for g in groups.values()]
    mass = [sum(g) * (len(g) - sum(g)) / len(g) for g in groups.values()]
    expected = {
        "rollouts_per_prompt/min": 3,
        "rollouts_per_prompt/mean": 4,
        "rollouts_per_prompt/max": 5,
        "rollouts_per_prompt/std": np.std([4, 3, 5]),
        "frac_prompts_mixed": np.mean(mixed),
        "frac_prompts_all_correct": np.mean([sum(g) == len(g) for g in groups.values()]),
        "frac_prompts_all_wrong": np.mean([sum(g) == 0 for g in groups.values()]),
        "frac_rollouts_in_mixed_groups": np.dot(sizes, mixed) / 12,
        "utility/realised": np.mean(mass),
        "utility/uniform": 4 * (1 / 6) * (1 - 1 / 4),  # n E[p (1 - p)] (1 - 1 / n) under a uniform prior
        "prompt_reward_mean": np.mean([np.mean(g) for g in groups.values()]),
        "prompt_weight/max_over_mean": max(weight.values()) / np.mean(list(weight.values())),
        "rounds": 3,
    }
    for name, value in expected.items():
        assert log[f"adaroll/{name}"] == pytest.approx(value, rel=1e-5), name
    assert 0 <= log["adaroll/time/allocate"] < 10


def test_completions_table(build, tmp_path):
    calls = []

    def noting(completion_ids: list[list[int]], log_extra: Any, **kwargs: Any) -> list[float]:
        calls.append(len(completion_ids))
        if len(calls) == 2:  # in the second round only
            log_extra("note", [f"row {i}" for i in range(len(completion_ids))])
        return parity_reward(completions=completion_ids, completion_ids=completion_ids)

    plan = PLANS["4, 3, 5 in three rounds"]
    trainer = unequal(build, plan, reward=noting, log_completions=True)
    trainer.train()
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert calls == [6, 4, 2]
    assert table["round"].tolist() == [1] * 6 + [2] * 4 + [3] * 2
    assert table["group"].tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 2, 2, 1, 2]
    assert table["group_size"].tolist() == [[4, 3, 5][g] for g in table["group"]]
    notes = table["note"]
    assert notes[6:10].tolist() == [f"row {i}" for i in range(4)]
    assert notes.isna().sum() == 8
    assert table.groupby("group")["prompt"].agg(lambda column: column.astype(str).nunique()).tolist() == [1, 1, 1]
    successes, failures = Counter(), Counter()
    for number, rows in table.groupby("round"):
        for _, row in rows.iterrows():
            s, f = successes[row["group"], number - 1], failures[row["group"], number - 1]
            assert row["belief_mean"] == pytest.approx((1 + s) / (2 + s + f))
        for group in range(3):
            mine = rows[rows["group"] == group]["noting"]
            successes[group, number] = successes[group, number - 1] + int((mine == 1).sum())
            failures[group, number] = failures[group, number - 1] + int((mine == 0).sum())
    expected = plain_advantages(
        [[r] for r in table["noting"]], table["group"].tolist(), [1.0], "group", "sum_then_normalize"
    )
    np.testing.assert_allclose(table["advantage"], expected, rtol=1e-4, atol=1e-5)


def test_log_metric_averages_over_all_calls_of_all_rounds(build):
    def logging_reward(completion_ids: list[list[int]], log_metric: Any, **kwargs: Any) -> list[float]:
        for ids in completion_ids:
            if ids[0] % 3:  # not once per row, so a mean over rounds weighted by rows would be wrong
                log_metric("first_token", float(ids[0]))
        return parity_reward(completions=completion_ids, completion_ids=completion_ids)

    trainer = unequal(build, PLANS["4, 3, 5 in three rounds"], reward=logging_reward)
    trainer.train()
    firsts = [row[0] for row in completions_of(trainer.recorded[0][1]) if row[0] % 3]
    assert trainer.state.log_history[0]["first_token"] == pytest.approx(np.mean(firsts))


def test_the_allocator_is_told_what_happened(build):
    trainer = unequal(build, PLANS["4, 3, 5 in three rounds"], reward=patchy_reward, max_rollouts=9)
    trainer.train()
    allocator, table = trainer.allocator, trainer._logs
    first, second, third = allocator.states
    assert first.successes.sum() == first.failures.sum() == first.rollouts.sum() == 0
    rewards, groups = list(table["rewards"]["patchy_reward"]), list(table["extra"]["group"])
    for state, seen in ((second, 6), (third, 10)):
        for group in range(3):
            mine = [r for r, g in zip(rewards[:seen], groups[:seen], strict=True) if g == group]
            assert state.rollouts[group] == len(mine)
            assert state.successes[group] == sum(r == 1 for r in mine)
            assert state.failures[group] == sum(r == 0 for r in mine)
    assert any(np.isnan(rewards)), "some rollout must have no reward for this test to mean anything"
    assert (first.min_rollouts, first.max_rollouts, first.multiple_of) == (1, 9, 1)
    assert len(set(first.prompt_ids)) == 3


def test_a_batch_ends_early_when_the_budget_is_spent(build):
    trainer = unequal(build, [[4, 4, 4], [0, 0, 0]])
    trainer.train()
    assert trainer.state.log_history[0]["adaroll/rounds"] == 1


def test_there_are_never_more_rounds_than_rollouts(build):
    trainer = unequal(build, RandomCounts(rounds=50))
    trainer.train()
    assert trainer.state.log_history[0]["adaroll/rounds"] == 12


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([[2, 2]], r"an integer array of shape \(3,\) was expected"),
        ([[4.0, 4.0, 4.0]], "an integer array"),
        ([[-1, 7, 6]], "counts cannot be negative"),
        ([[5, 5, 5]], "between 1 and the 12 rollouts left"),
        ([[0, 0, 0], [4, 4, 4]], "between 1 and the 12 rollouts left"),
        ([[4, 4, 3]], "the last round must spend all 12"),
        ([[11, 1, 0]], "max_rollouts=10"),
        ([[6, 6, 0]], "min_rollouts=1"),
    ],
)
def test_an_allocator_that_breaks_its_contract_is_named(build, plan, message):
    trainer = unequal(build, plan, max_rollouts=10)
    with pytest.raises(ValueError, match=f"allocator 'fixed' returned counts .*{message}"):
        trainer.train()
    assert trainer.num_generations == 4


def test_a_failing_reward_leaves_the_trainer_as_it_was(build):
    def failing(completions: list[Any], **kwargs: Any) -> list[float]:
        raise RuntimeError("judge is down")

    trainer = unequal(build, PLANS["all at once"], reward=failing)
    metrics, logs = trainer._metrics["train"], trainer._logs
    with pytest.raises(RuntimeError, match="judge is down"):
        trainer.train()
    assert trainer.num_generations == 4
    assert trainer._metrics["train"] is metrics
    assert trainer._logs is logs


def test_rows_that_trl_writes_into_are_not_shared(build):
    seen = []

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = [[5 + i % 3, 7, 1] for i in range(len(prompts))]
        return {
            "prompt_ids": [[5, 6]] * len(prompts),
            "completion_ids": ids,
            "logprobs": [[0.0] * 3 for _ in ids],
            "turn": list(range(len(prompts))),
        }

    def reward(turn: list[int], **kwargs: Any) -> list[float]:
        seen.append(turn)
        return [float(t % 2) for t in turn]

    trainer = unequal(build, [[2, 2, 2], [4, 1, 1]], reward=reward, trainer_kwargs={"rollout_func": rollout})
    trainer.train()
    assert seen == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    assert "turn" not in trainer.recorded[0][0][0]


def test_prompt_weighting_evens_out_group_sizes(build):
    plan = [[1, 1, 1], [1, 6, 2]]
    by_rollout = unequal(build, plan)
    by_rollout.train()
    by_prompt = unequal(build, plan, prompt_weighting="prompt")
    by_prompt.train()
    (_, first), (_, second) = by_rollout.recorded[0], by_prompt.recorded[0]
    sizes = Counter(prompts_of(first))
    assert prompts_of(first) == prompts_of(second)
    factors = torch.tensor([12 / (3 * sizes[prompt]) for prompt in prompts_of(first)])
    torch.testing.assert_close(second["advantages"], first["advantages"] * factors)
    assert first["advantages"].abs().sum() > 0


def test_gradients_of_unequal_groups_change_the_weights(build):
    first, second = (unequal(build, plan) for plan in ([[4, 4, 4]], [[5, 4, 3]]))
    start = weights(first)
    first.train()
    second = unequal(build, [[5, 4, 3]])
    second.train()
    assert not same_weights(start, weights(first))
    assert not same_weights(weights(first), weights(second))


# Success signal


def test_success_is_read_from_the_named_reward():
    rewards = torch.tensor([[1.0, 0.2], [0.0, 0.9], [math.nan, 0.7], [1.0, math.nan], [math.nan, math.nan]])
    both = torch.tensor([1.0, 1.0])
    total = SuccessSignal(["a", "b"], both, threshold=1.0).outcomes(rewards)
    np.testing.assert_array_equal(total, [1, 0, 0, 1, np.nan])
    named = SuccessSignal(["a", "b"], both, "b", 0.7).outcomes(rewards)  # float32(0.7) is below 0.7
    np.testing.assert_array_equal(named, [0, 1, 1, np.nan, np.nan])


def test_an_unknown_success_reward_lists_the_names(build):
    with pytest.raises(ValueError, match=r"success_reward='accuracy' .* \['parity_reward', 'length_reward'\]"):
        build(
            AdaRollGRPOTrainer,
            allocator="uniform",
            reward=[parity_reward, length_reward],
            success_reward="accuracy",
        )


@pytest.mark.parametrize(
    ("values", "warns"),
    [
        ([0.0, 1.0, 1.0, 0.0], False),
        ([-1.0, 1.0, 1.0], False),
        ([0.0, 1.1, 0.1, 1.0], False),
        ([0.0, 0.0], False),
        ([0.2, 0.4, 0.6, 0.8], True),
        ([-300.0, -20.0], True),
        ([2.0, 3.0], True),
    ],
)
def test_rewards_far_from_binary_warn_once_and_only_without_a_threshold(values, warns):
    rewards = torch.tensor(values).unsqueeze(1)
    signal = SuccessSignal(["r"], torch.ones(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        signal.outcomes(rewards)
        signal.outcomes(rewards)
        SuccessSignal(["r"], torch.ones(1), threshold=0.5).outcomes(rewards)
    assert len(caught) == int(warns)
    if warns:
        text = str(caught[0].message)
        assert f"{min(values):.4g}" in text
        assert f"{max(values):.4g}" in text
        assert "success_threshold" in text


# Nothing to decide


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"per_device_train_batch_size": 8, "steps_per_generation": 1, "num_generations": 8},
            ("8 rollouts", "num_generations=8", "steps_per_generation", "per_device_train_batch_size"),
        ),
        ({"num_generations": 2, "min_rollouts": 2}, ("min_rollouts=2", "below 2")),
    ],
)
def test_a_batch_without_choice_warns_once_and_trains_grpo(build, options, parts):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = build(AdaRollGRPOTrainer, allocator="tests.tiny:RandomCounts", **options)
        trainer.train()
    messages = [str(w.message) for w in caught if "nothing to allocate" in str(w.message)]
    assert len(messages) == 1
    assert all(part in messages[0] for part in parts)
    plain = build(GRPOTrainer, plain_config=True, **{k: v for k, v in options.items() if k != "min_rollouts"})
    plain.train()
    assert same_weights(weights(plain), weights(trainer))


def test_the_allocator_may_be_a_dotted_path(build):
    trainer = build(AdaRollGRPOTrainer, allocator="tests.tiny:RandomCounts")
    assert isinstance(trainer.allocator, RandomCounts)


# Beliefs and checkpoints


class CountingTrainer(RecordingTrainer):
    """Counts the scored rollouts of every batch by prompt number."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.batches = [*getattr(self, "batches", []), (self.state.global_step, self._beliefs.state_dict())]
        return output


def with_ids(size: int) -> Dataset:
    data = sums_dataset(size)
    return data.add_column("prompt_id", [f"p{i}" for i in range(size)])


BELIEFS = {
    "belief_decay": 1.0,
    "steps_per_generation": 3,
    "max_steps": 7,
    "save_strategy": "steps",
    "save_steps": 1,
}


def saved_state(folder: Any, step: int) -> dict[str, Any]:
    return json.loads((folder / f"checkpoint-{step}" / "adaroll_state.json").read_text())


def saved_beliefs(folder: Any, step: int) -> dict[str, Any]:
    return saved_state(folder, step)["beliefs"]


def total(beliefs: dict[str, list[float]]) -> float:
    return sum(s + f for s, f in beliefs.values())


def test_beliefs_count_each_rollout_once_over_stop_and_resume(build, tmp_path):
    first = unequal(build, RandomCounts(3), CountingTrainer, dataset=with_ids(9), **BELIEFS)
    first.train()
    # Batches of 12 rollouts are generated at steps 0, 3 and 6, each used up three steps later
    assert [total(saved_beliefs(tmp_path, step)) for step in range(1, 8)] == [0, 0, 12, 12, 12, 24, 24]
    assert saved_beliefs(tmp_path, 3) == first.batches[0][1]

    resumed = unequal(build, RandomCounts(3, seed=1), CountingTrainer, dataset=with_ids(9), **BELIEFS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    # The batch generated at step 3 was one third used: it is generated again, and counted once
    after_step_3, (step, after_again) = saved_beliefs(tmp_path, 3), resumed.batches[0]
    assert step == 4
    assert total(after_again) == total(after_step_3) + 12
    assert all(after_again[key][0] >= s and after_again[key][1] >= f for key, (s, f) in after_step_3.items())
    assert set(after_again) <= {f"p{i}" for i in range(9)}


def test_a_resumed_run_starts_from_the_same_beliefs(build, tmp_path):
    options = {**BELIEFS, "max_steps": 9}
    whole = unequal(build, RandomCounts(3), CountingTrainer, dataset=with_ids(9), **options)
    whole.train()
    resumed = unequal(build, RandomCounts(3), CountingTrainer, dataset=with_ids(9), **options)
    start = {}

    class Watching(RandomCounts):
        def allocate(self, state: Any, rollouts_left: int, rounds_left: int) -> np.ndarray:
            start.setdefault("prior", (state.prior_alpha.copy(), state.prior_beta.copy(), state.prompt_ids))
            return super().allocate(state, rollouts_left, rounds_left)

    resumed.allocator = Watching(3)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    alpha, beta, keys = start["prior"]
    known = whole.batches[1][1]
    assert known
    for a, b, key in zip(alpha, beta, keys, strict=True):
        assert (a, b) == (1 + known.get(key, (0, 0))[0], 1 + known.get(key, (0, 0))[1])


def test_beliefs_carry_over_epochs_and_fade(build):
    priors = []

    class Watching(RandomCounts):
        def allocate(self, state: Any, rollouts_left: int, rounds_left: int) -> np.ndarray:
            if rounds_left == self.rounds:
                priors.append(dict(zip(state.prompt_ids, state.prior_alpha + state.prior_beta - 2, strict=True)))
            return super().allocate(state, rollouts_left, rounds_left)

    trainer = unequal(build, Watching(2), dataset=with_ids(3), belief_decay=0.5, max_steps=6, steps_per_generation=3)
    trainer.train()
    first, second = priors
    assert sum(first.values()) == 0
    assert sum(second.values()) == 12 * 0.5


def test_without_decay_every_visit_starts_from_the_prior(build):
    trainer = unequal(build, RandomCounts(2), dataset=with_ids(3), belief_decay=0.0, max_steps=6)
    trainer.train()
    assert len(trainer._beliefs) == 0


def test_evaluation_never_touches_beliefs(build):
    trainer = unequal(
        build,
        RandomCounts(2),
        dataset=with_ids(9),
        belief_decay=1.0,
        per_device_eval_batch_size=4,
        trainer_kwargs={"eval_dataset": with_ids(9)},
    )
    trainer.train()
    before = trainer._beliefs.state_dict()
    metrics = trainer.evaluate()
    assert "eval_reward" in metrics
    assert trainer._beliefs.state_dict() == before
    assert total(before) == 12
    # Its rows push those of training out of the completions table, and had no allocation
    assert set(trainer._logs["extra"]["group"]) == {None}
    assert len(trainer._logs["extra"]["group"]) == len(trainer._logs["prompt"])


def test_an_allocators_state_is_in_the_checkpoint(build, tmp_path):
    class Stateful(RandomCounts):
        seen = 0

        def allocate(self, state: Any, rollouts_left: int, rounds_left: int) -> np.ndarray:
            self.seen += 1
            return super().allocate(state, rollouts_left, rounds_left)

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = self.loaded = state["seen"]

    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    trainer = unequal(build, Stateful(2), **options)
    trainer.train()
    saved = [
        json.loads((tmp_path / f"checkpoint-{s}" / "adaroll_state.json").read_text())["allocator"] for s in (1, 3, 4)
    ]
    assert saved == [{"seen": 0}, {"seen": 2}, {"seen": 2}]  # the batch of step 4 is only partly used
    resumed = unequal(build, Stateful(2), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.allocator.loaded == 2


def test_a_checkpoint_goes_back_to_grpo_and_a_grpo_checkpoint_comes_here(build, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    unequal(build, RandomCounts(2), belief_decay=1.0, **options).train()
    back = build(GRPOTrainer, plain_config=True, **{**options, "max_steps": 6})
    back.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert back.state.global_step == 6
    here = unequal(build, RandomCounts(2), belief_decay=1.0, **{**options, "max_steps": 9})
    with pytest.warns(UserWarning, match="has no adaroll_state.json"):
        here.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert here.state.global_step == 9


def test_a_checkpoint_of_other_options_says_which_they_were(build, tmp_path):
    options = {"allocator": "adaroll", "save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    unequal(build, RandomCounts(2), **options).train()  # utility "mixed" by tests.tiny
    checkpoint = str(tmp_path / "checkpoint-3")
    with warnings.catch_warnings(record=True) as same:
        warnings.simplefilter("always")
        unequal(build, RandomCounts(2), table_cache_dir=str(tmp_path), **options)._restore(checkpoint)
    assert not [str(one.message) for one in same if "was saved with" in str(one.message)]
    other = unequal(build, RandomCounts(2), utility=None, **options)
    with pytest.warns(UserWarning, match=r"saved with .*utility='mixed'.* goes on with .*utility='progress'") as found:
        other._restore(checkpoint)
    (message,) = (str(one.message) for one in found if "was saved with" in str(one.message))
    assert "rounds=4" in message
    assert "rounds=1" in message
    assert "min_rollouts" not in message
    (tmp_path / "checkpoint-3" / "training_args.json").write_text("[1]")
    with warnings.catch_warnings(record=True) as unknown:
        warnings.simplefilter("always")
        other._restore(checkpoint)
    assert not [str(one.message) for one in unknown if "was saved with" in str(one.message)]


def test_a_damaged_state_file_is_named(build, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    unequal(build, RandomCounts(2), belief_decay=1.0, **options).train()
    path = tmp_path / "checkpoint-3" / "adaroll_state.json"
    path.write_text(path.read_text()[:-4])
    resumed = unequal(build, RandomCounts(2), belief_decay=1.0, **options)
    with pytest.raises(ValueError, match=r"adaroll_state.json is damaged"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_model_card_cites_the_paper(build, tmp_path):
    trainer = build(AdaRollGRPOTrainer, allocator="uniform")
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()
    assert "AdaRoll-GRPO" in card
    assert "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training" in card
    assert "- adaroll" in card


def test_a_plain_config_and_no_config_work(build, model_dir, tmp_path, monkeypatch):
    trainer = build(AdaRollGRPOTrainer, plain_config=True)
    assert type(trainer.args) is GRPOConfig
    assert (trainer.adaroll.utility, trainer.adaroll.rounds, trainer.adaroll.belief_decay) == ("progress", 1, 0.7)
    # TRL's default config is bf16, which needs a GPU
    on_cpu = functools.partial(GRPOConfig, use_cpu=True, bf16=False)
    monkeypatch.setattr("trl.trainer.grpo_trainer.GRPOConfig", on_cpu)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = AdaRollGRPOTrainer(str(model_dir), parity_reward, train_dataset=sums_dataset(8))
    assert bare.adaroll.allocator == "adaroll"


# Refusals


def test_a_seed_for_every_generation_call_is_refused(build):
    with pytest.raises(ValueError, match="generation_kwargs has seed=3"):
        check_trainer(SimpleNamespace(args=SimpleNamespace(generation_kwargs={"seed": 3}), tools=[]))


def test_an_environment_without_dataset_is_refused():
    with pytest.raises(ValueError, match="train_dataset=None"):
        check_call({"environment_factory": object, "train_dataset": None})
    check_call({"environment_factory": object, "train_dataset": [1]})
    check_call({"train_dataset": None})  # TRL says what is missing


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"use_vllm": True, "vllm_mode": "server"}, "vllm_mode='server'"),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 2}, "tensor_parallel_size=2"),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 1}, None),
        ({"use_vllm": False, "is_deepspeed_enabled": True, "stage": 3}, "ZeRO-3"),
        ({"use_vllm": False, "is_deepspeed_enabled": True, "stage": 2}, None),
        ({"use_vllm": False, "is_fsdp_enabled": True}, "FSDP"),
        ({"use_vllm": True, "vllm_mode": "server", "processes": 1}, None),
        ({"use_vllm": True, "vllm_mode": "server", "tools": []}, None),
    ],
)
def test_tools_are_refused_where_trl_deadlocks(options, refused):
    plugin = SimpleNamespace(zero_stage=options.pop("stage", 0))
    accelerator = SimpleNamespace(
        num_processes=options.pop("processes", 2), state=SimpleNamespace(deepspeed_plugin=plugin)
    )
    defaults = {"tools": [len], "is_deepspeed_enabled": False, "is_fsdp_enabled": False}
    trainer = SimpleNamespace(
        args=SimpleNamespace(generation_kwargs=None), accelerator=accelerator, **{**defaults, **options}
    )
    if refused:
        with pytest.raises(ValueError, match=refused):
            check_trainer(trainer)
    else:
        check_trainer(trainer)


def test_an_unsloth_trainer_is_refused(build):
    class UnslothGRPOTrainer(GRPOTrainer):
        pass

    class Mixed(AdaRollMixin, UnslothGRPOTrainer):
        pass

    with pytest.raises(ValueError, match="Unsloth"):
        build(Mixed, allocator="uniform")


def test_a_mixin_without_effect_is_refused():
    with pytest.raises(TypeError, match="not a GRPOTrainer"):
        type("Alone", (AdaRollMixin,), {})
    with pytest.raises(TypeError, match="Put the mixin first"):
        type("Late", (GRPOTrainer, AdaRollMixin), {})


def test_bases_that_count_on_whole_groups_are_refused_or_warned_about():
    replay = type("GRPOWithReplayBufferTrainer", (GRPOTrainer,), {})
    with pytest.raises(TypeError, match="ReplayBuffer"):
        type("Replaying", (AdaRollMixin, replay), {})
    custom = type("Custom", (GRPOTrainer,), {"_generate_and_score_completions": lambda self, inputs: {}})
    with pytest.warns(UserWarning, match="Custom overrides `_generate_and_score_completions`"):
        type("Ours", (AdaRollMixin, custom), {})


def test_rows_of_another_sampler_are_refused(build):
    class Unsorted(AdaRollGRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = unequal(build, PLANS["all at once"], Unsorted)
    with pytest.raises(ValueError, match="belong to one group of num_generations=4 and have different prompts"):
        trainer.train()


def test_a_trl_with_other_signatures_warns():
    class Changed:
        def _generate_and_score_completions(self, inputs: Any, seed: int) -> None: ...
        def _calculate_rewards(
            self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
        ) -> None: ...

    with pytest.warns(UserWarning, match=r"_generate_and_score_completions\(self, inputs, seed\)"):
        warn_if_trl_changed(Changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_trl_changed(GRPOTrainer)


# vLLM sleep mode


class FakeVLLM:
    """Sleeps as TRL's VLLMGeneration does in colocate mode."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.enable_sleep_mode, self._llm_weights_sleeping = True, True
        self.llm = SimpleNamespace(
            wake_up=lambda tags: self.calls.append(f"wake {tags[0]}"), sleep=lambda level: self.calls.append("sleep")
        )

    def sync_weights(self) -> None:
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["weights"])
            self._llm_weights_sleeping = False
        self.calls.append("sync")

    def generate(self) -> None:
        if self.enable_sleep_mode and self._llm_weights_sleeping:
            self.sync_weights()
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        self.calls.append("generate")
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True


def sleeping_trainer(**options: Any) -> Any:
    defaults = {"use_vllm": True, "vllm_mode": "colocate", "vllm_generation": FakeVLLM(), "_last_loaded_step": -1}
    state, args = SimpleNamespace(global_step=5), SimpleNamespace(vllm_enable_sleep_mode=True)
    return SimpleNamespace(**{**defaults, "state": state, "args": args, **options})


def test_vllm_stays_awake_between_rounds():
    trainer = sleeping_trainer()
    vllm = trainer.vllm_generation
    with kept_awake(trainer, rounds=3):
        for _ in range(3):
            vllm.generate()
    assert vllm.calls == ["wake weights", "sync", "wake kv_cache", "generate", "generate", "generate", "sleep"]
    assert (vllm.enable_sleep_mode, vllm._llm_weights_sleeping, trainer._last_loaded_step) == (True, True, 5)


def test_vllm_goes_back_to_sleep_after_an_error():
    trainer = sleeping_trainer()
    with pytest.raises(RuntimeError, match="judge"), kept_awake(trainer, rounds=2):
        raise RuntimeError("judge")
    assert trainer.vllm_generation.calls[-1] == "sleep"
    assert trainer.vllm_generation.enable_sleep_mode


@pytest.mark.parametrize("options", [{"vllm_mode": "server"}, {"use_vllm": False}, {"rounds": 1}])
def test_vllm_is_left_alone_otherwise(options):
    rounds = options.pop("rounds", 3)
    trainer = sleeping_trainer(**options)
    with kept_awake(trainer, rounds):
        pass
    assert trainer.vllm_generation.calls == []


# The project's own allocators


@pytest.mark.parametrize(("allocator", "rounds"), [("adaroll", 4), ("adaroll_joint", 7)])
def test_the_allocators_train(build, allocator, rounds):
    trainer = build(
        RecordingTrainer, allocator=allocator, block_size=3, num_generations=4, max_steps=3, learning_rate=1e-4
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["adaroll/rounds"] <= rounds  # adaroll_joint: 2 each, then the other 6 rollouts one by one
    assert log["adaroll/rounds"] > 1
    assert log["adaroll/rollouts_per_prompt/mean"] == 4
    assert log["adaroll/rollouts_per_prompt/min"] >= 2
    estimates = [log[f"adaroll/utility/{name}"] for name in ("uniform", "planned", "bound")]
    assert estimates[0] < estimates[1] <= estimates[2] + 1e-9
    assert len(trainer.recorded[0][1]["advantages"]) == 12
