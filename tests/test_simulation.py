"""The simulator: exact controls, paired outcomes, compiled and plain play alike."""

import numpy as np
import pytest

from adaroll_trl.allocators import Allocator, streaming_allocators
from adaroll_trl.allocators.adaroll import AdaRollAllocator
from adaroll_trl.simulation import gain_share, simulate
from adaroll_trl.solver import solve_joint
from tests.tiny import FixedCounts


class PlainAdaRoll(AdaRollAllocator):
    """Not the class that the simulator plays in compiled code: decides through `plan_round`."""


def assert_same_play(num_prompts, budget, rounds, utility, **options):
    fast = simulate("adaroll", num_prompts, budget, rounds, utility, **options)
    slow = simulate(PlainAdaRoll(utility), num_prompts, budget, rounds, utility, **options)
    np.testing.assert_array_equal(fast.rollouts, slow.rollouts)
    np.testing.assert_array_equal(fast.successes, slow.successes)


@pytest.mark.parametrize("num_batches", [40, 250], ids=["plain", "tabulated"])  # tables pay from 200 batches on
@pytest.mark.parametrize(("rounds", "utility"), [(1, "mixed"), (3, "mass"), (4, "std"), (64, "balanced")])
def test_compiled_play_is_plan_round(rounds, utility, num_batches):
    if rounds == 64:
        num_batches = 40
    options = {"num_batches": num_batches, "max_rollouts": 16, "min_rollouts": 0 if rounds == 64 else 1, "seed": 3}
    assert_same_play(8, 64, rounds, utility, prior=(0.8, 1.5), **options)


def test_compiled_play_where_prompts_are_full_and_rollouts_few():
    """Batches that `plan_round` sees in another way: one prompt left with room, as many rounds as rollouts."""
    assert_same_play(2, 20, 4, "mixed", num_batches=250, max_rollouts=12)
    assert_same_play(8, 64, 4, "mixed", num_batches=250, min_rollouts=2, seed=5)


@pytest.mark.parametrize(("rounds", "decay"), [(1, 1.0), (3, 0.5)])
def test_compiled_play_with_carried_outcomes_is_plan_round(rounds, decay):
    options = {"num_batches": 10, "max_rollouts": 16, "carried": 8, "carried_decay": decay, "seed": 2}
    assert_same_play(24, 96, rounds, "mixed", difficulty="beta(1,2)", **options)


def test_one_at_a_time_with_a_few_beliefs_is_plan_round():
    options = {"num_batches": 40, "max_rollouts": 8, "carried": 3, "carried_decay": 0.7, "seed": 53}
    assert_same_play(5, 20, 20, "balanced", prior=(2.0, 1.0), **options)


@pytest.mark.parametrize("carried", [0, 3])
@pytest.mark.parametrize("lengths", ["even", "success"])
def test_compiled_streams_are_what_the_stream_decides(carried, lengths):
    """Asked rollout by rollout through `Allocator.stream`, `adaroll` decides as in compiled code."""
    options = {"num_batches": 6, "min_rollouts": 1, "max_rollouts": 12, "carried": carried, "seed": 4}
    assert_same_play(6, 36, 4, "std", prior=(0.8, 1.5), in_flight=5, lengths=lengths, **options)


def test_a_stream_does_not_read_rounds_but_lengths():
    options = {"num_batches": 20, "in_flight": 6}
    first, again = (simulate("reinforce_ada", 8, 64, rounds, **options) for rounds in (1, 4))
    np.testing.assert_array_equal(first.rollouts, again.rollouts)
    other = simulate("reinforce_ada", 8, 64, 1, lengths="tails", **options)
    assert (first.rollouts != other.rollouts).any()
    np.testing.assert_array_equal(first.uniform_utilities, other.uniform_utilities)  # the same outcomes
    everything = simulate("reinforce_ada", 8, 64, 1, num_batches=20, in_flight=1000)
    assert (everything.rollouts == 8).all()  # all in flight: equal groups


@pytest.mark.parametrize("name", streaming_allocators())
def test_every_stream_spends_its_budget_on_the_outcomes_of_rounds(name):
    bounds = {"min_rollouts": 2, "max_rollouts": 8, "carried": 2, "seed": 3}
    stream = simulate(name, 6, 24, 1, num_batches=10, in_flight=4, **bounds)
    rounds = simulate(name, 6, 24, 4, num_batches=10, **bounds)
    np.testing.assert_array_equal(stream.uniform_utilities, rounds.uniform_utilities)
    assert (stream.rollouts.sum(axis=1) == 24).all()
    assert stream.rollouts.min() >= 2
    assert stream.rollouts.max() <= 8
    assert (stream.successes <= stream.rollouts).all()


