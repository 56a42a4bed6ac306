"""Fitted priors, pass rates from a column, and calibration: against brute force, simulated data and direct sums."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import betabinom

from adaroll_trl.beliefs import Beliefs
from adaroll_trl.calibration import Calibration
from adaroll_trl.priors import HALF_LIFE, HIGHEST, LOWEST, WINDOW, PriorFit, fit_beta_prior, pass_rates

# Fitting


def brute_force(s, f, w, r, g, centre=(1.0, 1.0)):
    """The best point of the whole grid, by scipy's beta-binomial."""
    best, where = -np.inf, None
    for i in range(-64, 65):
        for j in range(-64, 65):
            a, b = centre[0] * 2 ** (i / 8), centre[1] * 2 ** (j / 8)
            if not (LOWEST * 0.999 < a < HIGHEST * 1.001 and LOWEST * 0.999 < b < HIGHEST * 1.001):
                continue
            value = (w * betabinom.logpmf(s, s + f, a + r, b + g)).sum()
            odds = math.log(a / b) - math.log(centre[0] / centre[1])
            value -= 0.5 * (odds / 2) ** 2 + 0.5 * math.log((a + b) / sum(centre)) ** 2
            if value > best:
                best, where = value, (a, b)
    return where


@pytest.mark.parametrize("case", range(4))
def test_the_fit_is_the_best_point_of_the_grid(case):
    rng = np.random.default_rng(case)
    rates = rng.beta(*[(0.5, 1.5), (6.0, 2.0), (0.2, 0.1), (1.0, 12.0)][case], size=20)
    n = rng.integers(1, 12, size=20)
    s = rng.binomial(n, rates)
    remembered = rng.exponential(2.0, size=(2, 20)) if case % 2 else np.zeros((2, 20))
    w = rng.random(20) + 0.5
    centre = (1.0, 1.0) if case < 3 else (0.7, 3.0)
    found = fit_beta_prior(s, n - s, w, remembered=(remembered[0], remembered[1]), centre=centre)
    assert found == pytest.approx(brute_force(s, n - s, w, *remembered, centre), rel=1e-9)


@pytest.mark.parametrize("prior", [(0.4, 1.6), (2.0, 2.0), (0.3, 0.2)])
def test_the_prior_that_made_the_outcomes_is_found_whatever_the_stopping_rule(prior):
    """Half of the prompts stop at their first success: the fit does not mind, the share of successes does."""
    rng = np.random.default_rng(1)
    rates = rng.beta(*prior, size=4000)
    rolls = rng.random((4000, 16)) < rates[:, None]
    first = np.where(rolls.any(axis=1), rolls.argmax(axis=1) + 1, 16)
    n = np.where(np.arange(4000) % 2, first, 8)
    s = np.where(np.arange(4000) % 2, rolls.any(axis=1), rolls[:, :8].sum(axis=1))
    alpha, beta = fit_beta_prior(s, n - s)
    mean = prior[0] / sum(prior)
    assert alpha / (alpha + beta) == pytest.approx(mean, abs=0.02)
    assert alpha + beta == pytest.approx(sum(prior), rel=0.15)
    assert abs(s.sum() / n.sum() - mean) > 0.02


def test_carried_counts_are_conditioned_on():
    """Rates that stay put over four visits, counts that are chosen by what is remembered."""
    rng = np.random.default_rng(2)
    rates = rng.beta(0.6, 1.2, size=1000)
    fits = {}
    for decay in (0.5, 1.0):
        beliefs = Beliefs(decay=decay, prior_source="empirical_bayes")
        keys = [str(i) for i in range(1000)]
        for _ in range(4):
            alpha, beta = beliefs.prior(keys)
            n = np.where(np.abs(alpha / (alpha + beta) - 0.5) < 0.3, 4, 10)
            s = rng.binomial(n, rates)
            beliefs.update(keys, s, n - s)
        alpha, beta = beliefs.fit()
        fits[decay] = alpha + beta
        assert alpha / (alpha + beta) == pytest.approx(1 / 3, abs=0.03)
    assert fits[1.0] == pytest.approx(1.8, rel=0.2)  # nothing fades, as nothing does in truth
    assert fits[0.5] < fits[1.0]  # what fades too fast is made up for by a weaker prior


def test_nothing_seen_is_the_configured_prior_and_extremes_stay_in_range():
    assert fit_beta_prior([], [], centre=(0.7, 2.5)) == (0.7, 2.5)
    assert PriorFit(0.7, 2.5).prior() == (0.7, 2.5)
    for s, f in (([0] * 500, [8] * 500), ([8] * 500, [0] * 500), ([4] * 500, [4] * 500), ([8, 0] * 250, [0, 8] * 250)):
        for value in fit_beta_prior(s, f):
            assert LOWEST <= value <= HIGHEST
    few = fit_beta_prior([0, 0], [8, 8])
    assert few[0] / sum(few) > 0.05, "two prompts must not make all others hopeless"


