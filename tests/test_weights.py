"""Which weight the update gives to prompts of each pass rate: `adaroll_trl.weights` and `adaroll_trl.weighting`."""

from __future__ import annotations

import importlib.util
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adaroll_trl import AdaRollGRPOConfig
from adaroll_trl.allocators import AllocationState, Allocator
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.simulation import simulate
from adaroll_trl.utilities import group_mass
from adaroll_trl.weight_curve import BIN_EDGES, GRID, WeightCurve
from adaroll_trl.weighting import PromptWeighting
from adaroll_trl.weights import StoppingPlan, implied_weight, least_noise_masses, unbiased_masses
from tests.tiny import FixedCounts, RecordingTrainer, build_model_dir, make_trainer, prompts_of, same_weights, weights

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    model_dir = build_model_dir(folder / "model")

    def make(**options: Any) -> Any:
        return make_trainer(RecordingTrainer, **{"model_dir": model_dir, "output_dir": folder / "run", **options})

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


# Exact weights of a plan


def both(s: int, f: int) -> bool:
    return s > 0 and f > 0


MIXED_CAP_32 = StoppingPlan.until(both, 32)
IN_ROUNDS = StoppingPlan(lambda s, f, r: (4, 3, 2)[r] if not both(s, f) else 0, 3)
PLANS = {
    "fixed": StoppingPlan.fixed(6),
    "mixed": StoppingPlan.until(both, 7),
    "two_of_each": StoppingPlan.until(lambda s, f: min(s, f) >= 2, 8),
    "inverse": StoppingPlan.until(lambda s, f: s == 2, 9),
    "first_success": StoppingPlan.until(lambda s, f: f >= 1, 6),  # may end with a single failure
    "rounds": IN_ROUNDS,
}


@pytest.mark.parametrize(
    ("plan", "estimator", "each", "expected"),
    [
        (StoppingPlan.fixed(8), "mean", "rollout", [1, 1, 1, 1]),
        (StoppingPlan.fixed(8), "std", "rollout", [1.39, 1.33, 1.25, 1.09]),
        (MIXED_CAP_32, "mean", "prompt", [2.60, 2.14, 1.69, 1.18]),
        (MIXED_CAP_32, "mean", "rollout", [8.62, 5.82, 3.45, 1.47]),
        (MIXED_CAP_32, "std", "rollout", [18.6, 11.5, 5.82, 1.76]),
        (MIXED_CAP_32, "population_std", "rollout", [15.6, 9.74, 5.07, 1.65]),
    ],
)
def test_published_weights_to_three_figures(plan, estimator, each, expected):
    weights = implied_weight(plan, [0.02, 0.05, 0.1, 0.25, 0.5], estimator, each)
    unit = 10.0 ** (np.floor(np.log10(expected)) - 2)
    assert (np.abs(weights[:-1] / weights[-1] - expected) <= 0.6 * unit).all()  # three of the notes' are rounded twice


def sequences_of(plan: StoppingPlan) -> dict[tuple[int, int], list[str]]:
    """Every outcome sequence that the plan admits, by where it ends; by brute force."""
    found = [""]
    for round_ in range(plan.rounds):
        grown = []
        for sequence in found:
            count = plan.counts(sequence.count("S"), sequence.count("F"), round_)
            grown += [sequence + "".join(more) for more in product("SF", repeat=count)]
        found = grown
    ends: dict[tuple[int, int], list[str]] = {}
    for sequence in found:
        ends.setdefault((sequence.count("S"), sequence.count("F")), []).append(sequence)
    return ends


@pytest.mark.parametrize("name", PLANS)
def test_sequences_are_those_of_brute_force(name):
    ends, brute = PLANS[name].ends, sequences_of(PLANS[name])
    assert ends.pairs() == sorted(brute)
    for pair, count, sf, fs in zip(ends.pairs(), ends.sequences, ends.begun["SF"], ends.begun["FS"], strict=True):
        assert count == len(brute[pair])
        assert sf == sum(one.startswith("SF") for one in brute[pair])
        assert fs == sum(one.startswith("FS") for one in brute[pair])


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("find", [unbiased_masses, least_noise_masses])
def test_unbiased_masses_are_unbiased_at_every_rate(name, find):
    plan = PLANS[name]
    rates = np.array([0.01, 0.2, 0.5, 0.77, 0.99])
    found = find(plan)
    mass = np.array([found[pair] for pair in plan.ends.pairs()])
    np.testing.assert_allclose(plan.ends.probabilities(rates) @ mass, rates * (1 - rates), atol=1e-12)
    for (s, f), value in found.items():
        assert value == 0 or (s > 0 and f > 0)


