"""The Lagrangian bound is above the optimum, and as tight as weak duality lets it be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.solver import lagrangian_bound, solve_joint
from adaroll_trl.utilities import UTILITY_NAMES


@given(
    utility=st.sampled_from(UTILITY_NAMES),
    num_prompts=st.integers(1, 3),
    average=st.integers(1, 4),
    prior=st.tuples(st.floats(0.2, 5.0), st.floats(0.2, 5.0)),
    minimum=st.integers(0, 1),
    spare=st.none() | st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_bound_is_above_the_optimum(utility, num_prompts, average, prior, minimum, spare):
    budget = num_prompts * average
    maximum = None if spare is None else average + spare
    bounds = (min(minimum, average), maximum)
    optimum = solve_joint(num_prompts, budget, utility, prior, *bounds).value
    assert lagrangian_bound(num_prompts, budget, utility, prior, *bounds) >= optimum - 1e-9 * max(1.0, abs(optimum))


def test_bound_is_exact_for_one_prompt_and_for_a_forced_split():
    assert lagrangian_bound(1, 6, "std") == pytest.approx(solve_joint(1, 6, "std").value, abs=1e-9)
    forced = solve_joint(3, 9, "mass", min_rollouts=3, max_rollouts=3).value
    assert lagrangian_bound(3, 9, "mass", min_rollouts=3, max_rollouts=3) == pytest.approx(forced, abs=1e-9)


def test_bound_is_attained_in_the_limit_of_many_prompts():
    """Per prompt the gap between bound and optimum shrinks as the batch grows."""
    gaps = []
    for n in (1, 2, 4, 8):
        gaps.append(lagrangian_bound(n, 4 * n) / n - solve_joint(n, 4 * n).value / n)
    assert gaps[1] > gaps[2] > gaps[3] > 0


def test_priors_of_their_own():
    common = lagrangian_bound(4, 16, "mixed", (0.7, 1.4))
    assert lagrangian_bound(4, 16, "mixed", np.tile([0.7, 1.4], (4, 1))) == pytest.approx(common, rel=1e-12)
    easy_and_hard = lagrangian_bound(2, 8, "mixed", [(9.0, 0.3), (0.3, 9.0)])
    assert easy_and_hard < lagrangian_bound(2, 8, "mixed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4), "num_prompts=0 must be at least 1"),
        ((4, 16.5), "budget=16.5 must be a whole number"),
        ((5000, 40000), "Set max_rollouts"),
        ((2, 4, "mixed", (1.0, 1.0), 3), "num_prompts \\* min_rollouts = 6"),
        ((2, 9, "mixed", (1.0, 1.0), 0, 4), "num_prompts \\* max_rollouts = 8"),
        ((2, 4, "mixed", np.ones((3, 2))), "must be a pair, or an array of shape \\(2, 2\\)"),
        ((2, 4, "mixed", (1.0, -1.0)), "must be two positive finite numbers"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        lagrangian_bound(*arguments)
