"""What every allocator promises, for all of them at once; and that the joint allocator is the paper's policy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.allocators import ALLOCATOR_NAMES, AllocationState, make_allocator
from adaroll_trl.solver import solve_joint


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADAROLL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "tables"))


def play(allocator, probs, budget, rounds, rng, **bounds):
    """Play one batch; returns the counts of each round and the final state."""
    n = probs.size
    successes, spent, history = np.zeros(n, int), np.zeros(n, int), []
    left = budget
    for rounds_left in range(allocator.num_rounds(n, budget, rounds, bounds.get("min_rollouts", 0)), 0, -1):
        state = AllocationState(successes, spent - successes, **bounds)
        counts = allocator.allocate(state, left, rounds_left)
        history.append(counts)
        successes, spent = successes + rng.binomial(counts, probs), spent + counts
        left -= int(counts.sum())
        if left == 0:
            break
    return history, successes, spent, left


@given(
    name=st.sampled_from(["uniform", "adaroll", "adaroll_joint"]),  # the others are in test_allocators_all.py
    num_prompts=st.integers(1, 9),
    average=st.integers(2, 6),
    rounds=st.integers(1, 5),
    minimum=st.integers(0, 2),
    multiple=st.sampled_from([1, 2, 4]),
    pass_rate=st.sampled_from([0.0, 0.3, 1.0]),
    draws=st.integers(1, 5),
)
@settings(max_examples=120, deadline=None)
def test_every_batch_spends_its_budget_within_the_bounds(
    name, num_prompts, average, rounds, minimum, multiple, pass_rate, draws
):
    budget = num_prompts * average
    if budget % multiple:
        budget *= multiple
        average *= multiple
    maximum = 3 * average
    allocator = make_allocator(name, draws_per_round=draws, block_size=3)
    bounds = {"min_rollouts": minimum, "max_rollouts": maximum, "multiple_of": multiple}
    rng = np.random.default_rng(budget)
    history, _, spent, left = play(allocator, np.full(num_prompts, pass_rate), budget, rounds, rng, **bounds)
    assert left == 0
    assert spent.sum() == budget
    assert ((spent >= minimum) & (spent <= maximum)).all()
    for counts in history:
        assert counts.min() >= 0
        assert counts.sum() > 0
        assert counts.sum() % multiple == 0


@pytest.mark.parametrize("name", ALLOCATOR_NAMES)
def test_budget_of_exactly_the_minimum(name):
    allocator = make_allocator(name)
    history, _, spent, _ = play(
        allocator, np.full(5, 0.5), 10, 3, np.random.default_rng(0), min_rollouts=2, max_rollouts=8
    )
    assert spent.tolist() == [2] * 5
    assert sum(counts.sum() for counts in history) == 10


def test_uniform_is_grpo():
    counts = make_allocator("uniform").allocate(AllocationState(np.zeros(6), np.zeros(6)), 48, 1)
    assert counts.tolist() == [8] * 6
    uneven = make_allocator("uniform").allocate(AllocationState(np.array([3, 0, 1]), np.zeros(3)), 7, 1)
    assert uneven.tolist() == [1, 4, 2]


def test_joint_with_one_draw_follows_the_exact_table():
    """One block, one draw a round: after the minimum every decision is the exact table's."""
    allocator = make_allocator("adaroll_joint", block_size=4)
    table = solve_joint(4, 24, min_rollouts=2, max_rollouts=12)
    rng = np.random.default_rng(5)
    for _ in range(5):
        probs = rng.beta(1, 1, 4)
        successes, spent, left = np.zeros(4, int), np.zeros(4, int), 24
        bounds = {"min_rollouts": 2, "max_rollouts": 12}
        for rounds_left in range(allocator.num_rounds(4, 24, 1, 2), 0, -1):
            state = AllocationState(successes, spent - successes, **bounds)
            counts = allocator.allocate(state, left, rounds_left)
            if spent.sum() == 0:
                assert counts.tolist() == [2] * 4
            else:
                assert counts.sum() == 1
                assert counts.argmax() == table.next_prompt(successes, spent - successes)
            successes, spent = successes + rng.binomial(counts, probs), spent + counts
            left -= int(counts.sum())
        assert left == 0


def test_joint_draws_in_flight_are_integrated_out():
    """Three draws at once: the split with the best expected table value, by enumeration written out here."""
    table = solve_joint(3, 12, "std", (0.7, 1.6), keep_values=True)
    s, f = np.array([1, 0, 0]), np.array([0, 2, 0])
    best, values = None, {}
    for split in itertools.product(range(4), repeat=3):
        if sum(split) != 3:
            continue
        total = 0.0
        for wins in itertools.product(*(range(m + 1) for m in split)):
            chance = 1.0
            for i, (m, w) in enumerate(zip(split, wins, strict=True)):
                orders = itertools.combinations(range(m), w)
                chance_i = 0.0
                for ones in orders:
                    p, a, b = 1.0, 0.7 + s[i], 1.6 + f[i]
                    for draw in range(m):
                        p *= (a if draw in ones else b) / (a + b)
                        a, b = a + (draw in ones), b + (draw not in ones)
                    chance_i += p
                chance *= chance_i
            total += chance * table.expected_value(s + wins, f + np.array(split) - wins)
        values[split] = total
        best = split if best is None or total > values[best] + 1e-12 else best
    allocator = make_allocator("adaroll_joint", utility="std", block_size=3, draws_per_round=3)
    state = AllocationState(s, f, 0.7, 1.6)
    counts = allocator.allocate(state, 9, 3)
    assert values[tuple(counts)] == pytest.approx(values[best], rel=1e-12)


def test_joint_tables_are_kept_on_disk(tmp_path):
    options = {"block_size": 2, "table_cache_dir": str(tmp_path / "kept")}
    state = AllocationState(np.zeros(4), np.zeros(4), min_rollouts=1, max_rollouts=8)
    value = make_allocator("adaroll_joint", **options).expected_utility(state, 16, 13)
    assert len([path for path in (tmp_path / "kept").iterdir() if path.stat().st_size > 1000]) == 1
    assert make_allocator("adaroll_joint", **options).expected_utility(state, 16, 13) == value
    assert value == pytest.approx(2 * solve_joint(2, 8, min_rollouts=1, max_rollouts=8).value)


def test_joint_needs_one_prior():
    state = AllocationState(np.zeros(2), np.zeros(2), np.array([1.0, 2.0]), 1.0)
    with pytest.raises(ValueError, match=r"needs one prior for all prompts.*1 to 2.*belief_decay=0"):
        make_allocator("adaroll_joint").allocate(state, 8, 8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("knapsack2", {}, "allocator='knapsack2' is not known. Use one of uniform, adaroll"),
        ("adaroll_joint", {"block_size": 0}, "block_size=0 and draws_per_round=1 must be at least 1"),
        ("adaroll", {"utility": "nothing"}, "utility='nothing' is not known"),
        ("adaroll", {"utility": "progress", "kappa": 0.0}, "kappa=0.0 of utility 'progress'"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_allocator(name, **options)


def test_kappa_reaches_the_utility():
    assert make_allocator("adaroll", utility="progress", kappa=5.0).utility.key == "progress(kappa=5)"


def test_state_from_another_allocator_is_refused():
    with pytest.raises(ValueError, match=r"'uniform' keeps no state, but the checkpoint has \['price'\]"):
        make_allocator("uniform").load_state_dict({"price": 1.0})