def test_old_visits_fade_and_leave():
    fit = PriorFit()
    fit.update([(8, 0, 0, 0)] * WINDOW)
    high = fit.prior()
    fit.update([(0, 8, 0, 0)] * 3 * HALF_LIFE)
    assert len(fit) == WINDOW
    weights = 0.5 ** (np.arange(WINDOW)[::-1] / HALF_LIFE)
    old = np.arange(WINDOW) < WINDOW - 3 * HALF_LIFE
    assert fit.prior() == fit_beta_prior(np.where(old, 8, 0), np.where(old, 0, 8), weights)
    assert fit.prior()[0] < high[0]


def test_the_window_survives_json_also_as_it_was_before_the_last_batch():
    beliefs = Beliefs(decay=0.5, prior_source="empirical_bayes")
    beliefs.update(["a", "b", "a"], np.array([2, 0, 1]), np.array([1, 3, 0]))
    before, snapshot = beliefs.fit(), beliefs.prior_fit.snapshot()
    beliefs.update(["b", "c"], np.array([4, 0]), np.array([0, 0]))
    state = json.loads(json.dumps(beliefs.prior_fit.state_dict()))
    # a's two places are one visit; c had no scored rollout; b remembered half of its three failures
    assert state["visits"] == [[3, 1, 0, 0], [0, 3, 0, 0], [4, 0, 0, 1.5]]
    fit = PriorFit()
    fit.load_state_dict(state)
    assert fit.prior() == beliefs.fit() != before
    fit.load_state_dict(snapshot())
    assert fit.prior() == before


# Pass rates from a column


def test_a_pass_rate_counts_as_so_many_rollouts_and_does_not_fade():
    beliefs = Beliefs(0.5, 1.5, decay=0.5, prior_strength=6.0)
    rates = pass_rates("rate", [0.5, None, 1, float("nan")])
    alpha, beta = beliefs.prior(["a", "b", "c", "d"], rates)
    np.testing.assert_allclose(alpha, [3.5, 0.5, 6.5, 0.5])
    np.testing.assert_allclose(beta, [4.5, 1.5, 1.5, 1.5])
    beliefs.update(["a", "b"], np.array([2, 4]), np.array([2, 0]), rates[:2])
    alpha, beta = beliefs.prior(["a", "b"], rates[:2])
    np.testing.assert_allclose(alpha, [4.5, 2.5])
    np.testing.assert_allclose(beta, [5.5, 1.5])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (75, r"row 2 has 75, where a pass rate is a number from 0 to 1, or None. It looks like per cent: divide"),
        (-0.1, r"prior_column='rate': row 2 has -0.1, where a pass rate is a number from 0 to 1, or None.$"),
        (1e6, r"row 2 has 1000000.0, .* or None.$"),
        ("0.5", r"row 2 has '0.5'"),
        (True, r"row 2 has True"),
    ],
)
def test_a_value_that_is_no_pass_rate_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        pass_rates("rate", [0.5, None, value])


# Calibration


def test_calibration_against_direct_sums():
    calibration = Calibration()
    q = np.array([0.5, 0.25, 0.9, 0.95])
    s, f = np.array([1.0, 1.0, 4.0, 0.0]), np.array([1.0, 3.0, 0.0, 2.0])
    own = np.array([False, True, True, True])
    found = calibration.observe(q, s, f, own)
    predictions, outcomes = [], []
    for rate, wins, losses in zip(q, s, f, strict=True):
        predictions += [rate] * int(wins + losses)
        outcomes += [1] * int(wins) + [0] * int(losses)
    assert found["predicted"] == pytest.approx(np.mean(predictions))
    assert found["realised"] == pytest.approx(np.mean(outcomes))
    p, x = np.array(predictions[2:]), np.array(outcomes[2:])
    assert found["frac_own"] == 0.75
    assert found["brier"] == pytest.approx(np.mean((p - x) ** 2))
    assert found["brier_skill"] == pytest.approx(1 - np.mean((p - x) ** 2) / np.var(x))
    # Bins [.2, .3) and [.9, 1]: 4 rollouts at .25 of which 1 succeeds, 6 at .9 to .95 of which 4 do
    assert found["ece"] == pytest.approx((abs(4 * 0.25 - 1) + abs(4 * 0.9 + 2 * 0.95 - 4)) / 10)
    before, snapshot = calibration.state_dict(), calibration.snapshot()
    again = Calibration()
    again.load_state_dict(json.loads(json.dumps(before)))
    second = (q[:2], np.array([0.0, 4.0]), np.array([2.0, 0.0]), own[:2])
    assert again.observe(*second) == calibration.observe(*second)
    assert snapshot() == before
    fade = 0.5 ** (4 / 8192)
    assert calibration.expected_error() == pytest.approx((3 * 1 + fade * 1.5) / (4 + fade * 10), rel=1e-3)


def test_calibration_of_common_beliefs_scores_nothing():
    found = Calibration().observe(np.full(2, 0.5), np.ones(2), np.zeros(2), np.zeros(2, dtype=bool))
    assert (found["predicted"], found["realised"], found["frac_own"]) == (0.5, 1.0, 0.0)
    assert all(math.isnan(found[name]) for name in ("brier", "brier_skill", "ece"))
    empty = Calibration().observe(np.full(2, 0.5), np.zeros(2), np.zeros(2), np.ones(2, dtype=bool))
    assert all(math.isnan(value) for name, value in empty.items() if name != "frac_own")