def test_unbiased_mass_of_a_fixed_number_is_the_usual_one():
    for (s, f), mass in unbiased_masses(StoppingPlan.fixed(7)).items():
        assert mass == pytest.approx(s * f / 42)


def test_least_noise_halves_the_noise_of_the_first_two():
    def noise(found: dict[tuple[int, int], float]) -> float:
        s, f = MIXED_CAP_32.ends.successes, MIXED_CAP_32.ends.failures
        squares = np.array([h**2 * (1 / max(a, 1) + 1 / max(b, 1)) for (a, b), h in found.items()])
        assert list(found) == list(zip(s, f, strict=True))
        rates = (np.arange(200) + 0.5) / 200
        return float((MIXED_CAP_32.ends.probabilities(rates) @ squares).mean())

    assert noise(least_noise_masses(MIXED_CAP_32)) < 0.6 * noise(unbiased_masses(MIXED_CAP_32))


@pytest.mark.parametrize(
    "plan", [StoppingPlan.fixed(1), StoppingPlan.fixed(0), StoppingPlan(lambda s, f, r: 1 - r if r == 0 else 0, 2)]
)
def test_a_plan_that_may_end_after_one_rollout_has_no_unbiased_weight(plan):
    with pytest.raises(ValueError, match="Let it draw at least 2 rollouts"):
        unbiased_masses(plan)


def test_bad_plans_and_questions_are_named():
    with pytest.raises(ValueError, match=r"counts\(0, 0, 0\) is -1"):
        _ = StoppingPlan.fixed(-1).ends
    with pytest.raises(ValueError, match="rounds=0 of a plan must be at least 1"):
        StoppingPlan(lambda s, f, r: 1, 0)
    with pytest.raises(ValueError, match="cap=2 must be at least first=3"):
        StoppingPlan.until(both, 2, first=3)
    with pytest.raises(ValueError, match=r"p=\[0.0, 0.5\] must be above 0"):
        implied_weight(MIXED_CAP_32, [0.0, 0.5])
    with pytest.raises(ValueError, match="estimator='median' is not known"):
        implied_weight(MIXED_CAP_32, 0.5, "median")
    with pytest.raises(ValueError, match="each='token' is not known"):
        implied_weight(MIXED_CAP_32, 0.5, each="token")
    with pytest.raises(ValueError, match="round 2: the plan wants 3 rollouts after 4 successes and 0 failures"):
        IN_ROUNDS.end_of([(4, 0), (1, 1)])


def test_a_plan_is_followed_through_rounds_that_are_not_its_own():
    assert IN_ROUNDS.end_of([(4, 0), (2, 1), (5, 5)]) == (6, 1)


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


def test_a_target_that_a_checkpoint_does_not_have_starts_with_factors_of_one():
    weigher, _ = played_weights("rollout", batches=100)
    fresh = PromptWeighting(AdaRollOptions(prompt_weighting="uniform"), 8)
    fresh.load_state_dict(weigher.state_dict())
    np.testing.assert_allclose(fresh.factors(batch_of([1, 2, 0, 5], [2, 9, 8, 6])), 1, rtol=1e-9)


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


