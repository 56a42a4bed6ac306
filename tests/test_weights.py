"""Which weight the update gives to prompts of each pass rate: `adaroll_trl.weights` and `adaroll_trl.weighting`."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adaroll_trl import AdaRollGRPOConfig
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.simulation import simulate
from adaroll_trl.weighting import BIN_EDGES, GRID, PromptWeighting, WeightCurve, group_mass
from tests.tiny import FixedCounts, RecordingTrainer, build_model_dir, make_trainer, prompts_of


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    model_dir = build_model_dir(folder / "model")

    def make(**options: Any) -> Any:
        return make_trainer(RecordingTrainer, model_dir=model_dir, output_dir=folder / "run", **options)

    return make


def batch_of(successes: Any, rollouts: Any, prior: tuple[float, float] = (1.0, 1.0)) -> Any:
    """What `PromptWeighting` reads of a generation batch."""
    s, n = np.asarray(successes, dtype=np.float64), np.asarray(rollouts)
    return SimpleNamespace(
        successes=s,
        failures=n - s,
        rollouts=n,
        num_prompts=len(n),
        prior_alpha=np.full(len(n), prior[0]),
        prior_beta=np.full(len(n), prior[1]),
    )


RATES = np.array([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95])
HARD = np.repeat(RATES, [5, 4, 3, 2, 1, 1, 1])


def played_weights(weighting: str, utility: str = "mixed", batches: int = 600) -> tuple[Any, np.ndarray]:
    """Realised w at `RATES`, in plain GRPO's units, over the last four fifths of `batches` simulated batches."""
    played = simulate("adaroll", 32, 256, 4, utility, HARD, num_batches=batches, min_rollouts=2, max_rollouts=32)
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting=weighting), 8)
    masses = []
    for s, n in zip(played.successes, played.rollouts, strict=True):
        batch = batch_of(s, n)
        factors = weigher.factors(batch)
        mass = group_mass(batch.successes, batch.failures) * (1.0 if factors is None else factors)
        weigher.record(batch, mass)
        masses.append(mass)
    settled, rates = np.array(masses[batches // 5 :]), played.success_probs[batches // 5 :]
    return weigher, np.array([settled[rates == p].mean() / (7 * p * (1 - p)) for p in RATES])


# The curve, and targets


def test_uniform_weights_even_out_what_an_adaptive_allocator_does():
    _, plain = played_weights("rollout")
    _, evened = played_weights("uniform")
    assert plain.max() / plain.min() > 2
    assert evened.max() / evened.min() < plain.max() / plain.min() / 1.4
    assert np.abs(evened - 1).max() < 0.5


def test_the_logged_curve_is_the_realised_one():
    weigher, realised = played_weights("rollout")
    bins = np.searchsorted(BIN_EDGES, RATES, side="right") - 1
    shown = weigher._curve.values()
    relative = shown[bins] / shown[bins][3]
    np.testing.assert_allclose(relative, realised / realised[3], rtol=0.35)


def hard_first(pass_rates: np.ndarray) -> np.ndarray:
    return (1 - pass_rates) ** 2 + 0.05


def test_a_target_of_ones_own_is_followed():
    _, realised = played_weights("tests.test_weights:hard_first")
    wanted = hard_first(RATES)
    assert np.corrcoef(np.log(realised), np.log(wanted))[0, 1] > 0.9


def test_equal_groups_are_uniform_already():
    random = np.random.default_rng(0)
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting="uniform"), 8)
    for _ in range(200):
        batch = batch_of(random.binomial(8, random.choice(HARD, 32)), np.full(32, 8))
        factors = weigher.factors(batch)
        weigher.record(batch, group_mass(batch.successes, batch.failures) * factors)
    np.testing.assert_allclose(factors, 1, atol=0.3)


def test_factors_come_back_from_a_state():
    weigher, _ = played_weights("uniform", batches=20)
    fresh = PromptWeighting(AdaRollOptions(prompt_weighting="uniform"), 8)
    fresh.load_state_dict(weigher.state_dict())
    batch = batch_of([1, 2, 0, 5], [2, 9, 8, 6])
    np.testing.assert_array_equal(fresh.factors(batch), weigher.factors(batch))
    assert fresh.record(batch, np.ones(4)) == weigher.record(batch, np.ones(4))


