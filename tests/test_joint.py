"""The joint solver: exact values, the right choices, the same bytes everywhere."""

from functools import cache

import numba
import numpy as np
import pytest
import quantecon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaln, gammaln

from adaroll_trl.solver import joint
from adaroll_trl.solver.joint import JointTable, solve_joint
from adaroll_trl.solver.store import TableFileError, TableStore, read_table, write_table
from adaroll_trl.utilities import UTILITY_NAMES, as_utility, make_utility

# Computed once by an independent plain implementation; rows are utility, then one value for each of the sizes.
GOLDEN_SIZES = [(2, 4, (1, 1)), (3, 6, (1, 1)), (3, 9, (0.5, 0.5)), (4, 16, (1, 1)), (4, 32, (1, 1))]
GOLDEN = {
    "mixed": [0.7111111111, 1.1037037037, 1.201171875, 2.738324996, 3.5044824979],
    "variance": [0.1668981481, 0.2625, 0.2835432943, 0.605623849, 0.6972121594],
    "std": [0.3440909125, 0.5378542056, 0.5829167773, 1.2818861849, 1.5366101662],
    "mass": [0.5, 0.8333333333, 1.0611979167, 2.6752956442, 5.9604541497],
    "std_mass": [1.092820323, 1.8755700292, 2.3846178976, 5.955286579, 13.0140230131],
    "balanced": [0.4, 0.6047619048, 0.7156219482, 1.7157015495, 2.960630527],
}
REDUCTIONS = ("auto", "none")


class BruteForce:
    """Memoised recursion over sorted tuples of pairs: slow, and too plain to be wrong."""

    def __init__(self, num_prompts, budget, utility, prior=(1.0, 1.0), low=0, high=None):
        self.num_prompts, self.budget, self.prior = num_prompts, budget, prior
        self.low, self.high = low, budget if high is None else high
        self.table = as_utility(utility).table(budget)
        self.value = cache(self._value)

    def choices(self, state):
        """{prompt: expected value} over the prompts that may be chosen."""
        left = self.budget - sum(map(sum, state)) - 1
        found = {}
        for j, (s, f) in enumerate(state):
            lack = sum(max(0, self.low - (s + f) - (i == j)) for i, (s, f) in enumerate(state))
            if s + f < self.high and lack <= left:
                q = (self.prior[0] + s) / (sum(self.prior) + s + f)
                up, down = (tuple(sorted((*state[:j], new, *state[j + 1 :]))) for new in ((s + 1, f), (s, f + 1)))
                found[j] = q * self.value(up) + (1 - q) * self.value(down)
        return found

    def _value(self, state):
        if sum(map(sum, state)) == self.budget:
            return sum(self.table[pair] for pair in state)
        return max(self.choices(state).values())

    def reachable(self):
        """All states that some admitted policy can come to, as sorted tuples."""
        found, new = set(), {((0, 0),) * self.num_prompts}
        while new:
            found |= new
            new = {
                tuple(sorted((*state[:j], pair, *state[j + 1 :])))
                for state in new
                if sum(map(sum, state)) < self.budget
                for j in self.choices(state)
                for pair in ((state[j][0] + 1, state[j][1]), (state[j][0], state[j][1] + 1))
            }
        return found


@pytest.mark.parametrize("reductions", REDUCTIONS)
@pytest.mark.parametrize("utility", GOLDEN)
def test_golden_values(utility, reductions):
    for (num_prompts, budget, prior), value in zip(GOLDEN_SIZES, GOLDEN[utility], strict=True):
        table = solve_joint(num_prompts, budget, utility, prior, reductions=reductions)
        assert table.value == pytest.approx(value, abs=1e-9)


def test_number_of_states():
    assert solve_joint(4, 16, reductions="none").num_states == 37_172
    assert solve_joint(4, 32, reductions="none").num_states == 3_410_459
    assert solve_joint(4, 32, reductions="auto").num_states < 20_000