class StopWhenMixed(Allocator):
    """Two rollouts each, then one at a time to prompts not mixed yet, up to `cap`; at the end the rest to anybody."""

    name = "stop_when_mixed"

    def __init__(self, cap: int = 4) -> None:
        self.cap = cap

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return self.cap

    def stopping_plan(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> list[StoppingPlan]:
        return [StoppingPlan.until(both, self.cap, first=2)] * state.num_prompts

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> np.ndarray:
        if not state.rollouts.any():
            return np.full(state.num_prompts, 2)
        counts = ((state.rollouts < self.cap) & ((state.successes == 0) | (state.failures == 0))).astype(np.int64)
        if not counts.any() or rounds_left == 1:
            done = np.flatnonzero(counts == 0)
            rest = rollouts_left - counts.sum()
            np.add.at(counts, done[np.arange(rest) % len(done)] if rest else [], 1)
        return counts


class FixedBeforehand(StopWhenMixed):
    """A plan that this allocator does not keep."""

    def stopping_plan(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> list[StoppingPlan]:
        return [StoppingPlan.fixed(3)] * state.num_prompts


def batch_in_rounds(rounds: list[tuple[list[int], list[int]]], plans: Any = None) -> Any:
    s, f = (np.array([round_[kind] for round_ in rounds], dtype=np.float64) for kind in (0, 1))
    batch = batch_of(s.sum(axis=0), (s + f).sum(axis=0).astype(int))
    batch.rounds = [SimpleNamespace(successes=a, failures=b) for a, b in zip(s, f, strict=True)]
    batch.keys, batch.plans = [str(i) for i in range(batch.num_prompts)], plans
    return batch


def test_unbiased_factors_of_one_round_give_all_groups_the_same_weight():
    factors = PromptWeighting(AdaRollOptions(prompt_weighting="unbiased"), 8).factors(
        batch_in_rounds([([1, 5, 0, 0], [1, 10, 1, 0])])
    )
    np.testing.assert_allclose(factors[:2], [7 / 1, 7 / 14])
    assert np.isfinite(factors).all()


def test_unbiased_factors_follow_each_prompts_plan():
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting="unbiased"), 4)
    plan = StoppingPlan.until(both, 4, first=2)
    rounds = [([1, 2, 0], [1, 0, 2]), ([0, 0, 0], [0, 1, 1]), ([2, 0, 0], [1, 0, 1])]
    factors = weigher.factors(batch_in_rounds(rounds, [plan] * 3))
    # mixed at once: T = 1/2 over its final mass 3 * 2 / 5; mixed later: T = 0; never: nothing to weigh
    np.testing.assert_allclose(factors, [3 * 0.5 / (6 / 5), 0, 0])
    with pytest.raises(ValueError, match=r"prompt '1' did not get what the allocator's `stopping_plan` says. round 2"):
        weigher.factors(batch_in_rounds([([1, 2, 0], [1, 0, 2]), ([0, 0, 0], [0, 0, 1])], [plan] * 3))


def test_a_rollout_without_reward_costs_its_prompt_the_update_and_not_the_run():
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting="unbiased"), 4)
    plan = StoppingPlan.until(both, 4, first=2)
    batch = batch_in_rounds([([1, 1], [1, 0])], [plan] * 2)
    batch.rounds *= 2  # two rounds, so that the plans count
    batch.rollouts = batch.rollouts + np.array([0, 1])
    assert weigher.factors(batch)[1] == 0
    batch.plans = None
    with pytest.raises(ValueError, match="`stopping_plan` has no plans for this batch of 2 prompts"):
        weigher.factors(batch)


def test_expected_updates_on_a_bandit_are_the_gradient():
    """Softmax over three right and three wrong answers; any stopping, unbiased factors, mean baseline."""
    random = np.random.default_rng(0)
    logits = np.array([0.3, -1.0, -2.0, 1.0, 0.5, 0.0])
    policy = np.exp(logits) / np.exp(logits).sum()
    right = np.arange(6) < 3
    p = policy[right].sum()
    gradient = policy * (right - p)
    for plan in (PLANS["two_of_each"], IN_ROUNDS):
        table = unbiased_masses(plan)
        updates = []
        for _ in range(4000):
            answers: list[int] = []
            for round_ in range(plan.rounds):
                s = int(right[answers].sum()) if answers else 0
                answers += random.choice(6, plan.counts(s, len(answers) - s, round_), p=policy).tolist()
            rewards = right[answers].astype(float)
            s, n = rewards.sum(), len(answers)
            scores = np.eye(6)[answers] - policy
            factor = table[int(s), int(n - s)] / max(s * (n - s) / n, 1e-9)
            updates.append(factor * (rewards - s / n) @ scores)
        mean, error = np.mean(updates, axis=0), np.std(updates, axis=0) / np.sqrt(len(updates))
        assert (np.abs(mean - gradient) < 4 * error).all()
        assert np.linalg.norm(error) < 0.2 * np.linalg.norm(gradient)


