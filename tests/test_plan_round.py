"""The rounds planner: exact totals, bounds, symmetry, and that it is good."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaroll_trl.allocators import AllocationState, make_allocator
from adaroll_trl.simulation import simulate
from adaroll_trl.solver import index as solver_index
from adaroll_trl.solver import lagrangian_bound, plan_round, round_tables, solve_joint
from adaroll_trl.solver import threads as solver_threads
from adaroll_trl.solver.rounds import round_value
from adaroll_trl.utilities import UTILITY_NAMES, as_utility


@st.composite
def situations(draw):
    """A batch in the middle of a generation: a state that its bounds admit, and what is left to spend."""
    n = draw(st.integers(1, 9))
    maximum = draw(st.sampled_from([4, 8, 12]))
    minimum = draw(st.integers(0, 3))
    kind = draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n)) if draw(st.booleans()) else np.arange(n)
    spent = np.array(draw(st.lists(st.integers(0, maximum), min_size=n, max_size=n)))[kind]
    share = np.array(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))[kind]
    successes = np.round(spent * share).astype(int)
    multiple = draw(st.sampled_from([1, 2, 4]))
    low, room = int(np.maximum(minimum - spent, 0).sum()), int((maximum - spent).sum())
    least, most = -(-max(low, 1) // multiple), room // multiple
    if most < least:
        spent[:] = successes[:] = 0
        least, most = -(-max(n * minimum, 1) // multiple), n * maximum // multiple
    left = multiple * draw(st.integers(least, most))
    if draw(st.booleans()):
        prior = draw(st.floats(0.2, 4.0)), draw(st.floats(0.2, 4.0))
    else:
        few = st.lists(st.floats(0.2, 9.0), min_size=n, max_size=n)
        prior = np.array(draw(few))[kind], np.array(draw(few))[kind]
    bounds = {"min_rollouts": minimum, "max_rollouts": maximum, "multiple_of": multiple}
    rounds = draw(st.sampled_from([1, 2, 3, 5, 40, 1000]))
    return successes, spent - successes, left, rounds, draw(st.sampled_from(UTILITY_NAMES)), *prior, bounds


@given(situation=situations())
@settings(max_examples=150, deadline=None)
def test_counts_are_what_was_asked_for(situation):
    *arguments, bounds = situation
    counts = plan_round(*arguments, **bounds)
    spent = arguments[0] + arguments[1]
    left, rounds = arguments[2], arguments[3]
    assert counts.dtype == np.int64
    assert counts.min() >= 0
    assert 0 < counts.sum() <= left
    assert counts.sum() % bounds["multiple_of"] == 0
    assert (counts + spent <= bounds["max_rollouts"]).all()
    assert (counts + spent >= bounds["min_rollouts"]).all()
    if rounds == 1:
        assert counts.sum() == left


# A total halfway between two multiples, which once went up or down by the order of the prompts.
HALFWAY = (
    np.array([2, 0, 2, 0, 0]),
    np.array([0, 4, 1, 1, 1]),
    8,
    2,
    "mass",
    1.0,
    1.0,
    {"min_rollouts": 0, "max_rollouts": 4, "multiple_of": 4},
)


# One rollout at a time: one prompt is settled, and two are not.
ONE_BY_ONE = (np.array([1, 0, 2]), np.array([3, 0, 0]), 8, 40, "mixed", 1.0, 1.0, {"max_rollouts": 12})


@given(situation=situations(), seed=st.integers(0, 1000))
@example(situation=HALFWAY, seed=263)
@example(situation=ONE_BY_ONE, seed=0)
@example(situation=ONE_BY_ONE, seed=3)
@settings(max_examples=150, deadline=None)
def test_permuting_the_prompts_permutes_the_counts(situation, seed):
    """In a round before the last: the first of the prompts in one state with one prior gets what the first one got. In
    the last round, and where one rollout is decided at a time, prompts may tie whose next rollouts are worth the same,
    such as nothing at all: then what the chosen ones are worth, or their states, are the same."""
    s, f, left, rounds, utility, alpha, beta, bounds = situation
    rng = np.random.default_rng(seed)
    order = rng.permutation(s.size)
    priors = np.stack([np.broadcast_to(prior, s.shape) for prior in (alpha, beta)])
    kind = np.unique(priors, axis=1, return_inverse=True)[1].ravel()
    alpha, beta = rng.uniform(0.3, 5.0, (2, s.size))[:, kind]  # none symmetric, no two posteriors alike by chance
    settled = np.minimum(s, f) >= {"mixed": 1, "balanced": 2}.get(utility, s.size + s.max() + f.max())
    one_by_one = rounds >= left and bounds.get("multiple_of", 1) == 1

    def planned(places):
        """Counts by what the prompts are; in the last round, what they are worth in all."""
        prompts = (s[places], f[places], alpha[places], beta[places])
        counts = plan_round(*prompts[:2], left, rounds, utility, *prompts[2:], **bounds).tolist()
        rows = list(zip(*(column.tolist() for column in prompts), strict=True))
        if rounds == 1:
            return sum(worth_after(utility, *row, m)[m] for row, m in zip(rows, counts, strict=True))
        if one_by_one:
            rows = ["settled" if done else row[:2] for done, row in zip(settled[places], rows, strict=True)]
        found = {row: [m for other, m in zip(rows, counts, strict=True) if other == row] for row in rows}
        return {row: sorted(m) for row, m in found.items()} if one_by_one else found

    here, there = planned(np.arange(s.size)), planned(order)
    assert here == (pytest.approx(there, abs=1e-9) if rounds == 1 else there)


def test_of_prompts_in_one_state_the_last_one_gives_way():
    """Both take the larger plan, which is a rollout more than there are: the last one gives it up, not the first."""
    counts = plan_round([4, 4], [5, 5], 5, 3, "balanced", 1.824, 2.963, max_rollouts=12)
    assert counts[0] == counts[1] + 1


def worth_after(utility, s, f, alpha, beta, most):
    """Expected utility of a prompt after 0, 1, ... `most` more rollouts, by the beta-binomial distribution."""
    worth, pmf = [], np.ones(1)
    for m in range(most + 1):
        wins = np.arange(m + 1)
        worth.append(float(pmf @ as_utility(utility)(s + wins, f + m - wins)))
        q = (alpha + s + wins) / (alpha + beta + s + f + m)
        pmf = np.append(pmf * (1 - q), 0) + np.append(0, pmf * q)
    return worth


@pytest.mark.parametrize("utility", UTILITY_NAMES)
def test_last_round_is_the_exact_knapsack(utility):
    """Against the enumeration of all splits, with beta-binomial expectations computed here."""
    rng = np.random.default_rng(3)
    s, f = np.array([0, 2, 0, 1]), np.array([0, 1, 3, 0])
    alpha, beta = rng.uniform(0.3, 3, 4), rng.uniform(0.3, 3, 4)
    values = np.array([worth_after(utility, *row, 5) for row in zip(s, f, alpha, beta, strict=True)])
    splits = [c for c in np.ndindex(6, 6, 6, 6) if sum(c) == 5]
    best = max(sum(values[i, m] for i, m in enumerate(c)) for c in splits)
    counts = plan_round(s, f, 5, 1, utility, alpha, beta)
    assert sum(values[i, m] for i, m in enumerate(counts)) == pytest.approx(best, abs=1e-10)
    assert round_value(s, f, 5, 1, utility, alpha, beta) == pytest.approx(best, abs=1e-10)


def test_first_rounds_of_alike_prompts_are_neither_empty_nor_everything():
    for utility in UTILITY_NAMES:
        for rounds in (2, 3, 4, 8):
            counts = plan_round([0] * 32, [0] * 32, 256, rounds, utility, max_rollouts=32)
            assert 32 <= counts.sum() <= 224, (utility, rounds, counts)


def test_utilities_that_do_not_saturate_start_part_of_the_batch():
    """The best price ties between starting a prompt and not: just some are started."""
    for utility in ("mass", "std_mass"):
        counts = plan_round([0] * 32, [0] * 32, 256, 3, utility, max_rollouts=32)
        assert 0 < (counts > 0).sum() < 32


def test_one_prompt_gets_its_rounds_in_even_parts():
    left, seen = 17, []
    for rounds in (4, 3, 2, 1):
        counts = plan_round([0], [sum(seen)], left, rounds, "mass", max_rollouts=64)
        seen.append(int(counts[0]))
        left -= seen[-1]
    assert sum(seen) == 17
    assert max(seen) - min(seen) <= 1


def test_prompts_at_their_maximum_are_left_alone():
    counts = plan_round([9, 0, 0], [3, 1, 0], 6, 3, max_rollouts=8)
    assert counts[0] == 0
    assert counts.sum() > 0


def test_rollouts_without_reward_count_towards_the_bounds_only():
    counts = plan_round([0, 0], [0, 0], 4, 1, max_rollouts=4, rollouts=[4, 0])
    assert counts.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rollouts_left": 5, "min_rollouts": 4},
            "2 prompts with min_rollouts=4 still need 8",
        ),
        ({"rollouts_left": 9, "max_rollouts": 4}, "have room for 8 more"),
        ({"rollouts_left": 5, "multiple_of": 2}, "positive multiple of multiple_of=2"),
        ({"rollouts_left": 0}, "rollouts_left=0 must be at least 1"),
        ({"rounds_left": 0}, "rounds_left=0 must be at least 1"),
        ({"max_rollouts": 1000}, "max_rollouts=1000 is more than 256"),
        ({"min_rollouts": 5, "max_rollouts": 4}, "need 0 <= min_rollouts <= max_rollouts"),
        ({"successes": [0.5, 0]}, "must be whole numbers"),
        ({"failures": [0, 0, 0]}, "failures has shape"),
        ({"prior_alpha": [1.0, 0.0]}, "must be positive and finite"),
        ({"prior_beta": [1.0, 1.0, 1.0]}, "prior_beta has shape"),
        ({"rollouts": [0, 0], "failures": [1, 0]}, "at least successes"),
        ({"utility": "none"}, "utility='none' is not known"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"successes": [0, 0], "failures": [0, 0], "rollouts_left": 8, "rounds_left": 2} | change
    with pytest.raises(ValueError, match=message):
        plan_round(**arguments)


@pytest.mark.parametrize("utility", ["mixed", "std", "mass", "balanced"])
def test_more_rounds_are_better_up_to_the_bound(utility):
    """32 prompts x 8: one shot < two rounds < four rounds < one at a time <= bound, beyond four standard errors."""
    results = [
        simulate("adaroll", 32, 256, rounds, utility, num_batches=1500, max_rollouts=32) for rounds in (1, 2, 4, 256)
    ]
    for worse, better in itertools.pairwise(results):
        difference = better.controlled - worse.controlled
        assert difference.mean() > 4 * difference.std(ddof=1) / np.sqrt(difference.size)
    assert results[-1].mean <= lagrangian_bound(32, 256, utility, max_rollouts=32) + 4 * results[-1].standard_error


@pytest.mark.parametrize("utility", ["mixed", "mass"])
def test_planned_value_is_above_what_is_achieved(utility):
    for rounds in (1, 2, 4):
        planned = round_value([0] * 8, [0] * 8, 64, rounds, utility, max_rollouts=32)
        result = simulate("adaroll", 8, 64, rounds, utility, num_batches=2000, max_rollouts=32)
        assert result.mean <= planned * (1 + 1e-12) + 4 * result.standard_error
        assert result.mean >= 0.9 * planned


def test_rounds_come_near_the_exact_optimum_of_a_small_batch():
    optimum = solve_joint(4, 32, "mixed", max_rollouts=16).value
    uniform = 4 * 7 / 9
    result = simulate("adaroll", 4, 32, 8, "mixed", num_batches=4000, max_rollouts=16)
    assert result.mean - uniform > 0.75 * (optimum - uniform)
    assert result.mean <= optimum + 4 * result.standard_error


def test_many_priors_cost_little_against_tables_of_their_own(monkeypatch):
    """With carried beliefs the continuation is interpolated on a mesh; compare with a table for every prior."""
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(0.3, 6.0, 12), rng.uniform(0.3, 6.0, 12)
    probs = rng.beta(alpha, beta, (300, 12))
    outcomes = rng.random((300, 12, 16)) < probs[..., None]
    utility = as_utility("mixed")

    def play():
        total = 0.0
        for batch in outcomes:
            s, n, left = np.zeros(12, int), np.zeros(12, int), 48
            for rounds in (3, 2, 1):
                counts = plan_round(s, n - s, left, rounds, utility, alpha, beta, max_rollouts=16)
                s = s + [row[a : a + c].sum() for row, a, c in zip(batch, n, counts, strict=True)]
                n, left = n + counts, left - int(counts.sum())
            total += float(utility(s, n - s).sum())
        return total / len(outcomes)

    meshed = play()
    monkeypatch.setattr(round_tables, "EXACT_PRIORS", 12)
    exact = play()
    assert meshed == pytest.approx(exact, rel=0.01)


def test_allocator_passes_everything_on():
    state = AllocationState(
        np.array([0, 1]), np.array([2, 0]), 0.5, np.array([1.0, 2.0]), min_rollouts=1, max_rollouts=8, multiple_of=2
    )
    counts = make_allocator("adaroll", utility="std").allocate(state, 6, 2)
    expected = plan_round([0, 1], [2, 0], 6, 2, "std", 0.5, [1.0, 2.0], 1, 8, 2)
    np.testing.assert_array_equal(counts, expected)


def test_large_tables_are_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAROLL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(round_tables, "_STORED_FROM", 24)
    utility = as_utility("std")
    built = round_tables.RoundTables(utility, 24).levels((0.7, 1.1), 3)
    files = sorted(path for path in tmp_path.iterdir() if path.stat().st_size > 1000)
    assert len(files) == 2
    stamps = [path.stat().st_mtime_ns for path in files]
    read = round_tables.RoundTables(utility, 24).levels((0.7, 1.1), 3)
    np.testing.assert_array_equal(built[1], read[1])
    assert stamps == [path.stat().st_mtime_ns for path in files]


def test_planning_leaves_the_thread_count_of_torch_alone():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plan_round([0] * 40, [0] * 40, 320, 3, "std", max_rollouts=30)
        lagrangian_bound(4, 16)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_tables_are_the_same_with_one_thread_and_with_many(monkeypatch):
    tables = []
    for threads in (1, 3):
        with ThreadPoolExecutor(threads) as pool:
            monkeypatch.setattr(solver_threads, "_pool", lambda pool=pool, threads=threads: (pool, threads))
            built = round_tables.RoundTables(as_utility("std"), 30)
            prices, levels = built.levels((0.6, 1.3), 3)
            index = solver_index.IndexTable(40, as_utility("mass"), (0.6, 1.3))
            tables.append((prices.tobytes(), levels.tobytes(), index.short.tobytes(), index.limit.tobytes()))
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rollouts_left": 4.0}, "rollouts_left=4.0 must be a whole number"),
        ({"rounds_left": float("nan")}, "rounds_left=nan must be a whole number"),
        ({"max_rollouts": 5.5}, "max_rollouts=5.5 must be a whole number"),
        ({"min_rollouts": 1.5}, "min_rollouts=1.5 must be a whole number"),
        ({"successes": ["a", "b"]}, "successes=.* must be whole numbers"),
        ({"failures": [float("nan"), 0]}, "failures=.* must be whole numbers"),
    ],
)
def test_wrong_types_are_named(change, message):
    arguments = {"successes": [0, 0], "failures": [0, 0], "rollouts_left": 8, "rounds_left": 2} | change
    with pytest.raises(ValueError, match=message):
        plan_round(**arguments)


def test_a_plan_does_not_depend_on_what_was_asked_before():
    """The price grid is made for every number of rounds, not for the most that were asked for so far."""
    fresh, used = (round_tables.RoundTables(as_utility("mass"), 20) for _ in range(2))
    used.levels((1.0, 1.0), 9)
    for before, after in zip(fresh.levels((1.0, 1.0), 3), used.levels((1.0, 1.0), 3), strict=True):
        np.testing.assert_array_equal(before, after)


def test_tables_of_priors_that_do_not_come_back_are_forgotten():
    tables = round_tables.RoundTables(as_utility("mixed"), 6)
    for step in range(3 * round_tables._KEPT_PRIORS):
        tables.levels((1.0 + 0.01 * step, 1.0), 2)
    assert len(tables._stacks) == len(tables._grids) == round_tables._KEPT_PRIORS