BOUNDS = [(0, None), (1, None), (2, 4), (0, 3)]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("prior", [(1.0, 1.0), (0.6, 2.5)])
@pytest.mark.parametrize("utility", UTILITY_NAMES)
def test_brute_force(utility, prior, low, high):
    for num_prompts, budget in [(1, 4), (2, 7), (3, 7), (4, 9)]:
        if not num_prompts * low <= budget <= num_prompts * (budget if high is None else high):
            continue
        expected = BruteForce(num_prompts, budget, utility, prior, low, high)
        for reductions in REDUCTIONS:
            table = solve_joint(num_prompts, budget, utility, prior, low, high, reductions=reductions)
            assert table.value == pytest.approx(expected.value(((0, 0),) * num_prompts), rel=1e-12)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("utility", ["mixed", "std_mass", "balanced", "variance"])
@pytest.mark.parametrize("reductions", REDUCTIONS)
def test_value_and_choice_in_every_state(utility, low, high, reductions):
    brute = BruteForce(3, 8, utility, (1.0, 1.0), low, high)
    table = solve_joint(3, 8, utility, (1.0, 1.0), low, high, reductions=reductions, keep_values=True)
    states = sorted(brute.reachable())
    array = np.array(states)
    values = [brute.value(state) for state in states]
    np.testing.assert_allclose(table.expected_value(array[..., 0], array[..., 1]), values, rtol=1e-12, atol=1e-12)

    open_states = [state for state in states if sum(map(sum, state)) < 8]
    array = np.array(open_states)
    chosen = table.next_prompts(array[..., 0], array[..., 1])
    for state, prompt in zip(open_states, chosen.tolist(), strict=True):
        choices = brute.choices(state)
        best = max(choices.values())
        ties = [j for j, value in choices.items() if value >= best - 1e-9 * abs(best)]
        assert prompt in ties
        if not table.lumps:
            assert prompt == min(ties, key=lambda j: (sum(state[j]), state[j][0], j))


def test_second_oracle_quantecon_backward_induction():
    # Labelled prompts, an explicit transition matrix, nothing shared with the solver but the utility.
    num_prompts, budget, prior = 2, 5, (1.5, 1.0)
    utility = as_utility("std").table(budget)
    states = [(0, 0, 0, 0)]
    for state in states:
        if sum(state) < budget:
            grown = (tuple(x + (i == k) for i, x in enumerate(state)) for k in range(4))
            states += [new for new in grown if new not in states]
    number = {state: i for i, state in enumerate(states)}
    transitions = np.zeros((len(states), num_prompts, len(states)))
    for state, i in number.items():
        for j in range(num_prompts):
            s, f = state[2 * j : 2 * j + 2]
            if sum(state) == budget:
                transitions[i, j, i] = 1.0
                continue
            for k, chance in ((2 * j, prior[0] + s), (2 * j + 1, prior[1] + f)):
                after = tuple(x + (m == k) for m, x in enumerate(state))
                transitions[i, j, number[after]] = chance / (sum(prior) + s + f)
    worth = np.array([utility[a, b] + utility[c, d] for a, b, c, d in states])
    with pytest.warns(UserWarning, match="infinite horizon"):  # an infinite horizon would not converge with beta = 1
        ddp = quantecon.markov.DiscreteDP(np.zeros((len(states), num_prompts)), transitions, 1.0)
    values, _ = quantecon.markov.backward_induction(ddp, budget, worth)
    for reductions in REDUCTIONS:
        table = solve_joint(num_prompts, budget, "std", prior, reductions=reductions)
        assert table.value == pytest.approx(values[0, 0], rel=1e-13)


@pytest.mark.parametrize("reductions", REDUCTIONS)
@pytest.mark.parametrize(("utility", "low", "high"), [("mixed", 0, None), ("mass", 2, 7), ("balanced", 1, None)])
def test_following_the_policy_earns_the_value(utility, low, high, reductions):
    num_prompts, budget, prior = 4, 14, (1.0, 1.4)
    table = solve_joint(num_prompts, budget, utility, prior, low, high, reductions=reductions)
    weights = {((0, 0),) * num_prompts: 1.0}
    for _ in range(budget):
        states = np.array(list(weights))
        after: dict = {}
        chosen = table.next_prompts(states[..., 0], states[..., 1])
        for (state, weight), j in zip(weights.items(), chosen.tolist(), strict=True):
            s, f = state[j]
            q = (prior[0] + s) / (sum(prior) + s + f)
            for pair, chance in (((s + 1, f), q), ((s, f + 1), 1 - q)):
                new = tuple(sorted((*state[:j], pair, *state[j + 1 :])))
                after[new] = after.get(new, 0.0) + weight * chance
        weights = after
    worth = as_utility(utility).table(budget)
    earned = sum(weight * sum(worth[pair] for pair in state) for state, weight in weights.items())
    assert earned == pytest.approx(table.value, rel=1e-9)
    sizes = np.array(list(weights)).sum(axis=-1)
    assert sizes.min() >= low
    assert sizes.max() <= (high or budget)


