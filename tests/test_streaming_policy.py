"""Who gets the next rollout while others are in flight: bounds in any order of ends, the rule, and its worth."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.allocators import AllocationState, make_allocator, streaming_allocators
from adaroll_trl.simulation.streaming import (
    LENGTHS,
    DrawnBatches,
    length_tilt,
    play_in_rounds,
    stream_batches,
)
from adaroll_trl.solver import StreamPlanner, lagrangian_bound, plan_round
from adaroll_trl.solver.stream_kernels import (
    DEPTH,
    IN_FLIGHT,
    LEFT,
    LEVELS,
    PENDING,
    PLACE,
    SCORED,
    SUCCESSES,
    TIE_STEP,
    TIE_WEIGHT,
)
from adaroll_trl.utilities import UTILITY_NAMES, expected_utility_after, make_utility


def test_which_allocators_stream():
    assert streaming_allocators() == ("uniform", "adaroll", "cero", "vip", "knapsack")
    state = AllocationState(np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match=r"'pilot_commit' cannot stream: .* uniform, adaroll, cero, vip, kn"):
        make_allocator("pilot_commit").stream(state, 4, 2)


@st.composite
def questions(draw: Any) -> dict[str, Any]:
    n = draw(st.integers(1, 6))
    least = draw(st.integers(0, 3))
    most = draw(st.integers(max(least, 1), 9))
    budget = draw(st.integers(max(1, n * least), n * most))
    beliefs = st.lists(st.floats(0.1, 20), min_size=n, max_size=n)
    return {
        "n": n,
        "least": least,
        "most": most,
        "budget": budget,
        "in_flight": draw(st.integers(1, budget)),
        "alpha": np.round(draw(beliefs), 1),
        "beta": np.round(draw(beliefs), 1),
        "seed": draw(st.integers(0, 10**6)),
    }


def run_stream(stream: Any, question: dict[str, Any]) -> np.ndarray:
    """Every rollout ends some time, in any order, with or without a reward; the counts."""
    rng = random.Random(question["seed"])
    counts, open_ = np.zeros(question["n"], dtype=np.int64), []
    for _ in range(question["budget"]):
        while open_ and (len(open_) >= question["in_flight"] or rng.random() < 0.3):
            stream.record(open_.pop(rng.randrange(len(open_))), rng.choice([True, False, None]))
        prompt = stream.next_prompt()
        open_.append(prompt)
        counts[prompt] += 1
    return counts


@pytest.mark.parametrize("name", streaming_allocators())
@given(questions())
@settings(max_examples=40, deadline=None)
def test_counts_sum_to_the_budget_within_the_bounds(name, question):
    state = AllocationState(
        np.zeros(question["n"]),
        np.zeros(question["n"]),
        question["alpha"],
        question["beta"],
        min_rollouts=question["least"],
        max_rollouts=question["most"],
    )
    stream = make_allocator(name).stream(state, question["budget"], question["in_flight"])
    counts = run_stream(stream, question)
    assert counts.sum() == question["budget"]
    assert counts.min() >= question["least"]
    assert counts.max() <= question["most"]


@given(questions(), st.sampled_from(UTILITY_NAMES), st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_order_of_prompts_does_not_matter(question, utility, shuffle):
    """Of prompts that differ; equal ones are taken as they come."""
    n = question["n"]
    alpha = question["alpha"] + np.arange(n) * 0.37  # apart
    order = list(range(n))
    shuffle.shuffle(order)
    bounds = (question["budget"], question["in_flight"], utility)
    limits = {"min_rollouts": question["least"], "max_rollouts": question["most"]}
    plain = StreamPlanner(np.zeros(n), np.zeros(n), *bounds, alpha, question["beta"], **limits)
    other = StreamPlanner(np.zeros(n), np.zeros(n), *bounds, alpha[order], question["beta"][order], **limits)
    rng, open_ = random.Random(question["seed"]), []
    for _ in range(question["budget"]):
        while len(open_) >= question["in_flight"]:
            prompt, success = open_.pop(rng.randrange(len(open_))), rng.random() < 0.5
            plain.record(prompt, success)
            other.record(order.index(prompt), success)
        prompt = plain.next_prompt()
        assert order[other.next_prompt()] == prompt
        open_.append(prompt)


# The rule, in plain numpy


class Plain:
    """What `stream_kernels` says it computes, for one state of a stream."""

    def __init__(self, stream: Any, utility: Any) -> None:
        self.prompts, self.numbers, self.priors = stream.prompts, stream.numbers, stream.priors
        self.prices, self.utility, self.size = stream.prices, utility, stream.by_n.shape[0] - 1
        left, in_flight = self.numbers[LEFT], self.numbers[IN_FLIGHT]
        level = np.floor(LEVELS * (left / in_flight - 0.5) + 0.5)
        self.known = min(max(level / LEVELS, 0.0), 1.0)

    def stopping(self, prior: np.ndarray, x: float) -> list[np.ndarray]:
        values = [self.utility(np.arange(n + 1.0), n - np.arange(n + 1.0)) for n in range(self.size + 1)]
        for n in range(self.size - 1, -1, -1):
            q = (prior[0] + np.arange(n + 1)) / (prior.sum() + n)
            values[n] = np.maximum(values[n], q * values[n + 1][1:] + (1 - q) * values[n + 1][:-1] - x)
        return values

    def plans(self, i: int, x: float) -> np.ndarray:
        """Q_x(0), Q_x(1), ... of prompt i."""
        prior = self.priors[self.prompts[i, 4]]
        s, n, pending = self.prompts[i, SUCCESSES], self.prompts[i, SCORED], self.prompts[i, PENDING]
        going = self.stopping(prior, x)
        room = min(self.size - n - pending, DEPTH, self.numbers[LEFT])
        values = []
        for j in range(room + 1):
            total, pmf = pending + j, np.ones(1)
            for m in range(total):  # Polya's urn
                up = (prior[0] + s + np.arange(m + 1)) / (prior.sum() + n + m)
                pmf = np.append(pmf * (1 - up), 0.0) + np.append(0.0, pmf * up)
            ends = s + np.arange(total + 1.0)
            stop = self.utility(ends, n + total - ends)
            v = (1 - self.known) * stop + self.known * going[n + total][s : s + total + 1]
            values.append(float(pmf @ v) - x * j)
        return np.array(values)

    def dual(self, x: float) -> float:
        return x * self.numbers[LEFT] + sum(self.plans(i, x).max() for i in range(len(self.prompts)))

    def score(self, i: int, place: int) -> float:
        total = 0.0
        for at, weight in ((place, 1.0), (min(place + TIE_STEP, len(self.prices) - 1), TIE_WEIGHT)):
            q = self.plans(i, self.prices[at])
            total += weight * ((q[1:] - q[0]) / np.arange(1, len(q))).max() if len(q) > 1 else -np.inf
        return total


@pytest.mark.parametrize(("utility", "in_flight"), [("mixed", 1), ("mixed", 6), ("std", 3), ("mass", 3)])
def test_the_kernels_follow_the_formulas(utility, in_flight):
    rng, named = random.Random(1), make_utility(utility)
    alpha, beta = np.array([1.0, 0.5, 2.0, 1.0]), np.array([1.0, 2.0, 0.7, 1.0])
    planner = StreamPlanner(np.zeros(4), np.zeros(4), 10, in_flight, named, alpha, beta, 0, 6)
    open_: list[int] = []
    for _ in range(10):
        while len(open_) >= in_flight:
            planner.record(open_.pop(rng.randrange(len(open_))), rng.random() < 0.4)
        plain = Plain(planner.stream, named)
        plain.prompts, plain.numbers = plain.prompts.copy(), plain.numbers.copy()
        prompt = planner.next_prompt()
        place = int(planner.stream.numbers[PLACE])
        duals = [plain.dual(x) for x in [*plain.prices[::16], plain.prices[place]]]
        assert duals[-1] <= min(duals) + 1e-9 * abs(min(duals))
        scores = [plain.score(i, place) for i in range(4)]
        assert scores[prompt] >= max(scores) - 1e-8 * (1 + abs(max(scores)))
        open_.append(prompt)


# What it is worth


def draw(count: int, prompts: int = 8, most: int = 16, lengths: str = "even") -> DrawnBatches:
    return DrawnBatches.draw(LENGTHS[lengths], prompts, most, count, seed=3)


@pytest.mark.parametrize("utility", ["mixed", "std"])
def test_one_in_flight_is_worth_what_the_index_policy_is(utility):
    named, batches = make_utility(utility), draw(60)
    streamed = stream_batches(batches, named, 64, 1, 1).utilities(named)
    index = play_in_rounds(batches, named, 64, 64, 1).utilities(named)
    difference = streamed - index
    assert abs(difference.mean()) < 0.004 * index.mean() + 2.5 * difference.std() / np.sqrt(len(difference))


@pytest.mark.parametrize("utility", UTILITY_NAMES)
def test_all_in_flight_is_worth_what_one_round_is(utility):
    rng, named = np.random.default_rng(5), make_utility(utility)
    alpha, beta = rng.uniform(0.3, 6, 12), rng.uniform(0.3, 6, 12)
    bounds = {"min_rollouts": 1, "max_rollouts": 24}
    planner = StreamPlanner(np.zeros(12), np.zeros(12), 96, 96, named, alpha, beta, **bounds)
    counts = np.bincount([planner.next_prompt() for _ in range(96)], minlength=12)
    best = plan_round(np.zeros(12), np.zeros(12), 96, 1, named, alpha, beta, **bounds)

    def worth(plan: np.ndarray) -> float:
        each = [slice(i, i + 1) for i in range(12)]
        return sum(float(expected_utility_after(named, int(plan[i][0]), alpha[i], beta[i])[0]) for i in each)

    assert worth(counts) <= worth(best) + 1e-9
    assert worth(counts) > 0.99 * worth(best)


def test_never_above_the_bound_and_better_with_fewer_in_flight():
    named, batches = make_utility("mixed"), draw(600)
    bound = lagrangian_bound(8, 64, "mixed", min_rollouts=1, max_rollouts=16)
    means = []
    for in_flight in (1, 8, 32):
        utilities = stream_batches(batches, named, 64, in_flight, 1).utilities(named)
        assert utilities.mean() < bound + 3 * utilities.std() / np.sqrt(len(utilities))
        means.append(utilities.mean())
    assert means[0] > means[1] > means[2]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_counts_and_steps_of_the_simulator(lengths):
    named, batches = make_utility("mixed"), draw(20, lengths=lengths)
    for in_order in (False, True):
        result = stream_batches(batches, named, 64, 8, 2, in_order)
        assert (result.rollouts.sum(axis=1) == 64).all()
        assert result.rollouts.min() >= 2
        generated = np.arange(16) < result.rollouts[:, :, None]
        assert (result.successes == (batches.outcomes * generated).sum(axis=2)).all()
        tokens = (batches.lengths * generated).sum(axis=(1, 2))
        assert (result.steps >= tokens / 8).all()  # 8 places at most
        assert (result.steps <= tokens).all()


def test_in_order_of_start_lengths_change_nothing():
    named, batches = make_utility("mixed"), draw(30)
    others = DrawnBatches(batches.rates, batches.outcomes, draw(30, lengths="tails").lengths)
    first, second = (stream_batches(b, named, 64, 8, 1, in_order=True) for b in (batches, others))
    assert (first.rollouts == second.rollouts).all()
    assert (first.steps != second.steps).any()
    loose = [stream_batches(b, named, 64, 8, 1).rollouts for b in (batches, others)]
    assert (loose[0] != loose[1]).any()


def test_the_tilt_is_seen_where_there_is_one():
    """An allocation that gives more to prompts whose first completion is long makes such completions weigh more."""
    named, batches = make_utility("mixed"), draw(400)
    equal = play_in_rounds(batches, named, 64, 1, 8)
    tilts, errors = length_tilt(batches, equal)
    assert (np.abs(tilts) < 4 * errors + 0.01).all()
    result = stream_batches(batches, named, 64, 8, 1)
    counts = np.where(batches.lengths[:, :, 0] > 66, 16, 2)  # whatever the budget
    successes = (batches.outcomes * (np.arange(16) < counts[:, :, None])).sum(axis=2)
    tilts, errors = length_tilt(batches, type(result)(successes, counts, result.steps))
    assert (np.abs(tilts) > 4 * errors).any()


# Refusals


def test_misuse_is_told():
    planner = StreamPlanner([0, 0], [0, 0], budget=2, in_flight=1)
    with pytest.raises(ValueError, match="prompt=1 has no rollout in flight"):
        planner.record(1, True)
    planner.next_prompt()
    planner.next_prompt()
    with pytest.raises(ValueError, match="more often than the budget"):
        planner.next_prompt()
    with pytest.raises(ValueError, match="budget=3 is not enough: 2 prompts with min_rollouts=2"):
        StreamPlanner([0, 0], [0, 0], budget=3, in_flight=1, min_rollouts=2)
    with pytest.raises(ValueError, match="in_flight=0 must be"):
        StreamPlanner([0], [0], budget=3, in_flight=0)