def test_a_bin_without_prompts_is_not_shown():
    curve = WeightCurve()
    assert np.isnan(curve.values()).all()
    at_one_half = np.zeros((4, len(GRID)))
    at_one_half[:, len(GRID) // 2] = 1
    curve.update(at_one_half, np.ones(4))
    assert np.isfinite(curve.values()).sum() == 1


def test_progress_weights_have_mean_one_over_groups_with_signal():
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting="progress", kappa=3.0), 8)
    batch = batch_of([1, 4, 0, 8], [2, 8, 8, 8])
    factors = weigher.factors(batch)
    assert factors[:2].mean() == pytest.approx(1)
    assert factors[0] / factors[1] == pytest.approx((2 + 3) / (0.5 + 3))
    np.testing.assert_array_equal(weigher.factors(batch_of([0, 8], [8, 8])), 1)  # no signal at all


def test_prompt_weights_even_out_group_sizes():
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting="prompt"), 8)
    factors = weigher.factors(batch_of([1, 0, 0], [6, 2, 0]))
    np.testing.assert_allclose(factors[:2], [8 / (2 * 6), 8 / (2 * 2)])
    np.testing.assert_array_equal(weigher.factors(batch_of([1, 2], [4, 4])), 1)


# In the trainer


@pytest.mark.parametrize("scale", ["group", "none"])
def test_weights_of_a_trainer_are_those_of_unscaled_advantages(build, scale):
    plan = [[1, 1, 1], [1, 6, 2]]
    trainer = build(prompt_weighting="progress", kappa=2.0, scale_rewards=scale, max_steps=1)
    trainer.allocator = FixedCounts(plan)
    trainer.train()
    (_, output) = trainer.recorded[0]
    groups = prompts_of(output)
    advantages = output["advantages"]
    sizes = Counter(groups)
    masses, raw = {}, {}
    for group in sizes:
        rows = torch.tensor([one == group for one in groups])
        masses[group] = float(advantages[rows].abs().sum() / 2)
        successes = int((advantages[rows] > 0).sum())
        raw[group] = successes * (sizes[group] - successes) / sizes[group]
    factors = {group: 1 / (raw[group] + 2) for group in sizes}
    mean = np.mean([factors[group] for group in sizes if raw[group] > 0])
    assert any(raw.values())
    for group in sizes:
        assert masses[group] == pytest.approx(raw[group] * factors[group] / mean, abs=1e-5)


@pytest.mark.parametrize("weighting", ["uniform", "tests.test_weights:hard_first"])
def test_training_with_targets_logs_the_curve(build, weighting):
    trainer = build(prompt_weighting=weighting, steps_per_generation=16, max_steps=17)
    trainer.train()
    logged = [name for entry in trainer.state.log_history for name in entry]
    assert any(name.startswith("adaroll/prompt_weight/curve/") for name in logged)


# Refusals


def zero_somewhere(pass_rates: np.ndarray) -> np.ndarray:
    return np.where(pass_rates < 0.1, 0.0, 1.0)


def one_number(pass_rates: np.ndarray) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("target", "message"),
    [("zero_somewhere", "values 0 to 1"), ("one_number", r"shape \(\)"), ("missing", "cannot be loaded")],
)
def test_a_target_must_give_a_positive_weight_for_each_rate(target, message):
    with pytest.raises(ValueError, match=message):
        PromptWeighting(AdaRollOptions(prompt_weighting=f"tests.test_weights:{target}"), 8)


def test_an_unknown_weighting_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"prompt_weighting='token' is not known. Use one of 'rollout', 'prompt'"):
        AdaRollGRPOConfig(output_dir=str(tmp_path), prompt_weighting="token")


def test_targets_refuse_rewards_that_are_normalised_one_by_one(build):
    with pytest.raises(ValueError, match="prompt_weighting='uniform' with multi_objective_aggregation"):
        build(prompt_weighting="uniform", multi_objective_aggregation="normalize_then_sum")