@pytest.mark.parametrize("reductions", REDUCTIONS)
def test_same_bytes_with_one_thread_and_with_two(monkeypatch, reductions):
    monkeypatch.setattr(joint, "_STATES_A_TASK", 500)
    arrays = []
    for threads in (1, 2):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        table = solve_joint(4, 24, "std", reductions=reductions, keep_values=True)
        arrays.append(table._arrays)
    assert all(arrays[0][name].tobytes() == arrays[1][name].tobytes() for name in arrays[0])
    monkeypatch.setattr(joint, "_STATES_A_TASK", 10**9)
    whole = solve_joint(4, 24, "std", reductions=reductions, keep_values=True)._arrays
    assert whole["values"].tobytes() == arrays[0]["values"].tobytes(), "nor does it matter where a layer is cut"
    assert whole["actions"].tobytes() == arrays[0]["actions"].tobytes()


@pytest.mark.parametrize("reductions", REDUCTIONS)
def test_float32_halves_the_values_and_keeps_six_digits(reductions):
    exact = solve_joint(4, 16, "balanced", reductions=reductions)
    single = solve_joint(4, 16, "balanced", dtype="float32", reductions=reductions, keep_values=True)
    assert single.value == pytest.approx(exact.value, rel=1e-5)
    assert single._arrays["values"].dtype == np.float32


def uniform_value(num_prompts, group, utility, prior):
    """Exact expected utility of `group` rollouts for every prompt: the success count is beta-binomial."""
    k = np.arange(group + 1)
    log_ways = gammaln(group + 1) - gammaln(k + 1) - gammaln(group - k + 1)
    chance = np.exp(log_ways + betaln(k + prior[0], group - k + prior[1]) - betaln(*prior))
    return num_prompts * float(chance @ as_utility(utility)(k, group - k))


priors = st.tuples(st.floats(0.3, 4.0), st.floats(0.3, 4.0)) | st.just((1.0, 1.0))
utilities = st.sampled_from(UTILITY_NAMES)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), utilities, priors)
def test_never_below_uniform(num_prompts, group, utility, prior):
    table = solve_joint(num_prompts, num_prompts * group, utility, prior)
    assert table.value >= uniform_value(num_prompts, group, utility, prior) * (1 - 1e-12)
    forced = solve_joint(num_prompts, num_prompts * group, utility, prior, group, group)
    assert forced.value == pytest.approx(uniform_value(num_prompts, group, utility, prior), rel=1e-10)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 11), st.sampled_from(["mixed", "mass", "std_mass", "balanced"]), priors)
