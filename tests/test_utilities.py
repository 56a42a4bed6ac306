"""The utilities' formulas, and what a user may pass as one."""

import numpy as np
import pytest

from adaroll_trl.utilities import UTILITY_NAMES, Utility, as_utility, expected_utility_after, make_utility


@pytest.mark.parametrize(
    ("name", "s", "f", "value"),
    [
        ("mixed", 3, 5, 1.0),
        ("mixed", 0, 8, 0.0),
        ("variance", 3, 5, 15 / 64),
        ("std", 3, 5, np.sqrt(15) / 8),
        ("mass", 3, 5, 15 / 8),
        ("std_mass", 3, 5, np.sqrt(15)),
        ("balanced", 1, 7, 0.5),
        ("balanced", 3, 7, 1.0),
        ("progress", 3, 5, (15 / 8) / (15 / 8 + 2)),
    ],
)
def test_formulas(name, s, f, value):
    assert as_utility(name)(s, f) == pytest.approx(value, abs=1e-15)


def test_mass_is_half_the_summed_advantage():
    """Dr. GRPO's advantages are reward minus mean; std_mass divides them by the population std."""
    for s, f in [(1, 1), (3, 5), (7, 2)]:
        rewards = np.array([1.0] * s + [0.0] * f)
        centred = rewards - rewards.mean()
        assert make_utility("mass")(s, f) == pytest.approx(np.abs(centred).sum() / 2)
        assert make_utility("std_mass")(s, f) == pytest.approx(np.abs(centred / rewards.std()).sum() / 2)


@pytest.mark.parametrize("name", UTILITY_NAMES)
def test_no_rollouts_are_worth_nothing_and_names_are_symmetric(name):
    utility = as_utility(name)
    assert utility(0, 0) == 0.0
    assert utility.is_symmetric(12)
    assert utility.table(5).shape == (6, 6)
    assert (utility.table(5)[3:, 3:] == 0).all()


def test_progress_lies_between_mixed_and_mass():
    s, f = np.array([1.0, 3.0, 2.0]), np.array([1.0, 5.0, 0.0])
    np.testing.assert_allclose(make_utility("progress", kappa=1e-9)(s, f), make_utility("mixed")(s, f), atol=1e-8)
    scaled = make_utility("progress", kappa=1e9)(s, f) * 1e9
    np.testing.assert_allclose(scaled, make_utility("mass")(s, f), rtol=1e-7)


def test_key_shows_parameters():
    assert make_utility("balanced", k=3).key == "balanced(k=3)"
    assert as_utility("mixed").key == "mixed"


def test_callable_is_checked_and_told_apart():
    first, second = as_utility(lambda s, f: s), as_utility(lambda s, f: f)
    assert first != second
    assert not first.persistent
    named = as_utility(lambda s, f: s * 2.0, name="double")
    assert named.persistent
    assert named.key == "double"
    assert named(2, 1) == 4.0
    assert as_utility(named) is named


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("entropy", "utility='entropy' is not known. Use one of mixed"),
        (lambda s, f: 1.0, "shape"),
        (lambda s, f: s / 0.0 * 0.0, "successes=0"),
        (lambda s: s, "failed on two float arrays"),
        (3, "utility=3 must be one of"),
    ],
)
def test_bad_utilities_are_named(bad, message):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message.replace("(", r"\(")):
        as_utility(bad)


def test_bad_parameters_are_named():
    with pytest.raises(ValueError, match=r"kappa=-1\.0 of utility 'progress' must be a positive"):
        make_utility("progress", kappa=-1.0)
    with pytest.raises(ValueError, match="'mixed' has no parameter 'kappa'"):
        make_utility("mixed", kappa=1.0)


def test_values_that_turn_infinite_later_are_found():
    utility = Utility("late", lambda s, f: np.where(s > 20, np.inf, s))
    with pytest.raises(ValueError, match="successes=21"):
        utility.table(30)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 3.0), (7.0, 2.5)])
def test_expected_utility_under_beta_binomial(a, b):
    rng = np.random.default_rng(0)
    successes = rng.binomial(6, rng.beta(a, b, size=400_000))
    utility = make_utility("std")
    sampled = utility(successes, 6 - successes).mean()
    exact = expected_utility_after(utility, 6, np.array([1.0, a]), np.array([1.0, b]))
    assert exact[1] == pytest.approx(sampled, abs=2e-3)
    assert expected_utility_after(make_utility("mixed"), 4, np.ones(1), np.ones(1))[0] == pytest.approx(3 / 5)


def test_expected_utility_of_a_prompt_that_is_nearly_settled():
    # No success in 256 rollouts has a chance below the smallest float64 here
    found = expected_utility_after(make_utility("mixed"), 256, np.array([1e6, 1.0]), np.array([1.0, 1e6]))
    np.testing.assert_allclose(found, 256 / (1e6 + 256), rtol=1e-9)
