"""Every public solver on inputs that nobody chose: an answer that keeps its contract, or an error that names why."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.solver import (
    UTILITY_NAMES,
    StreamPlanner,
    lagrangian_bound,
    make_utility,
    plan_round,
    solve_index,
    solve_joint,
)
from adaroll_trl.solver.evaluation import sequential_value
from adaroll_trl.solver.rounds import round_value

# Beliefs from next to nothing to what a million visits would leave
BELIEFS = st.sampled_from([1e-6, 0.05, 0.5, 1.0, 3.7, 250.0, 1e6, 2.0**53])
UTILITIES = st.one_of(
    st.sampled_from(UTILITY_NAMES),
    st.builds(lambda k: make_utility("balanced", k=k), st.sampled_from([1e-3, 1.0, 5.0, 1e6])),
    st.builds(lambda kappa: make_utility("progress", kappa=kappa), st.sampled_from([1e-9, 0.5, 1e9])),
)


NOT_OF_A_STREAM = ("rollouts_left", "rounds_left", "multiple_of")


@pytest.fixture(autouse=True)
def numbers_are_numbers():
    """No overflow, division by zero or lost integer goes by unseen."""
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error", RuntimeWarning)
        yield


@st.composite
def rounds(draw):
    """A batch in the middle of its rounds, whose budget fits between the bounds."""
    n = draw(st.integers(1, 6))
    per_prompt = st.lists(st.integers(0, 5), min_size=n, max_size=n)
    s, f, unscored = (np.array(draw(per_prompt)) for _ in range(3))
    spent = s + f + unscored * draw(st.integers(0, 1))
    low = draw(st.integers(0, 6))
    unit = draw(st.integers(1, 4))
    lack = int(np.maximum(low - spent, 0).sum())
    left = unit * draw(st.integers(max(1, -(-lack // unit)), max(1, -(-lack // unit)) + 6))
    high = max(int(spent.max()), low, -(-(int(spent.sum()) + left) // n)) + draw(st.integers(0, 4))
    while np.maximum(high - spent, 0).sum() < left:
        high += 1
    mixed = draw(st.booleans())
    prior = np.array(draw(st.lists(BELIEFS, min_size=n if mixed else 1, max_size=n if mixed else 1)))
    other = np.array(draw(st.lists(BELIEFS, min_size=n if mixed else 1, max_size=n if mixed else 1)))
    return {
        "successes": s,
        "failures": f,
        "rollouts": spent,
        "rollouts_left": left,
        "rounds_left": draw(st.integers(1, 5)),
        "prior_alpha": prior if mixed else float(prior[0]),
        "prior_beta": other if mixed else float(other[0]),
        "min_rollouts": low,
        "max_rollouts": draw(st.sampled_from([None, high])),
        "multiple_of": unit,
    }


@given(batch=rounds(), utility=UTILITIES)
@settings(max_examples=25, deadline=None)
def test_a_round_is_planned_within_its_bounds(batch, utility):
    counts = plan_round(**batch, utility=utility)
    ended = batch["rollouts"] + counts
    left = batch["rollouts_left"] - counts.sum()
    assert counts.dtype == np.int64
    assert counts.shape == batch["successes"].shape
    assert (counts >= 0).all()
    assert 0 < counts.sum() <= batch["rollouts_left"]
    assert counts.sum() % batch["multiple_of"] == 0
    assert batch["rounds_left"] > 1 or left == 0
    assert batch["max_rollouts"] is None or (ended <= batch["max_rollouts"]).all()
    assert np.maximum(batch["min_rollouts"] - ended, 0).sum() <= left
    value = round_value(**{name: value for name, value in batch.items() if name != "multiple_of"}, utility=utility)
    assert math.isfinite(value)


@given(batch=rounds(), utility=UTILITIES, in_flight=st.integers(1, 8), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_stream_spends_its_budget_within_its_bounds(batch, utility, in_flight, seed):
    rng = random.Random(seed)
    budget, low, high = batch["rollouts_left"], batch["min_rollouts"], batch["max_rollouts"]
    question = {name: value for name, value in batch.items() if name not in NOT_OF_A_STREAM}
    planner = StreamPlanner(**question, budget=budget, in_flight=in_flight, utility=utility)
    ended, pending = batch["rollouts"].copy(), list[int]()
    for _ in range(budget):
        if len(pending) == in_flight:
            planner.record(pending.pop(rng.randrange(in_flight)), rng.choice([True, False, None]))
        pending.append(planner.next_prompt())
        ended[pending[-1]] += 1
    for prompt in pending:
        planner.record(prompt, rng.choice([True, False, None]))
    assert ended.sum() == batch["rollouts"].sum() + budget
    assert (ended >= low).all()
    assert high is None or (ended <= high).all()
    with pytest.raises(ValueError, match="more often than the budget"):
        planner.next_prompt()
    with pytest.raises(ValueError, match="has no rollout in flight"):
        planner.record(0, True)


@given(utility=UTILITIES, prior=st.tuples(BELIEFS, BELIEFS), most=st.integers(1, 24), data=st.data())
@settings(max_examples=40, deadline=None)
def test_indices_are_numbers_wherever_anything_remains(utility, prior, most, data):
    table = solve_index(most, utility, prior)
    s, f = np.indices((most + 1, most + 1)).reshape(2, -1)
    s, f = s[s + f <= most], f[s + f <= most]
    remaining = data.draw(st.integers(0, 2**62))
    index = table.index(s, f, remaining)
    open_ = (s + f < most) & (remaining > 0)
    assert np.isfinite(index[open_]).all()
    assert (index[~open_] == -np.inf).all()


@given(
    utility=UTILITIES,
    prior=st.tuples(BELIEFS, BELIEFS),
    n=st.integers(1, 4),
    budget=st.integers(0, 10),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_no_policy_is_worth_more_than_the_optimum_nor_that_more_than_the_bound(utility, prior, n, budget, data):
    low = data.draw(st.integers(0, budget // n))
    high = data.draw(st.sampled_from([None, max(1, low, -(-budget // n))]))
    bound = lagrangian_bound(n, budget, utility, prior, low, high)
    best = solve_joint(n, budget, utility, prior, low, high).value
    assert math.isfinite(bound)
    assert math.isfinite(best)
    assert best <= bound + 1e-7 * (1 + abs(bound))
    if low == 0:
        played = sequential_value(n, budget, utility, prior, high)
        assert played <= best + 1e-7 * (1 + abs(best))


@pytest.mark.parametrize(("n", "budget"), [(8, 128), (64, 512), (127, 256), (2, 100_000)])
@pytest.mark.parametrize("utility", ["mixed", "mass"])
def test_tables_whose_ranks_no_longer_fit_are_refused_with_their_size(n, budget, utility, monkeypatch):
    monkeypatch.setattr("adaroll_trl.solver.joint.available_bytes", lambda: 2 * 10**7)
    with pytest.raises((MemoryError, ValueError), match=f"budget={budget}") as caught:
        solve_joint(n, budget, utility, reductions="none")
    assert len(str(caught.value)) < 500


BAD = [
    (lambda v: plan_round([0, 0], [0, 0], v, 1), "rollouts_left"),
    (lambda v: plan_round([0, 0], [0, 0], 4, v), "rounds_left"),
    (lambda v: plan_round([0, 0], [0, 0], 4, 1, multiple_of=v), "multiple_of"),
    (lambda v: plan_round([0, 0], [0, 0], 4, 1, prior_alpha=v), "prior_alpha"),
    (lambda v: plan_round([0, v], [0, 0], 4, 1), "successes"),
    (lambda v: plan_round([0, 0], [v, 0], 4, 1), "failures"),
    (lambda v: plan_round([0, 0], [0, 0], 4, 1, rollouts=[0, v]), "rollouts"),
    (lambda v: plan_round([0, 0], [0, 0], 4, 1, max_rollouts=v), "max_rollouts"),
    (lambda v: solve_index(v), "max_rollouts"),
    (lambda v: solve_index(8, prior=(1.0, v)), "prior"),
    (lambda v: solve_joint(v, 4), "num_prompts"),
    (lambda v: solve_joint(2, v), "budget"),
    (lambda v: solve_joint(2, 4, prior=(v, 1.0)), "prior"),
    (lambda v: lagrangian_bound(v, 4), "num_prompts"),
    (lambda v: lagrangian_bound(2, v), "budget"),
    (lambda v: lagrangian_bound(2, 4, prior=[[1.0, v], [1.0, 1.0]]), "prior"),
    (lambda v: StreamPlanner([0, v], [0, 0], 4, 1), "successes"),
    (lambda v: StreamPlanner([0, 0], [0, v], 4, 1), "failures"),
    (lambda v: StreamPlanner([0, 0], [0, 0], v, 1), "budget"),
    (lambda v: StreamPlanner([0, 0], [0, 0], 4, v), "in_flight"),
    (lambda v: StreamPlanner([0, 0], [0, 0], 4, 1, prior_alpha=v), "prior_alpha"),
    (lambda v: StreamPlanner([0, 0], [0, 0], 4, 1).record(v, True), "prompt"),
    (lambda v: StreamPlanner([0, 0], [0, 0], 4, 1).record(0, v), "success"),
    (lambda v: sequential_value(v, 4), "num_prompts"),
    (lambda v: sequential_value(2, v), "budget"),
    (lambda v: make_utility("balanced", k=v), "k="),
    (lambda v: make_utility("progress", kappa=v), "kappa="),
]


@pytest.mark.parametrize("place", range(len(BAD)))
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "x", None, 10**30, [1, 2, 3], 1j], ids=repr)
def test_a_bad_number_is_named(place, value):
    call, name = BAD[place]
    if value is None and name in ("max_rollouts", "rollouts") and place in (6, 7):
        return  # it means no maximum
    if value is None and name == "success":
        value = 0.5  # None means no reward
    if value == 10**30 and name in ("prior", "prior_alpha", "k=", "kappa="):
        return  # large, and a number
    with pytest.raises(ValueError, match=name):
        call(value)