def test_grows_with_the_budget(num_prompts, budget, utility, prior):
    less, more = (solve_joint(num_prompts, b, utility, prior).value for b in (budget, budget + 1))
    assert more >= less - 1e-12


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4), st.integers(0, 12), utilities, priors, st.integers(0, 2), st.none() | st.integers(0, 3)
)  # fmt: skip
def test_reductions_change_nothing(num_prompts, budget, utility, prior, low, spare):
    low = min(low, budget // num_prompts)
    high = None if spare is None else max(low, -(-budget // num_prompts) + spare)
    plain, reduced = (
        solve_joint(num_prompts, budget, utility, prior, low, high, reductions=reductions)
        for reductions in ("none", "auto")
    )
    assert reduced.value == pytest.approx(plain.value, rel=1e-12, abs=1e-13)
    assert reduced.num_states <= plain.num_states or high is not None or low > 0


@cache
def table_with_values(reductions):
    return solve_joint(4, 16, "mixed", (1.0, 1.2), reductions=reductions, keep_values=True)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=4, max_size=4),
    st.permutations(range(4)),
    st.sampled_from(REDUCTIONS),
)
def test_any_order_of_the_prompts(pairs, order, reductions):
    table = table_with_values(reductions)
    s, f = np.array(pairs).T
    order = np.array(order)
    chosen, permuted = table.next_prompt(s, f), int(order[table.next_prompt(s[order], f[order])])
    assert (s[permuted], f[permuted]) == (s[chosen], f[chosen])
    same_state = [i for i in range(4) if pairs[i] == pairs[chosen]]
    assert chosen == same_state[0], "among prompts in one state the lowest number"
    assert table.expected_value(s, f) == table.expected_value(s[order], f[order])


def test_a_custom_utility_with_settled_values_of_several_heights():
    def heights(s, f):
        return np.minimum(s, 2.0) + 0.5 * (f >= 1)

    for low, high in BOUNDS:
        expected = BruteForce(3, 8, heights, (1.0, 2.0), low, high).value(((0, 0),) * 3)
        for reductions in REDUCTIONS:
            table = solve_joint(3, 8, heights, (1.0, 2.0), low, high, reductions=reductions)
            assert table.value == pytest.approx(expected, rel=1e-12)


def test_a_negative_and_a_constant_utility():
    def loss(s, f):
        return -((s - f) ** 2)

    for reductions in REDUCTIONS:
        expected = BruteForce(3, 6, loss).value(((0, 0),) * 3)
        assert solve_joint(3, 6, loss, reductions=reductions).value == pytest.approx(expected, rel=1e-12)
        assert solve_joint(3, 6, lambda s, f: 0.0 * s, reductions=reductions).value == 0.0


@pytest.mark.parametrize("reductions", REDUCTIONS)
def test_saved_and_loaded(tmp_path, reductions):
    table = solve_joint(3, 9, "balanced", (0.5, 1.0), 1, 6, reductions=reductions, keep_values=True)
    table.save(tmp_path / "a.table")
    loaded = JointTable.load(tmp_path / "a.table")
    assert repr(loaded) == repr(table)
    assert loaded.spec == table.spec
    s, f = np.array([1, 0, 2]), np.array([0, 1, 0])
    assert loaded.next_prompt(s, f) == table.next_prompt(s, f)
    assert loaded.expected_value(s, f) == table.expected_value(s, f)


def test_a_bad_file_is_a_clear_error(tmp_path):
    path = tmp_path / "a.table"
    solve_joint(2, 4).save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TableFileError, match="truncated"):
        JointTable.load(path)
    path.write_text("something else")
    with pytest.raises(TableFileError, match="not a table file"):
        JointTable.load(path)
    with pytest.raises(FileNotFoundError):
        JointTable.load(tmp_path / "missing.table")


def test_a_store_keeps_named_utilities_only(tmp_path):
    store = TableStore(tmp_path)
    first = solve_joint(3, 9, "progress", store=store)
    assert len(list(tmp_path.iterdir())) == 1
    second = solve_joint(3, 9, "progress", store=store)
    assert isinstance(second._arrays["actions"].base, np.ndarray)
    assert second.value == first.value
    solve_joint(3, 9, make_utility("progress", kappa=2.0000001), store=store)
    assert len(list(tmp_path.iterdir())) == 2, "parameters that print alike are told apart"
    solve_joint(3, 9, lambda s, f: s * f, store=store)
    assert len(list(tmp_path.iterdir())) == 2
    solve_joint(3, 9, as_utility(lambda s, f: s * f, name="product"), store=store)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_prompts": 0}, "num_prompts=0"),
        ({"num_prompts": 128}, "num_prompts=128"),
        ({"num_prompts": 2.5}, "num_prompts=2.5"),
        ({"budget": -1}, "budget=-1"),
        ({"prior": (1.0, 0.0)}, "prior="),
        ({"prior": 1.0}, "prior=1.0"),
        ({"prior": (1.0, float("inf"))}, "prior="),
        ({"min_rollouts": -1}, "min_rollouts=-1"),
        ({"min_rollouts": 3}, "budget=8 is too small: min_rollouts=3"),
        ({"max_rollouts": 1}, "budget=8 cannot be spent: max_rollouts=1"),
        ({"min_rollouts": 2, "max_rollouts": 1}, "min_rollouts=2 and max_rollouts=1"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"reductions": "some"}, "reductions='some'"),
        ({"utility": "nope"}, "utility='nope'"),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        solve_joint(**{"num_prompts": 4, "budget": 8, **arguments})