@pytest.mark.parametrize("carried", [0, 2])
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([[0, 8, 8, 8]], "between 1 and the 16"),
        ([[0, 6, 5, 5]], "min_rollouts=2"),
        ([[2, 2, 3, 9]], "max_rollouts=8"),
        ([[8, 4, 0, 0], [0, 0, 4, 0]], "min_rollouts=2"),
        ([[6, 2, 2, 2], [4, 0, 0, 0]], "max_rollouts=8"),
        ([[4, 2, 2, 2], [2, 2, 0, 0]], "must spend all 6"),
    ],
    ids=["budget", "min", "max", "min-over-rounds", "max-over-rounds", "rest"],
)
def test_what_the_trainer_would_refuse_is_refused(plan, message, carried):
    """So that no row of a comparison has another budget, or other bounds, than the rest."""
    options = {"num_batches": 2, "min_rollouts": 2, "max_rollouts": 8, "carried": carried}
    with pytest.raises(ValueError, match=f"allocator 'fixed' returned counts .* {message}"):
        simulate(FixedCounts(plan), 4, 16, 1, **options)


class Nameless(Allocator):
    """Counts as a list, and the arrays that it was given changed."""

    wanted = 2

    def num_rounds(self, num_prompts, budget, rounds, min_rollouts):
        return self.wanted

    def allocate(self, state, rollouts_left, rounds_left):
        state.rollouts += 5
        state.successes += 5
        return [rollouts_left // rounds_left // state.num_prompts] * state.num_prompts


def test_an_allocator_needs_no_name_and_cannot_change_what_was_played():
    allocator = Nameless()
    result = simulate(allocator, 4, 16, 1, num_batches=3, max_rollouts=8)
    assert (result.rollouts == 4).all()
    assert (result.successes <= 4).all()
    allocator.wanted = 1.5
    with pytest.raises(ValueError, match=r"allocator 'Nameless' returned num_rounds 1.5: an integer was expected"):
        simulate(allocator, 4, 16, 1, num_batches=3)


def test_uniform_is_its_own_control():
    result = simulate("uniform", 6, 30, 1, "std", num_batches=50)
    np.testing.assert_array_equal(result.utilities, result.uniform_utilities)
    assert result.mean == pytest.approx(result.uniform_mean, abs=1e-12)
    assert result.standard_error < 1e-12


def test_uniform_mean_is_exact():
    result = simulate("uniform", 4, 32, 1, "mixed", num_batches=2)
    assert result.uniform_mean == pytest.approx(4 * 7 / 9, abs=1e-12)  # 1 - 2 / (G + 1) under a uniform prior
    uneven = simulate("uniform", 4, 30, 1, "mixed", num_batches=2)
    assert uneven.uniform_mean == pytest.approx(2 * (7 / 9) + 2 * (1 - 2 / 8), abs=1e-12)


def test_joint_allocator_reaches_the_exact_value():
    optimum = solve_joint(4, 16, "mixed", min_rollouts=1, max_rollouts=16).value
    result = simulate("adaroll_joint", 4, 16, 1, "mixed", num_batches=400, min_rollouts=1)
    assert abs(result.mean - optimum) < 4 * result.standard_error


def test_seed_decides_everything():
    first, again, other = (simulate("adaroll", 8, 32, 2, num_batches=20, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rollouts, again.rollouts)
    assert not np.array_equal(first.rollouts, other.rollouts)


def test_given_pass_rates_are_used():
    result = simulate("adaroll", 8, 32, 3, success_probs=[0.0, 1.0], num_batches=20)
    assert set(np.unique(result.success_probs)) == {0.0, 1.0}
    assert result.frac_prompts_mixed == 0.0
    assert result.uniform_mean == 0.0


def test_gain_share_of_the_best_is_one():
    best = simulate("adaroll", 8, 64, 64, num_batches=100)
    assert gain_share(best, best) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    share, error = gain_share(simulate("adaroll", 8, 64, 2, num_batches=100), best)
    assert 0.2 < share < 0.9
    assert 0 < error < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 3}, "budget=3"),
        ({"num_batches": 1}, "num_batches=1"),
        ({"success_probs": [0.5, 1.5]}, "numbers between 0 and 1"),
        ({"success_probs": []}, "at least one"),
        ({"rounds": 0}, "rounds=0 must be at least 1"),
        ({"max_rollouts": 2}, "budget=16 cannot be spent: max_rollouts=2"),
        ({"prior": (0.0, 1.0)}, "two positive finite numbers"),
        ({"budget": 16.5}, "budget=16.5 must be a whole number"),
        ({"in_flight": 0}, "in_flight=0 must be at least 1"),
        ({"lengths": "long"}, "lengths='long' is not known. Use one of 'even'"),
        ({"allocator": "hora", "in_flight": 4}, "in_flight=4: allocator='hora' cannot stream: it waits for"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(**({"allocator": "uniform", "num_prompts": 4, "budget": 16, "rounds": 1} | arguments))