def script_and_its_page() -> tuple[Any, dict[tuple[str, str], list[float]]]:
    """scripts/prompt_weights.py, and w(p) / w(0.5) by plan and estimator as its page gives them."""
    spec = importlib.util.spec_from_file_location("prompt_weights", ROOT / "scripts" / "prompt_weights.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "results" / "prompt_weights.md").read_text()
    table = page.split("## Plans")[1].split("## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    return script, {(row[0], row[1]): [float(cell) for cell in row[2:-1]] for row in rows[2:]}


def advantages_of(s: np.ndarray, f: np.ndarray, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """Of a success and of a failure in each group, from the rewards' mean and standard deviation."""
    n = s + f
    mean = s / n
    variance = mean * (1 - mean)
    if estimator == "mean":
        spread = np.ones(len(n))
    else:
        spread = np.sqrt(variance * n / (n - 1) if estimator == "std" else variance) + 1e-4
    return (1 - mean) / spread, -mean / spread


def test_expected_updates_of_every_plan_and_estimator_are_what_the_docs_say():
    """Sampled answers of the script's bandit, advantage times score: w(p) times the gradient, in every logit."""
    script, documented = script_and_its_page()
    assert len(documented) == len(script.PLANS) * len(script.ESTIMATORS) - 1  # of fixed n all prompts are alike
    checked = 0
    for name, plan in script.PLANS.items():
        bandits = [script.Bandit(p) for p in script.RATES]
        drawn = [bandit.groups(plan, 20_000, seed=7) for bandit in bandits]
        for label, (estimator, each) in script.ESTIMATORS.items():
            if (name, label) not in documented:
                continue
            middle = implied_weight(plan, 0.5, estimator, each)
            for bandit, answers, ratio in zip(bandits, drawn, documented[name, label], strict=True):
                s, f = answers[:, bandit.right].sum(axis=1), answers[:, ~bandit.right].sum(axis=1)
                of_right, of_wrong = advantages_of(s, f, estimator)
                advantage = np.where(bandit.right, of_right[:, None], of_wrong[:, None])
                updates = advantage * answers  # less the policy times the sum of advantages, which is 0
                if each == "prompt":
                    updates = updates / (s + f)[:, None]
                error = updates.std(axis=0) / np.sqrt(len(updates))
                wanted = ratio * middle * bandit.gradient
                rounded = 0.006 * np.abs(wanted)  # the page has three figures
                assert (np.abs(updates.mean(axis=0) - wanted) < 5 * error + rounded).all(), (name, label)
                along = updates @ bandit.gradient / (bandit.gradient @ bandit.gradient)
                assert 5 * along.std() / np.sqrt(len(along)) < 0.15 * ratio * middle  # it can tell weights apart
                assert along.mean() == pytest.approx(ratio * middle, rel=0.15)
                checked += 1
    assert checked == len(documented) * len(script.RATES)


# In the trainer


def test_unbiased_weights_in_a_trainer(build):
    trainer = build(
        prompt_weighting="unbiased",
        allocator="tests.test_weights:StopWhenMixed",
        scale_rewards="none",
        steps_per_generation=8,
        max_steps=1,
    )
    trainer.train()
    (_, output) = trainer.recorded[0]
    groups = prompts_of(output)
    masses = Counter()
    for group, advantage in zip(groups, output["advantages"].abs().tolist(), strict=True):
        masses[group] += advantage / 2
    found = np.array(list(masses.values()))
    mixed_at_once = np.isclose(found, 3 * 0.5, atol=1e-4)
    assert (mixed_at_once | np.isclose(found, 0, atol=1e-6)).all()
    assert mixed_at_once.any()


def test_unbiased_weights_of_equal_groups_are_grpo(build):
    options = {"allocator": "uniform", "scale_rewards": "none", "max_steps": 2}
    plain = build(**options)
    plain.train()
    unbiased = build(prompt_weighting="unbiased", **options)
    unbiased.train()
    assert same_weights(weights(plain), weights(unbiased))


def test_unbiased_refuses_a_shared_budget_in_several_rounds(build):
    with pytest.raises(ValueError, match="prompt_weighting='unbiased' with allocator 'adaroll' in several rounds"):
        build(prompt_weighting="unbiased")
    trainer = build(prompt_weighting="unbiased", rounds=1)
    with pytest.raises(ValueError, match="allocator 'fixed' in several rounds"):
        trainer.allocator = FixedCounts([[1, 1, 1], [3, 3, 3]])
    trainer.train()


def test_an_allocator_that_does_not_keep_its_plan_is_told(build):
    trainer = build(prompt_weighting="unbiased", allocator="tests.test_weights:FixedBeforehand")
    with pytest.raises(ValueError, match=r"did not get what the allocator's `stopping_plan` says. round 1"):
        trainer.train()


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
    trainer = build(prompt_weighting=weighting, steps_per_generation=16, max_steps=1)
    trainer.train()
    logged = [name for entry in trainer.state.log_history for name in entry]
    assert any(name.startswith("adaroll/prompt_weight/curve/") for name in logged)


def test_the_curve_and_the_factors_survive_a_checkpoint(build, tmp_path):
    options = {"prompt_weighting": "uniform", "save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    whole = build(output_dir=tmp_path, **options)
    whole.train()
    resumed = build(output_dir=tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for name, part in whole._weighting.state_dict().items():
        for key, values in part.items():
            np.testing.assert_allclose(resumed._weighting.state_dict()[name][key], values, rtol=1e-9)
    fresh = build(**options)
    assert fresh._weighting.state_dict()["rates"] != whole._weighting.state_dict()["rates"]


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
