"""What every allocator promises, for all of them at once.

The counts are checked by the trainer's own check, `check_counts`: that they add up, that bounds hold and can still be
held later, and that a round's total is a multiple of the processes.
"""

import json
import time
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaroll_trl.allocators import ALLOCATOR_NAMES, AllocationState, allocator_class, make_allocator
from adaroll_trl.allocators.integers import level
from adaroll_trl.checks import check_counts

OURS = ("adaroll", "adaroll_joint")
PLAIN = [name for name in ALLOCATOR_NAMES if name not in OURS]  # numpy only, and any prior for any prompt
IDS = [f"p{i}" for i in range(12)]
EMBEDDINGS = dict(zip(IDS, np.random.default_rng(0).normal(size=(12, 3)), strict=True))
VARIANTS = [
    *[(name, {}) for name in PLAIN],
    ("vip", {"objective": "dr_grpo"}),
    ("vip", {"embeddings": EMBEDDINGS, "memory": 6}),
    ("reinforce_ada", {"mode": "pos"}),
    ("cero", {"tau": 2.0, "step": 1.0}),
    ("knapsack", {"largest": 4}),
    ("pilot_commit", {"first_share": 1.0}),
    ("vigor", {"alpha": 0.2}),
]


def play(allocator, state, budget, rounds, outcomes):
    """Play one batch from `state`; `outcomes(i, j)` is rollout j of prompt i: 0, 1 or None. Returns all counts."""
    n = state.num_prompts
    successes, failures, spent = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    left, history = budget, []

    def known():
        return replace(state, successes=successes.copy(), failures=failures.copy(), rollouts=spent.copy())

    for rounds_left in range(rounds, 0, -1):
        now = known()
        counts = check_counts(allocator.allocate(now, left, rounds_left), now, left, rounds_left, allocator.name)
        history.append(counts)
        for i in range(n):
            for j in range(spent[i], spent[i] + counts[i]):
                outcome = outcomes(i, j)
                successes[i] += outcome == 1
                failures[i] += outcome == 0
        spent += counts
        left -= int(counts.sum())
        if left == 0:
            break
    assert left == 0
    assert spent.sum() == budget
    allocator.observe(known())
    return history


def coins(probs, scored, seed):
    """Outcomes with these pass rates; a share of the rollouts gets no reward."""
    rng = np.random.default_rng(seed)
    draws = rng.random((len(probs), 400))
    has_reward = rng.random((len(probs), 400)) < scored
    return lambda i, j: int(draws[i, j] < probs[i]) if has_reward[i, j] else None


