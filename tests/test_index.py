"""Price indices against their definition, and the sequential policy against the joint optimum."""

from functools import lru_cache

import numpy as np
import pytest

from adaroll_trl.solver import index, lagrangian_bound, solve_index, solve_joint
from adaroll_trl.solver.evaluation import sequential_value
from adaroll_trl.solver.index import IndexTable
from adaroll_trl.utilities import UTILITY_NAMES, as_utility


def index_by_definition(utility, prior, s, f, r):
    """Bisection on the price at which one more rollout is just worth it, by plain recursion."""

    def going_on(x):
        @lru_cache(None)
        def value(s, f, r):
            return max(float(utility(s, f)), go(s, f, r)) if r else float(utility(s, f))

        def go(s, f, r):
            q = (prior[0] + s) / (sum(prior) + s + f)
            return -x + q * value(s + 1, f, r - 1) + (1 - q) * value(s, f + 1, r - 1)

        return go(s, f, r) - float(utility(s, f))

    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if going_on(middle) > 0 else (low, middle)
    return low


@pytest.mark.parametrize("name", UTILITY_NAMES)
@pytest.mark.parametrize("prior", [(1.0, 1.0), (0.3, 2.5)])
def test_index_is_the_highest_price_worth_paying(name, prior):
    utility = as_utility(name)
    table = solve_index(7, utility, prior)
    for s, f, r in [(0, 0, 1), (0, 0, 7), (1, 0, 5), (0, 3, 4), (2, 1, 2), (1, 1, 5), (2, 2, 3), (4, 1, 2)]:
        assert table.index(s, f, r) == pytest.approx(index_by_definition(utility, prior, s, f, r), abs=1e-9)


def test_index_broadcasts_and_caps_the_horizon():
    table = solve_index(6)
    wide = table.index([[0], [1]], [0, 1, 2], 3)
    assert wide.shape == (2, 3)
    assert table.index(0, 0, 1000) == table.index(0, 0, 6)
    assert table.index(1, 0, 99) == table.index(1, 0, 5)
    assert np.isneginf(table.index(3, 3, 4))
    assert np.isneginf(table.index(1, 1, 0))
    assert (np.diff(table.index(0, 1, np.arange(1, 6))) >= 0).all()


def test_going_on_can_cost_utility():
    assert solve_index(12, "variance").index(1, 1, 8) < 0


def test_horizons_beyond_the_band_are_computed_when_asked_for(monkeypatch):
    full = IndexTable(40, as_utility("mass"), (1.0, 1.0))
    assert full.band == 40
    monkeypatch.setattr(index, "ALL_HORIZONS_TO", 20)
    monkeypatch.setattr(index, "BAND", 6)
    table = IndexTable(40, as_utility("mass"), (1.0, 1.0))
    assert table.band == 6
    s, f, r = np.array([0, 1, 3, 2]), np.array([0, 1, 0, 9]), np.array([40, 17, 5, 20])
    np.testing.assert_array_equal(table.index(s, f, r), full.index(s, f, r))
    assert 17 <= table.band < 40


def test_asymmetric_and_mirrored_states_agree():
    table, mirrored = solve_index(10, "std", (2.0, 0.5)), solve_index(10, "std", (0.5, 2.0))
    s, f = np.array([0, 1, 4, 3]), np.array([2, 5, 0, 3])
    np.testing.assert_allclose(table.index(s, f, 4), mirrored.index(f, s, 4), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve_index(0), "max_rollouts=0 must be at least 1"),
        (lambda: solve_index(4, prior=(0.0, 1.0)), "must be two positive finite numbers"),
        (lambda: solve_index(4).index(-1, 0, 2), "all must be at least 0"),
        (lambda: solve_index(4).index(4, 1, 2), "at most max_rollouts=4"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# The bounds of the issue: shares of the optimum that may be lost, evaluated exactly.
LOSS = {"mixed": 1e-4, "variance": 1e-4, "std": 1e-4, "mass": 3e-3, "std_mass": 3e-3, "balanced": 3e-3}


@pytest.mark.parametrize("utility", LOSS)
@pytest.mark.parametrize(("num_prompts", "budget"), [(6, 24), (4, 32)])
def test_sequential_policy_is_near_the_joint_optimum(utility, num_prompts, budget):
    optimum = solve_joint(num_prompts, budget, utility).value
    value = sequential_value(num_prompts, budget, utility)
    assert value <= optimum * (1 + 1e-12)
    assert value >= optimum * (1 - LOSS[utility])


def test_sequential_policy_with_other_priors_and_a_maximum():
    optimum = solve_joint(4, 14, "mixed", (0.5, 2.0), max_rollouts=6).value
    value = sequential_value(4, 14, "mixed", (0.5, 2.0), max_rollouts=6)
    assert 0.999 * optimum <= value <= optimum * (1 + 1e-12) <= lagrangian_bound(4, 14, "mixed", (0.5, 2.0), 0, 6)
