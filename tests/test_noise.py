"""kappa measured from gradients: the estimate, the projected gradients, and both in a trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.kappa import RunningKappa
from adaroll_trl.noise import KappaCallback, KappaEstimate, estimate_kappa, measure_kappa, rollout_gradients
from tests.tiny import build_model_dir, make_trainer


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    model_dir = build_model_dir(folder / "model")

    def make(**options: Any) -> Any:
        return make_trainer(AdaRollGRPOTrainer, model_dir=model_dir, output_dir=folder / "run", **options)

    make.model_dir = model_dir
    return make


def made_gradients(
    kappa: float, prompts: int, sizes: list[tuple[int, int]], seed: int = 0, dimension: int = 40
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rollouts with noise of variance 1 around directions of spread 1 / kappa; three of four prompts have signal."""
    random = np.random.default_rng(seed)
    gradients, ids, outcomes = [], [], []
    for prompt in range(prompts):
        s, f = sizes[prompt % len(sizes)]
        direction = 0.3 + random.normal(size=dimension) * np.sqrt(1 / kappa / dimension)
        shared = random.normal(size=dimension)  # what right and wrong answers have in common does not matter
        for outcome in [1.0] * s + [0.0] * f:
            noise = random.normal(size=dimension) / np.sqrt(dimension)
            gradients.append(shared + (outcome - 0.5) * direction + noise)
            ids.append(prompt)
            outcomes.append(outcome)
    return np.array(gradients), np.array(ids), np.array(outcomes)


SIZES = [(1, 7), (4, 4), (8, 0), (2, 3)]


@pytest.mark.parametrize("kappa", [0.5, 4.0])
def test_kappa_is_found_within_its_error(kappa):
    inverses = [estimate_kappa(*made_gradients(kappa, 60, SIZES, seed)) for seed in range(40)]
    found = np.array([one.inverse for one in inverses])
    assert abs(found.mean() - 1 / kappa) < 4 * found.std() / math.sqrt(40)
    jackknife = np.mean([one.inverse_error for one in inverses])
    assert 0.7 < jackknife / found.std(ddof=1) < 1.4
    assert np.mean([one.interval[0] < kappa < one.interval[1] for one in inverses]) > 0.8
    assert inverses[0].prompts == 45


def test_no_spread_is_an_infinite_kappa_not_a_crash():
    for seed in range(20):
        found = estimate_kappa(*made_gradients(1e9, 8, SIZES, seed))
        if found.inverse <= 0:
            break
    assert found.kappa == math.inf
    assert found.interval[1] == math.inf


def test_rollouts_without_reward_are_left_out():
    gradients, ids, outcomes = made_gradients(2.0, 12, SIZES)
    more = (np.full((5, 40), 1e6), np.arange(5), np.full(5, np.nan))
    with_more = estimate_kappa(*(np.concatenate(pair) for pair in zip((gradients, ids, outcomes), more, strict=True)))
    assert with_more == estimate_kappa(gradients, ids, outcomes)


@pytest.mark.parametrize("sizes", [[(1, 1)], [(8, 0)]])
def test_too_little_to_measure_is_said(sizes):
    with pytest.raises(ValueError, match="kappa needs at least 3 prompts with both outcomes"):
        estimate_kappa(*made_gradients(2.0, 12, sizes))


def test_rollouts_that_never_differ_are_said():
    gradients = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]] * 3) + np.repeat(np.eye(3, 2), 3, axis=0)
    with pytest.raises(ValueError, match="kappa needs rollouts that differ"):
        estimate_kappa(gradients, np.repeat(np.arange(3), 3), [1, 0, 0] * 3)


@pytest.fixture(scope="module")
def rollouts(build):
    """A model, and padded rows as TRL has them."""
    model = AutoModelForCausalLM.from_pretrained(build.model_dir, dtype=torch.float32)
    ids = torch.randint(5, 50, (6, 12), generator=torch.Generator().manual_seed(1))
    attention = torch.ones_like(ids)
    attention[1, :3] = 0  # a short prompt
    attention[2, 9:] = 0  # a short completion
    written = attention[:, 6:].clone()
    written[3, 2:4] = 0  # a tool's words
    return model, ids, attention, written


