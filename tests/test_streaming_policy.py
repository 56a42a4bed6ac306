"""Who gets the next rollout while others are in flight: bounds in any order of ends, the rule, and its worth."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.allocators import (
    AllocationState,
    Allocator,
    RolloutStream,
    allocator_class,
    cannot_stream,
    make_allocator,
    streaming_allocators,
)
from adaroll_trl.allocators.planned import PlannedStreams
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
    names = ("uniform", "adaroll", "cero", "vip", "knapsack", "reinforce_ada", "thompson")
    assert streaming_allocators() == names
    state = AllocationState(np.zeros(2), np.zeros(2))
    for name, reason in (
        *((name, "outcomes of its first phase, equal groups") for name in ("hora", "pilot_commit", "dars")),
        ("vigor", "outcomes of a round, by whose variances"),
        ("adaroll_joint", "outcomes of a block's last draws"),
    ):
        allocator = make_allocator(name)
        with pytest.raises(ValueError, match=f"{name!r} cannot stream: it waits for .*{reason}"):
            allocator.stream(state, 4, 2)
        assert reason in cannot_stream(allocator)
        assert f"These can: {', '.join(names)}." in cannot_stream(allocator)


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
        "outcomes": draw(st.sampled_from([(True,), (False,), (True, False), (True, False, None)])),
        "seed": draw(st.integers(0, 10**6)),
    }


def start(allocator: Allocator, question: dict[str, Any], order: list[int] | None = None) -> RolloutStream:
    """The stream of a question, whose prompts stand in this order."""
    order = list(range(question["n"])) if order is None else order
    state = AllocationState(
        np.zeros(question["n"]),
        np.zeros(question["n"]),
        question["alpha"][order],
        question["beta"][order],
        prompt_ids=[f"prompt {i}" for i in order],
        min_rollouts=question["least"],
        max_rollouts=question["most"],
    )
    return allocator.stream(state, question["budget"], question["in_flight"])


def run_stream(stream: RolloutStream, question: dict[str, Any], order: list[int] | None = None) -> list[int]:
    """Every rollout ends some time, in any order, with or without a reward; the prompts as they were chosen."""
    order = list(range(question["n"])) if order is None else order
    rng = random.Random(question["seed"])
    chosen: list[int] = []
    open_: list[int] = []
    for _ in range(question["budget"]):
        while open_ and (len(open_) >= question["in_flight"] or rng.random() < 0.3):
            stream.record(order.index(open_.pop(rng.randrange(len(open_)))), rng.choice(question["outcomes"]))
        open_.append(order[stream.next_prompt()])
        chosen.append(open_[-1])
    return chosen


@pytest.mark.parametrize("name", streaming_allocators())
@given(questions())
@settings(max_examples=40, deadline=None)
def test_counts_sum_to_the_budget_within_the_bounds(name, question):
    """Two batches, so that a state that is kept over steps is in play, and twice: the seed decides, and no other."""
    runs = []
    for _ in range(2):
        allocator = make_allocator(name)
        runs.append([run_stream(start(allocator, question), question) for _ in range(2)])
        random.random(), np.random.random()  # of nobody's concern
    assert runs[0] == runs[1]
    for chosen in runs[0]:
        counts = np.bincount(chosen, minlength=question["n"])
        assert counts.sum() == question["budget"]
        assert counts.min() >= question["least"]
        assert counts.max() <= question["most"]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in streaming_allocators()
        # `reinforce_ada` goes by place among prompts that it does not tell apart; planned streams are as in rounds
        if name != "reinforce_ada" and not issubclass(allocator_class(name), PlannedStreams)
    ],
)
@given(questions(), st.randoms())
@settings(max_examples=25, deadline=None)
def test_the_order_of_prompts_does_not_matter(name, question, shuffle):
    """Of prompts that differ, each is chosen when it is chosen in any other order."""
    question["alpha"] = question["alpha"] + np.arange(question["n"]) * 0.37
    order = list(range(question["n"]))
    shuffle.shuffle(order)
    plain, other = make_allocator(name), make_allocator(name)
    for _ in range(2):
        here = run_stream(start(plain, question), question)
        assert here == run_stream(start(other, question, order), question, order)


@given(questions(), st.sampled_from(UTILITY_NAMES), st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_order_of_prompts_does_not_matter_to_any_utility(question, utility, shuffle):
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


# Those that rank prompts by their own rollouts


def streamed(allocator: Allocator, state: AllocationState, budget: int, in_flight: int, outcomes: Any) -> list[int]:
    """The prompts as they are chosen; rollouts end in the order of their start, `outcomes(prompt, j)` tells how."""
    stream, chosen = allocator.stream(state, budget, in_flight), []
    for k in range(budget):
        if k >= in_flight:
            ended = chosen[k - in_flight]
            stream.record(ended, outcomes(ended, chosen[: k - in_flight].count(ended)))
        chosen.append(stream.next_prompt())
    return chosen


def test_reinforce_ada_by_hand():
    """Prompt 0 always succeeds, 1 never, 2 every other time, beginning with a failure."""

    def outcomes(i: int, j: int) -> bool:
        return (True, False, j % 2 == 1)[i]

    state = AllocationState(np.zeros(3), np.zeros(3), min_rollouts=1, max_rollouts=8)
    pos = make_allocator("reinforce_ada", mode="pos")
    assert streamed(pos, state, 8, 1, outcomes) == [0, 1, 2, 1, 2, 1, 1, 1]
    assert streamed(pos, state, 8, 3, outcomes) == [0, 1, 2, 1, 2, 1, 2, 1]  # 2's success is known two later
    both = make_allocator("reinforce_ada", k=1)
    assert streamed(both, state, 9, 1, outcomes) == [0, 1, 2, 0, 1, 2, 0, 1, 0]
    full = AllocationState(np.zeros(3), np.zeros(3), max_rollouts=3)
    assert streamed(pos, full, 8, 1, outcomes) == [0, 1, 2, 1, 2, 1, 0, 0]  # 1 has no more room
    some = AllocationState(np.array([1.0, 0.0]), np.zeros(2), rollouts=np.array([1, 2]), max_rollouts=4)
    assert streamed(pos, some, 2, 1, lambda i, j: None) == [1, 1]  # rollouts without a reward bring nothing


@pytest.mark.parametrize("options", [{"mode": "pos"}, {"mode": "balance"}])
@given(questions())
@settings(max_examples=25, deadline=None)
def test_reinforce_ada_with_all_in_flight_is_one_round(options, question):
    question["in_flight"] = question["budget"]
    allocator = make_allocator("reinforce_ada", **options)
    stream = start(allocator, question)
    counts = np.bincount([stream.next_prompt() for _ in range(question["budget"])], minlength=question["n"])
    n = np.zeros(question["n"])
    state = AllocationState(n, n, min_rollouts=question["least"], max_rollouts=question["most"])
    assert counts.tolist() == allocator.allocate(state, question["budget"], 1).tolist()


@given(questions())
@settings(max_examples=40, deadline=None)
def test_thompson_with_all_in_flight_is_neymans_allocation_of_its_draws(question):
    """No rollout could be moved to another prompt with a smaller sum of p (1 - p) / n for it."""
    question["in_flight"], question["least"] = question["budget"], max(1, question["least"])
    question["budget"] = max(question["budget"], question["n"] * question["least"])
    stream = start(make_allocator("thompson", seed=question["seed"]), question)
    variance = np.array([stream._variance(i) for i in range(question["n"])])
    counts = np.bincount([stream.next_prompt() for _ in range(question["budget"])], minlength=question["n"])
    more = variance / (counts * (counts + 1))  # what one more lessens the sum by
    less = variance / np.maximum(counts * (counts - 1), 1)  # what one less adds to it
    gains = more[counts < question["most"]]
    losses = less[counts > question["least"]]
    if gains.size and losses.size:
        assert gains.max() <= losses.min() * (1 + 1e-12)


def test_thompson_follows_the_outcomes():
    """Of prompts that are believed alike, those at even odds get more than those that always end alike."""
    counts = np.zeros(4)
    for seed in range(40):
        state = AllocationState(np.zeros(4), np.zeros(4), prompt_ids=[f"{seed} {i}" for i in range(4)], min_rollouts=2)
        allocator = make_allocator("thompson", seed=seed)
        chosen = streamed(allocator, state, 48, 4, lambda i, j: (True, False, j % 2 == 0, j % 2 == 1)[i])
        counts += np.bincount(chosen, minlength=4)
    assert counts[2:].min() > 1.5 * counts[:2].max()
    assert (
        len({tuple(streamed(make_allocator("thompson", seed=k), state, 48, 4, lambda i, j: True)) for k in (0, 1)})
        == 2
    )


def test_a_prompts_low_draw_does_not_bar_it_from_the_batch():
    """All draw again once as many have started as there are prompts or are in flight."""
    stream = make_allocator("thompson").stream(AllocationState(np.zeros(4), np.zeros(4)), 24, 6)
    seen = []
    for _ in range(24):
        stream.next_prompt()
        seen.append(tuple(stream._variance(i) for i in range(4)))
    assert [len(set(seen[k : k + 6])) for k in (0, 6, 12, 18)] == [1] * 4
    assert len(set(seen)) == 4


@pytest.mark.parametrize("name", streaming_allocators())
def test_a_stream_can_be_sent_to_another_process(name):
    """As the trainer does with several processes where the allocator remembers earlier batches."""
    state = AllocationState(np.zeros(3), np.zeros(3), min_rollouts=1, max_rollouts=6)
    stream = make_allocator(name).stream(state, 12, 2)
    other = pickle.loads(pickle.dumps(stream))
    for place in range(12):
        prompt = stream.next_prompt()
        assert other.next_prompt() == prompt
        for one in (stream, other):
            one.record(prompt, place % 3 == 0)


# The rule of `adaroll`, in plain numpy


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


# Memory


@pytest.mark.parametrize(("priors", "most"), [(1, 256), (300, 32), (300, 256)])
def test_tables_are_bounded(priors, most):
    zeros, alpha = np.zeros(priors), 1 + np.arange(priors) / 8
    planner = StreamPlanner(zeros, zeros, priors, 1, "mixed", alpha, max_rollouts=most)
    one = 8 * priors * (most + 1) * (most + 2) // 2  # of all priors at one price
    assert planner.stream.tables.nbytes <= max(64 * 2**20, 4 * one)


def test_few_tables_decide_as_many_do(monkeypatch):
    question = {"n": 6, "least": 1, "most": 9, "budget": 40, "in_flight": 5, "outcomes": (True, False), "seed": 1}
    question |= {"alpha": np.arange(1.0, 7.0), "beta": np.full(6, 2.0)}
    many = start(make_allocator("adaroll"), question)
    monkeypatch.setattr("adaroll_trl.solver.streaming._TABLE_BYTES", 0)
    few = start(make_allocator("adaroll"), question)
    assert few._planner.stream.tables.nbytes < many._planner.stream.tables.nbytes
    assert run_stream(few, question) == run_stream(many, question)


def test_tables_beyond_the_memory_are_refused_by_their_sizes(monkeypatch):
    monkeypatch.setattr("adaroll_trl.solver.streaming.available_bytes", lambda: 10**8)
    zeros, alpha = np.zeros(300), 1 + np.arange(300) / 8
    sizes = "300 different priors with groups of up to 256 rollouts needs 318 MB of tables, where 100 MB are free"
    with pytest.raises(ValueError, match=sizes):
        StreamPlanner(zeros, zeros, 600, 1, "mixed", alpha, max_rollouts=256)
    StreamPlanner(zeros, zeros, 600, 1, "mixed", alpha, max_rollouts=64)


# Refusals


@pytest.mark.parametrize("name", ["reinforce_ada", "thompson"])
def test_a_budget_that_cannot_be_spent_is_named(name):
    state = AllocationState(np.zeros(2), np.zeros(2), min_rollouts=2, max_rollouts=4)
    for budget in (3, 9):
        with pytest.raises(
            ValueError, match=f"budget={budget} cannot be spent: .* need 4 rollouts and have room for 8"
        ):
            make_allocator(name).stream(state, budget, 1)


def test_misuse_is_told():
    planner = StreamPlanner([0, 0], [0, 0], budget=2, in_flight=1)
    with pytest.raises(ValueError, match="prompt=1 has no rollout in flight"):
        planner.record(1, True)
    first, second = planner.next_prompt(), planner.next_prompt()
    for success in (float("nan"), 2, 1.0, "x", np.array([True, False])):  # a reward is no success
        with pytest.raises(ValueError, match=r"success=.* must be True or False, or None"):
            planner.record(first, success)
    for prompt in (0.0, "x", None):
        with pytest.raises(ValueError, match=r"prompt=.* must be the whole number"):
            planner.record(prompt, True)
    planner.record(np.int64(first), np.bool_(True))  # what was refused has changed nothing
    planner.record(second, None)
    with pytest.raises(ValueError, match="more often than the budget"):
        planner.next_prompt()
    with pytest.raises(ValueError, match="budget=3 is not enough: 2 prompts with min_rollouts=2"):
        StreamPlanner([0, 0], [0, 0], budget=3, in_flight=1, min_rollouts=2)
    with pytest.raises(ValueError, match="in_flight=0 must be"):
        StreamPlanner([0], [0], budget=3, in_flight=0)