@st.composite
def batches(draw, max_prompts=9):
    n = draw(st.integers(1, max_prompts))
    multiple = draw(st.sampled_from([1, 2, 4]))
    budget = -(-n * draw(st.integers(1, 7)) // multiple) * multiple
    minimum = draw(st.integers(0, min(3, budget // n)))
    tightest = max(minimum, -(-budget // n))
    maximum = draw(st.sampled_from([None, tightest, tightest + 1, 3 * tightest]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["prior", "carried", "extreme"]))
    alpha, beta = {"prior": (1.0, 1.0), "carried": rng.gamma(1, 4, (2, n)) + 0.05, "extreme": (1e-3, 500.0)}[kind]
    ids = IDS[:n] if draw(st.booleans()) else None
    state = AllocationState(np.zeros(n), np.zeros(n), alpha, beta, None, ids, minimum, maximum, multiple)
    rates = {"none": np.zeros(n), "all": np.ones(n), "some": rng.choice([0.0, 0.1, 0.5, 1.0], n)}
    probs = rates[draw(st.sampled_from(["none", "all", "some"]))]
    rounds = min(draw(st.integers(1, 6)), budget // multiple)
    return state, budget, rounds, coins(probs, draw(st.sampled_from([0.0, 0.7, 1.0])), seed)


def corner(prompts, rate, each=4, minimum=1):
    """A batch whose prompts all have this pass rate."""
    state = AllocationState(np.zeros(prompts), np.zeros(prompts), prompt_ids=IDS[:prompts], min_rollouts=minimum)
    return state, prompts * each, min(3, prompts * each), coins([rate] * prompts, 1.0, 0)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@given(batch=batches())
@example(batch=corner(1, 0.0))
@example(batch=corner(1, 1.0))
@example(batch=corner(6, 0.0))
@example(batch=corner(6, 1.0))
@example(batch=corner(6, 0.5, each=2, minimum=2))
@settings(max_examples=40, deadline=None)
def test_every_batch_spends_its_budget_within_the_bounds(name, options, batch):
    """Two batches, so that state that is kept over steps is in play, with any number of rounds left."""
    state, budget, rounds, outcomes = batch
    if "embeddings" in options:
        state.prompt_ids = IDS[: state.num_prompts]
    allocator = make_allocator(name, **options)
    for _ in range(2):
        play(allocator, state, budget, rounds, outcomes)


@pytest.mark.parametrize("name", ALLOCATOR_NAMES)
def test_the_number_of_rounds(name):
    """Fixed ones are what the paper has; the others are the user's."""
    fixed = {"uniform": 1, "cero": 1, "vip": 1, "knapsack": 1, "hora": 2, "pilot_commit": 2, "dars": 2}
    asked = [make_allocator(name, block_size=2).num_rounds(4, 32, rounds, 2) for rounds in (1, 3, 7)]
    if name == "adaroll_joint":
        assert asked == [13, 13, 13]  # 2 each, then 24 rollouts over 2 blocks, one at a time
    elif name in fixed:
        assert asked == [fixed[name]] * 3
    else:
        assert asked == [1, 3, 7]
    assert allocator_class(name).reads_rounds == (asked == [1, 3, 7])


def carried(rng, order):
    """7 prompts in this order, in the middle of a batch: beliefs from earlier batches, and 14 rollouts each, with
    variances that are all different."""
    alpha, beta = rng.gamma(1, 3, (2, 7)) + 0.1
    kind, flipped = rng.permutation(8)[:7], rng.random(7) < 0.5
    s = np.where(flipped, 14 - kind, kind)[order]
    return AllocationState(s, 14 - s, alpha[order], beta[order], None, [IDS[i] for i in order])


def evenly_shared(allocator, state):
    """Rollouts that a rule which shares them evenly, or in whole proportions, shares without a rest."""
    proportions = allocator.wishes(state).sum() if allocator.name == "dars" else 0
    return int(60 * proportions) or 6 * 420  # for 1 to 3 rounds and 1 to 7 prompts


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@given(seed=st.integers(0, 10**6), rounds_left=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_the_order_of_prompts_does_not_matter(name, options, seed, rounds_left):
    """Permuting prompts, with their ids, permutes the counts, in the middle of a third batch. Where one rollout more
    is left over among prompts that a rule holds for equal, it goes to one of these, whichever is first."""
    order = np.random.default_rng(seed).permutation(7)
    decided = []
    for places in (np.arange(7), order):
        rng = np.random.default_rng(seed)
        state = carried(rng, places)
        outcomes = coins(rng.random(7), 1.0, seed)
        allocator = make_allocator(name, **options)
        fresh = replace(state, successes=np.zeros(7), failures=np.zeros(7), rollouts=None, max_rollouts=20)
        for _ in range(2):
            play(allocator, fresh, 42, 2, lambda i, j, places=places, outcomes=outcomes: outcomes(places[i], j))
        total = evenly_shared(allocator, state)
        more = deepcopy(allocator).allocate(state, total + 1, rounds_left)
        decided.append((allocator.allocate(state, total, rounds_left), more))
    (even, more), (moved, moved_more) = decided
    assert even[order].tolist() == moved.tolist()
    assert sorted(zip(even, more, strict=True)) == sorted(zip(moved, moved_more, strict=True))


JOINT = {draws: make_allocator("adaroll_joint", block_size=3, draws_per_round=draws) for draws in (1, 2)}


@given(seed=st.integers(0, 10**6), draws=st.sampled_from([1, 2]), last=st.booleans(), minimum=st.sampled_from([0, 2]))
@settings(max_examples=60, deadline=None)
def test_joint_blocks_take_their_prompts_in_any_order(seed, draws, last, minimum):
    """Permuting blocks, and prompts within blocks, permutes the counts; of prompts in one state the first one gets
    the rollout. Which prompts share a block goes by place, by design."""
    rng = np.random.default_rng(seed)
    s, f = rng.integers(0, 3, (2, 6))
    order = np.concatenate([3 * block + rng.permutation(3) for block in rng.permutation(2)])
    left = 2 * 12 - int((s + f).sum())
    rounds_left = 1 if last else 30

    def counts(places):
        state = AllocationState(s[places], f[places], 2.0, 1.0, min_rollouts=minimum)
        found = JOINT[draws].allocate(state, left, rounds_left)
        rows = list(zip(s[places].tolist(), f[places].tolist(), found.tolist(), strict=True))
        return [sorted(rows[:3]), sorted(rows[3:])]

    here, there = counts(np.arange(6)), counts(order)
    assert there == ([here[0], here[1]] if order[0] < 3 else [here[1], here[0]])


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_state_goes_through_json_and_back(name, options):
    """A second allocator with the state of the first decides as the first does from then on."""
    rng = np.random.default_rng(3)
    ids = np.array(IDS)
    known = {key: rng.gamma(1, 3, 2) + 0.1 for key in ids}

    def batch(step):
        keys = np.random.default_rng(step).choice(ids, 5, replace=False)
        alpha, beta = np.array([known[key] for key in keys]).T
        return AllocationState(np.zeros(5), np.zeros(5), alpha, beta, None, list(keys), 1, 16)

    first, second = make_allocator(name, **options), make_allocator(name, **options)
    outcomes = coins([0.3] * 5, 1.0, 1)
    for step in range(6):
        play(first, batch(step), 40, 3, outcomes)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step in range(6, 10):
        here, there = (play(allocator, batch(step), 40, 3, outcomes) for allocator in (first, second))
        assert [counts.tolist() for counts in here] == [counts.tolist() for counts in there]
    assert first.state_dict() == second.state_dict()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_snapshot_is_the_state_before_the_batch(name, options):
    allocator = make_allocator(name, **options)
    states = [AllocationState(np.zeros(4), np.zeros(4), 2.0, 1.0, None, IDS[k : k + 4]) for k in (0, 2)]
    for state in states:
        before = json.dumps(allocator.state_dict())
        snapshot = allocator.snapshot()
        play(allocator, state, 16, 2, coins([0.5] * 4, 1.0, 0))
        assert json.dumps(snapshot()) == before
    assert bool(allocator.state_dict()) == (name in ("cero", "thompson") or "embeddings" in options)


@pytest.mark.parametrize("name", ["cero", "thompson"])
def test_state_of_another_allocator_is_refused(name):
    with pytest.raises(ValueError, match=rf"allocator '{name}' keeps .*, but the checkpoint has \['pages'\]"):
        make_allocator(name).load_state_dict({"pages": 3})
    make_allocator(name).load_state_dict({})  # of one that keeps none: a fresh start


@pytest.mark.parametrize("name", PLAIN)
def test_a_large_batch_takes_milliseconds(name):
    """1,024 prompts x 8. A loop over pairs of prompts, or over rollouts and prompts, would take seconds."""
    rng = np.random.default_rng(0)
    n = 1024
    alpha, beta = rng.gamma(1, 3, (2, n)) + 0.1
    s, f = rng.binomial(4, 0.4, (2, n)) if not allocator_class(name).needs_beliefs else np.zeros((2, n))
    state = AllocationState(s, f, alpha, beta, None, [str(i) for i in range(n)], 2, 32)
    allocator = make_allocator(name)
    took = []
    for _ in range(3):
        start = time.process_time()
        check_counts(allocator.allocate(state, 8 * n, 1), state, 8 * n, 1, name)
        took.append(time.process_time() - start)
    assert min(took) < 0.3  # 50 ms at most on two free cores


def test_level_lifts_the_lowest_first():
    assert level(np.array([5, 0, 2]), 9, np.array([9, 9, 9])).tolist() == [5, 2, 2]
    assert level(np.array([5, 0, 2]), 11, np.array([9, 1, 9])).tolist() == [5, 1, 5]
    assert level(np.array([0, 0, 0]), 4, np.array([9, 9, 9])).tolist() == [2, 1, 1]  # the lowest number first


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cero", {"taau": 1.0}, "allocator 'cero' has no option 'taau'. It takes tau, step."),
        ("uniform", {"k": 1}, "allocator 'uniform' has no option 'k'. It takes none."),
        ("cero", {"tau": 0}, "tau=0 must be a number above 0."),
        ("cero", {"step": float("nan")}, "step=nan must be a number above 0."),
        ("vip", {"objective": "grpo"}, "objective='grpo' is not known. Use one of 'rloo', 'dr_grpo'."),
        ("vip", {"length_scale": -1.0}, "length_scale=-1.0 must be a number above 0."),
        ("vip", {"memory": 2.5}, "memory=2.5 must be an integer of at least 0 and at most 10,000."),
        ("knapsack", {"largest": 1}, "largest=1 must be an integer of at least 2."),
        ("hora", {"first_share": 1.5}, "first_share=1.5 must be a number above 0 and at most 1."),
        ("reinforce_ada", {"mode": "both"}, "mode='both' is not known. Use one of 'pos', 'balance'."),
        ("reinforce_ada", {"k": 0}, "k=0 must be an integer of at least 1."),
        ("vigor", {"alpha": 0.5, "gamma": 3.0}, "alpha=0.5 and gamma=3.0: their product must be 1"),
        ("pilot_commit", {"lower": 0.8}, "lower=0.8 must not be above upper=0.75."),
        ("dars", {"cap": True}, "cap=True must be a number above 0."),
        ("thompson", {"seed": -1}, "seed=-1 must be an integer of at least 0."),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ValueError) as caught:
        make_allocator(name, **options)
    assert message in str(caught.value)