@pytest.mark.parametrize("mean_over_tokens", [False, True])
def test_gradients_are_those_of_the_whole_batch(rollouts, mean_over_tokens):
    """The sum of the rows is the gradient of the batch's loss, computed at once with padding."""
    model, ids, attention, written = rollouts
    rows = rollout_gradients(
        model, ids, attention, written, temperature=0.7, mean_over_tokens=mean_over_tokens, dimension=None
    )
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits / 0.7
    logp = torch.log_softmax(logits[:, 5:-1], dim=-1).gather(2, ids[:, 6:, None]).squeeze(2) * written
    per_row = logp.sum(1) / (written.sum(1) if mean_over_tokens else 1)
    whole = torch.autograd.grad(per_row.sum(), list(model.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in whole])
    torch.testing.assert_close(rows.sum(0), expected, atol=1e-4, rtol=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_projections_keep_inner_products(rollouts):
    model, ids, attention, written = rollouts
    exact = rollout_gradients(model, ids, attention, written, dimension=None)
    gram = exact @ exact.T
    sketches = [rollout_gradients(model, ids, attention, written, dimension=256, seed=seed) for seed in range(24)]
    grams = torch.stack([sketch @ sketch.T for sketch in sketches])
    scale = torch.sqrt(gram.diagonal()[:, None] * gram.diagonal())
    error = grams.std(dim=0) / math.sqrt(24)
    assert ((grams.mean(dim=0) - gram).abs() < 4.5 * error + 1e-6).all()
    assert ((grams - gram).abs() / scale).mean() < 2 * math.sqrt(2 / 256)


class TwoExperts(torch.nn.Module):
    """A row is read by the expert that its first token names; the other one has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Embedding(4, 4) for _ in range(2))
        self.shared = torch.nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        hidden = self.experts[int(input_ids[0, 0])](input_ids)
        return SimpleNamespace(logits=self.shared(hidden))


def test_what_a_rollout_does_not_use_keeps_its_place():
    ids = torch.tensor([[0, 2, 1], [1, 2, 1]])
    ones = torch.ones_like(ids)
    whole = rollout_gradients(TwoExperts(), ids, ones, ones[:, 1:], dimension=None)
    assert not whole[0, 16:32].any()
    assert not whole[1, :16].any()
    assert whole[:, 32:].any(dim=1).all()


def test_kappa_of_a_trainer(build):
    trainer = build(steps_per_generation=16, max_steps=2, num_generations=4)
    with pytest.raises(ValueError, match="call it after the first step"):
        measure_kappa(trainer)
    trainer.add_callback(KappaCallback(trainer, every=1))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "adaroll/kappa_inverse" in entry]
    assert len(logged) == 2
    assert logged[0]["adaroll/kappa_inverse_error"] > 0
    found = measure_kappa(trainer, max_prompts=5)
    assert found.prompts == 5
    assert found.rollouts == trainer_rollouts(trainer, 5)


def trainer_rollouts(trainer: Any, prompts: int) -> int:
    batch = trainer.last_batch
    return int(np.isin(batch.group_ids, batch.mixed_groups[:prompts]).sum())


def test_measuring_changes_nothing(build):
    def run(every: int | None) -> list[float]:
        trainer = build(steps_per_generation=6, max_steps=2, num_generations=4)
        if every:
            trainer.add_callback(KappaCallback(trainer, every=every))
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert run(None) == run(1)


def test_an_interval_of_no_steps_is_refused(build):
    with pytest.raises(ValueError, match="every=0 must be at least 1"):
        KappaCallback(None, every=0)


# kappa while training


def test_the_running_kappa_weighs_by_error_and_forgets():
    def found(inverse: float, error: float) -> KappaEstimate:
        return KappaEstimate(1 / inverse if inverse > 0 else math.inf, inverse, error, 1.0, inverse, 8, 64)

    assert all(RunningKappa(start / 10).value == start / 10 for start in range(1, 400))
    running = RunningKappa(2.0)
    assert running.value == 2
    for _ in range(40):
        running.update(found(0.125, 0.05))
    assert running.value == 8
    running.update(found(4.0, 5.0))  # rough: hardly counts
    assert running.value == 8
    for _ in range(40):
        running.update(found(-0.5, 0.05))  # no spread seen: as large as it goes
    assert running.value == 64
    for _ in range(40):
        running.update(found(1.0, 0.05))
    assert running.value == 1
    before = running.state_dict()
    running.update(found(math.nan, 0.1))
    running.update(found(1.0, 0.0))
    assert running.state_dict() == before
    other = RunningKappa(2.0)
    other.load_state_dict(json.loads(json.dumps(before)))
    assert other.value == running.value
    with pytest.raises(ValueError, match="a finite `weight` above 0"):
        other.load_state_dict({"sum": 1.0, "weight": -1.0})


@given(st.floats(0.01, 100), st.floats(-100, 100), st.floats(0.01, 100))
def test_the_running_kappa_is_on_its_grid(start, inverse, error):
    running = RunningKappa(start)
    running.update(KappaEstimate(1.0, inverse, error, 1.0, 1.0, 3, 9))
    assert 1 / 8 <= running.value <= 64
    assert 2 * math.log2(running.value) == pytest.approx(round(2 * math.log2(running.value)))


def test_kappa_is_measured_and_used(build):
    options = {"utility": "progress", "prompt_weighting": "progress", "kappa": 0.3, "kappa_every": 1}
    options |= {"num_generations": 8, "steps_per_generation": 8, "per_device_train_batch_size": 4, "min_rollouts": 4}
    trainer = build(**options, max_steps=24, save_strategy="steps", save_steps=16)
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "adaroll/kappa_inverse" in entry]) > 3
    used = dict(trainer._planner.utility.parameters)["kappa"]
    assert used != 0.3
    assert used == trainer._weighting.kappa == dict(trainer.allocator.utility.parameters)["kappa"]
    again = build(**options, max_steps=16)
    again._restore(str(Path(trainer.args.output_dir) / "checkpoint-16"))
    assert again._kappa.value != 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa_every": 5, "utility": "mixed"}, "kappa_every=5 measures a kappa that nothing reads"),
        ({"kappa_every": 0, "utility": "progress"}, "kappa_every=0 must be"),
        ({"kappa_every": 5, "utility": "progress", "allocator": "adaroll_joint"}, "its tables take seconds to hours"),
    ],
)
def test_a_kappa_that_cannot_be_measured_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        AdaRollGRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **options)
