"""Ranks of states: a bijection on every layer, laid out as counted."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

from adaroll_trl.solver.reductions import SETTLED, pair_classes
from adaroll_trl.solver.states import StateSpace, count_layers, count_multisets, multiset_counts, partition_counts
from adaroll_trl.utilities import as_utility


def make_space(num_prompts, budget, utility="mixed", prior=(1.0, 1.0), low=0, high=None, reduce=False):
    high = budget if high is None else high
    table = as_utility(utility).table(budget)
    classes = pair_classes(table, prior, low, high, lump=reduce, settle=reduce)
    return StateSpace.build(num_prompts, classes, low, high), classes


def plain_states(num_prompts, t):
    pairs = [(m - s, s) for m in range(t + 1) for s in range(m + 1)]
    for state in combinations_with_replacement(pairs, num_prompts):
        if sum(map(sum, state)) == t:
            yield state


@pytest.mark.parametrize(
    ("num_prompts", "budget", "states"),
    [(4, 16, 37_172), (4, 32, 3_410_459), (8, 32, 142_402_919), (4, 64, 507_687_188)],
)
def test_counts_without_reductions(num_prompts, budget, states):
    assert count_layers(np.arange(budget + 1) + 1, num_prompts, budget + 1).sum() == states


def test_layers_hold_every_state_once_and_no_other():
    space, _ = make_space(3, 6)
    for t in range(7):
        states = np.array(list(plain_states(3, t)))
        ranks = space.rank(states[..., 0], states[..., 1])
        assert sorted(ranks) == list(range(space.layer_sizes()[t]))


@pytest.mark.parametrize(
    ("low", "high"), [(0, None), (1, None), (2, 3), (0, 4)], ids=["none", "minimum", "both", "maximum"]
)
def test_bounds_leave_exactly_the_states_that_can_occur(low, high):
    space, _ = make_space(3, 8, low=low, high=high)
    most = 8 if high is None else high
    for t in range(9):
        possible = [
            state
            for state in plain_states(3, t)
            if max(map(sum, state)) <= most and sum(max(0, low - sum(pair)) for pair in state) <= 8 - t
        ]
        assert space.layer_sizes()[t] == len(possible)
        states = np.array(possible)
        assert sorted(space.rank(states[..., 0], states[..., 1])) == list(range(len(possible)))


SPACES = {
    "plain": {},
    "bounded": {"low": 2, "high": 5},
    "mixed": {"reduce": True},
    "mixed_skewed_prior": {"reduce": True, "prior": (2.0, 0.5)},
    "balanced": {"reduce": True, "utility": "balanced"},
    "mass_with_maximum": {"reduce": True, "utility": "mass", "high": 4},
}


@pytest.mark.parametrize("options", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize(("num_prompts", "budget"), [(1, 9), (3, 9), (4, 11)])
def test_rank_and_unrank_are_inverse_over_whole_layers(num_prompts, budget, options):
    if options.get("high", budget) * num_prompts < budget:
        pytest.skip("the maximum cannot absorb the budget")
    space, classes = make_space(num_prompts, budget, **options)
    anything_settled = tuple(np.argwhere(classes.class_of == SETTLED)[0])
    rng = np.random.default_rng(0)
    for t, size in enumerate(space.layer_sizes()):
        pairs = []
        for index in range(size):
            groups = space.unrank(t, index)
            known = [(s := int(classes.representative[m, x]), m - s) for m, x in groups]
            filled = known + [anything_settled] * (num_prompts - len(known))
            pairs.append(rng.permutation(np.array(filled)))
        states = np.array(pairs).reshape(size, num_prompts, 2)
        assert np.array_equal(space.rank(states[..., 0], states[..., 1]), np.arange(size))


def test_reductions_find_the_expected_classes():
    _, mixed = make_space(2, 12, reduce=True)
    assert mixed.width[1:12].tolist() == [1] * 11, "(s, 0) and (0, f) are one class, everything mixed has settled"
    assert mixed.min_settled == 2
    _, skewed = make_space(2, 12, prior=(1.0, 2.0), reduce=True)
    assert skewed.width[1:12].tolist() == [2] * 11
    _, mass = make_space(2, 12, utility="mass", reduce=True)
    assert mass.width[:12].tolist() == [m // 2 + 1 for m in range(12)]
    _, guarded = make_space(2, 12, low=3, reduce=True)
    assert guarded.min_settled == 3, "below the minimum a prompt's size still matters"


def test_counting_tables_agree_with_enumeration():
    partitions = partition_counts(4, 9)
    for parts in range(1, 5):
        for limit in range(1, 10):
            found = [sum(p) for p in combinations_with_replacement(range(limit), parts)]
            assert partitions[parts, :, limit].tolist() == [found.count(total) for total in range(10)]
    assert multiset_counts(3, 4)[3, 4] == len(list(combinations_with_replacement(range(4), 3)))
    assert count_multisets(np.arange(7) + 1, 3)[3, 6] == len(list(plain_states(3, 6)))
