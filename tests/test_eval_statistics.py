"""Accuracy, pass@k and their intervals: against brute force, and against their promised coverage."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from adaroll_trl.evaluation.statistics import mean_interval, paired_difference, pass_at_k


@pytest.mark.parametrize("num_samples", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_completion(num_samples):
    for correct in range(num_samples + 1):
        right = [number < correct for number in range(num_samples)]
        for k in range(1, num_samples + 1):
            subsets = [any(right[number] for number in chosen) for chosen in combinations(range(num_samples), k)]
            assert pass_at_k([num_samples], [correct], k)[0] == pytest.approx(np.mean(subsets), abs=1e-12)


def test_pass_at_k_does_not_overflow():
    assert pass_at_k([4000], [1], 2000)[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("samples", "correct", "k", "message"),
    [(4, 5, 1, "num_correct must lie between 0 and num_samples"), (4, 1, 5, "k=5 must lie"), (4, 1, 0, "k=0 must")],
)
def test_pass_at_k_refuses_counts_out_of_range(samples, correct, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k([samples], [correct], k)


def test_one_sample_a_prompt_gives_wilsons_interval():
    stats = pytest.importorskip("scipy.stats")
    for right, size in [(0, 20), (7, 20), (20, 20), (81, 170)]:
        expected = stats.binomtest(right, size).proportion_ci(0.9, method="wilson")
        estimate = mean_interval([1.0] * right + [0.0] * (size - right), level=0.9)
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("num_samples", [1, 8])
@pytest.mark.parametrize("belief", [(0.3, 0.7), (2.0, 2.0), (0.1, 1.0)])
def test_the_intervals_of_accuracy_and_pass_at_4_cover(num_samples, belief):
    """Fresh prompts each time: the 95 % interval must hold the true mean in about 95 of 100 cases."""
    random = np.random.default_rng(0)
    rates = random.beta(*belief, size=(3000, 150))
    right = random.binomial(num_samples, rates)
    accuracy = [mean_interval(row / num_samples, num_samples) for row in right]
    assert 0.93 <= share_covered(accuracy, belief[0] / sum(belief)) <= 0.975
    if num_samples >= 4:
        at_4 = [mean_interval(pass_at_k(num_samples, row, 4), num_samples) for row in right]
        truth = 1 - np.mean((1 - random.beta(*belief, size=300_000)) ** 4)
        assert 0.93 <= share_covered(at_4, truth) <= 0.975


@pytest.mark.parametrize("gain", [0.0, 0.4])
def test_the_paired_interval_covers_and_is_narrower_than_an_unpaired_one(gain):
    random = np.random.default_rng(1)
    first = random.beta(0.5, 0.5, size=(3000, 150))
    second = first + gain * (1 - first)
    pairs = [(random.binomial(1, a), random.binomial(1, b)) for a, b in zip(first, second, strict=True)]
    estimates = [paired_difference(a, b) for a, b in pairs]
    assert 0.93 <= share_covered(estimates, gain / 2) <= 0.975
    a, b = pairs[0]
    unpaired = np.hypot(mean_interval(a).half_width, mean_interval(b).half_width)
    assert estimates[0].half_width < 0.9 * unpaired


def test_no_difference_at_all_still_has_a_width():
    estimate = paired_difference([0.0, 1.0] * 20, [0.0, 1.0] * 20)
    assert estimate.value == 0
    assert estimate.low == pytest.approx(-estimate.high)
    assert 0.01 < estimate.high < 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([]), "a value for each prompt"),
        (lambda: mean_interval([0.5, 1.5]), "between 0 and 1, got 0.5 to 1.5"),
        (lambda: mean_interval([0.5, float("nan")]), "between 0 and 1"),
        (lambda: mean_interval([0.5], level=95), "level=95"),
        (lambda: paired_difference([0.5], [0.5, 1.0]), "got 1 and 2"),
    ],
)
def test_values_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def share_covered(estimates, truth):
    return np.mean([one.low <= truth <= one.high for one in estimates])