def test_bad_states_are_named():
    table = solve_joint(3, 6, min_rollouts=1, max_rollouts=3)
    for state, named in [
        (([0, 0], [0, 0]), "successes"),
        (([0, 0, 0], [0, 0, -1]), "failures"),
        (([0.5, 0, 0], [0, 0, 0]), "successes"),
        (([2, 2, 2], [1, 1, 1]), "budget=6"),
        (([2, 2, 0], [1, 1, 0]), "min_rollouts=1"),
        (([3, 0, 0], [1, 0, 0]), "max_rollouts=3"),
        (([2, 1, 1], [1, 1, 0]), "nothing left"),
    ]:
        with pytest.raises(ValueError, match=named):
            table.next_prompt(*state)
    with pytest.raises(ValueError, match="keep_values=True"):
        table.expected_value([0, 0, 0], [0, 0, 0])


def test_a_size_that_cannot_fit_is_refused_with_what_would():
    with pytest.raises(
        MemoryError, match=r"has 9\d\d,\d\d\d,\d\d\d,\d\d\d states and needs .*a budget of \d+ for 8"
    ) as error:
        solve_joint(8, 64, "mass", (1.0, 2.0))
    assert "blocks of" in str(error.value)


def test_what_the_refusal_says_would_fit_does_fit(monkeypatch):
    monkeypatch.setattr(joint, "available_bytes", lambda: 2_000_000)
    with pytest.raises(MemoryError) as error:
        solve_joint(4, 32, "mixed", reductions="none")
    words = str(error.value).split()
    budget = int(words[words.index("for") - 1])
    assert 16 <= budget < 32
    assert solve_joint(4, budget, "mixed", reductions="none").num_states < 2_000_000
    with pytest.raises(MemoryError):
        solve_joint(4, budget + 1, "mixed", reductions="none")


def test_a_progress_bar_appears_for_slow_builds_only(monkeypatch, capsys):
    solve_joint(3, 6, progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("adaroll_trl.solver.progress.SHOW_AFTER_SECONDS", -1.0)
    solve_joint(3, 6, progress=False)
    assert capsys.readouterr().err == ""
    solve_joint(3, 6, progress=True)
    assert "joint table" in capsys.readouterr().err


def test_no_rollouts_and_one_prompt():
    assert solve_joint(3, 0).value == 0.0
    assert solve_joint(1, 6, "mixed").value == pytest.approx(uniform_value(1, 6, "mixed", (1.0, 1.0)))
    assert solve_joint(1, 6).next_prompt([2], [1]) == 0


def test_a_joint_table_whose_arrays_do_not_belong_together_is_refused(tmp_path):
    table = solve_joint(2, 4)
    table.save(tmp_path / "sound")
    assert JointTable.load(tmp_path / "sound").value == table.value
    key, arrays = read_table(tmp_path / "sound")
    changes = [
        ({"num_prompts": 10**9}, {}),
        ({"budget": 10**9}, {}),
        ({"num_prompts": "2"}, {}),
        ({"prior": [1.0, -1.0]}, {}),
        ({"dtype": "object"}, {}),
        ({}, {"actions": np.full(len(arrays["actions"]), 100, dtype=np.int8)}),
        ({}, {"actions": arrays["actions"][:-1]}),
        ({}, {"width": np.full(5, 10**15)}),
        ({}, {"width": np.full(5, -1)}),
        ({}, {"class_of": np.full((5, 5), 99, dtype=np.int16)}),
        ({}, {"found": np.array([-5, 0, 0])}),
        ({}, {"value": np.array([np.nan])}),
        ({}, {"utility": np.zeros((2, 2))}),
    ]
    for key_change, array_change in changes:
        write_table(tmp_path / "forged", {**key, **key_change}, {**arrays, **array_change})
        with pytest.raises(TableFileError, match="does not hold a joint table"):
            JointTable.load(tmp_path / "forged")
