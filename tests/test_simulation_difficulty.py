"""Difficulty: exact moments, text and files that become distributions, and errors that point at the place."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from adaroll_trl.beliefs import Beliefs
from adaroll_trl.simulation import (
    DifficultyError,
    PassCounts,
    beta,
    difficulty_bound,
    histogram,
    mixture,
    parse_difficulty,
    point,
    rates,
    read_difficulty,
    read_pass_counts,
)
from adaroll_trl.simulation.pass_counts import shipped_histograms
from adaroll_trl.solver import lagrangian_bound
from adaroll_trl.utilities import make_utility

MIXED = "0.3*beta(1,9)+0.5*beta(5,2)+0.2*point(0)"


def test_moments_of_a_mixture():
    known = parse_difficulty(MIXED)
    means, seconds = np.array([0.1, 5 / 7, 0.0]), np.array([2 / 110, 30 / 56, 0.0])
    weights = np.array([0.3, 0.5, 0.2])
    assert known.mean == pytest.approx(weights @ means)
    assert known.variance == pytest.approx(weights @ seconds - (weights @ means) ** 2)
    rates_drawn = known.sample(np.random.default_rng(0), (4000, 5))
    assert rates_drawn.mean() == pytest.approx(known.mean, abs=4 * math.sqrt(known.variance / 20_000))
    assert (rates_drawn == 0).mean() == pytest.approx(0.2, abs=0.02)


def test_success_chances_are_beta_binomial_and_binomial():
    np.testing.assert_allclose(beta(0.4, 1.7).success_chances(9), stats.betabinom.pmf(np.arange(10), 9, 0.4, 1.7))
    np.testing.assert_allclose(point(0.3).success_chances(9), stats.binom.pmf(np.arange(10), 9, 0.3), atol=1e-15)


def test_signal_and_utility_against_integrals():
    known = histogram([1, 0, 3], [0.1, 0.3, 0.4, 1.0])
    low = integrate.quad(lambda p: 1 - p**8 - (1 - p) ** 8, 0.1, 0.3)[0] / 0.2
    high = integrate.quad(lambda p: 1 - p**8 - (1 - p) ** 8, 0.4, 1.0)[0] / 0.6
    assert known.signal(8) == pytest.approx(0.25 * low + 0.75 * high, abs=1e-12)
    assert known.expected(make_utility("mixed"), 8) == pytest.approx(known.signal(8), abs=1e-12)
    # E[s f / n] = (n - 1) E[p (1 - p)]
    spread = known.mean - known.variance - known.mean**2
    assert known.expected(make_utility("mass"), 8) == pytest.approx(7 * spread, abs=1e-12)
    assert known.signal(1) == known.signal(0) == 0.0


def test_next_success_is_bayes_rule():
    known = mixture([(0.5, point(0.2)), (0.5, point(0.8))])
    after_two_of_three = known.success_next(4)[3, 2]
    a, b = 0.2**2 * 0.8, 0.8**2 * 0.2
    assert after_two_of_three == pytest.approx((a * 0.2 + b * 0.8) / (a + b))
    assert known.success_next(1, successes_before=2, before=3)[0, 0] == pytest.approx(after_two_of_three)


@pytest.mark.parametrize(("a", "b"), [(0.05, 0.1), (1e-3, 1e-3), (1.5, 9.0), (200.0, 3.0), (5000.0, 5000.0)])
def test_bin_masses_are_the_distribution_function(a, b):
    edges = np.linspace(0, 1, 11)
    np.testing.assert_allclose(beta(a, b).bin_masses(edges), np.diff(stats.beta.cdf(edges, a, b)), atol=1e-7)
    inner = [0.2, 0.5, 0.7]
    np.testing.assert_allclose(beta(a, b).bin_masses(inner), np.diff(stats.beta.cdf(inner, a, b)), atol=1e-7)


def test_bin_masses_of_extreme_parameters():
    """Such as a fit to a data set of which hardly anything is solved."""
    np.testing.assert_allclose(beta(0.02, 5000.0).bin_masses([0.0, 0.5, 1.0]), [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(beta(5000.0, 0.02).bin_masses([0.0, 0.5, 1.0]), [0.0, 1.0], atol=1e-12)


def test_entropy():
    assert beta(1, 1).entropy(10) == pytest.approx(math.log(10))
    assert point(1.0).entropy(10) == 0.0
    assert rates([0.05, 0.95]).entropy(10) == pytest.approx(math.log(2))
    assert histogram([1] * 5).entropy(10) == pytest.approx(math.log(10))


def test_fitted_prior_is_what_the_trainer_finds():
    """Beliefs that have seen many prompts of this difficulty, as `prior_source="empirical_bayes"` keeps them."""
    known = parse_difficulty(MIXED)
    beliefs, rng = Beliefs(prior_source="empirical_bayes"), np.random.default_rng(0)
    for batch in range(60):
        wins = rng.binomial(8, known.sample(rng, (64,)))
        beliefs.update([f"{batch}-{prompt}" for prompt in range(64)], wins, 8 - wins)
    step = 2 ** (1 / 8)  # of the grid
    assert np.array(known.fitted_prior()) == pytest.approx(np.array(beliefs.fit()), rel=step**2 - 1)
    a, b = known.fitted_prior()
    assert known.mean / 1.3 < a / (a + b) < known.mean * 1.3
    assert a + b < 1  # wide: hopeless prompts beside easy ones
    assert beta(0.5, 2.0).fitted_prior() == pytest.approx((0.5, 2.0), rel=step - 1)
    assert all(np.isfinite(point(rate).fitted_prior()).all() for rate in (0.0, 0.5, 1.0))


def test_equal_groups_inverts_the_expected_utility():
    known, progress = parse_difficulty(MIXED), make_utility("progress", kappa=0.5)
    for size in (1, 5, 16):
        value = known.expected(progress, size)
        assert known.equal_groups(progress, value, 16) == pytest.approx(size if size > 1 else math.nan, nan_ok=True)
    between = 0.25 * known.expected(progress, 5) + 0.75 * known.expected(progress, 6)
    assert known.equal_groups(progress, between, 16) == pytest.approx(5.75)
    assert math.isnan(known.equal_groups(progress, known.expected(progress, 17), 16))
    assert math.isnan(point(0).equal_groups(progress, 0.0, 16))


@pytest.mark.parametrize(("utility", "minimum", "maximum"), [("mixed", 2, 32), ("mass", 0, 12), ("std", 1, None)])
def test_bound_is_the_solvers_for_a_beta(utility, minimum, maximum):
    ours = difficulty_bound(beta(0.6, 1.4), 6, 48, utility, minimum, maximum)
    assert ours == pytest.approx(lagrangian_bound(6, 48, utility, (0.6, 1.4), minimum, maximum), rel=1e-9)


def test_bound_with_earlier_outcomes_is_that_of_the_posteriors():
    """One earlier outcome of Beta(1, 1): half of the prompts are Beta(2, 1), half Beta(1, 2)."""
    ours = difficulty_bound(beta(1, 1), 8, 64, "mixed", 0, 16, carried=1)
    posteriors = np.array([[2.0, 1.0], [1.0, 2.0]] * 4)
    assert ours == pytest.approx(lagrangian_bound(8, 64, "mixed", posteriors, 0, 16), rel=1e-9)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("bta(1,2)", 0, "Did you mean beta(a,b)"),
        ("beta(1)", 0, "beta takes 2 numbers, not 1"),
        ("beta(1;2)", 6, "expected ','"),
        ("beta(1,-2)", 0, "b=-2.0"),
        ("0.5*point(0)-0.5*point(1)", 12, "expected '+'"),
        ("0.5*point(2)+0.5*beta(1,1)", 4, "between 0 and 1"),
        ("beta(1,9)+beta(2,2)", 0, "needs its share"),
        ("0.3*beta(1,9)+0.6*beta(5,2)", 0, "Did you mean 0.3333*beta(1,9)+0.6667*beta(5,2)?"),
        ("beta(1,", 7, "a number belongs here"),
        ("dem", 0, "Did you mean demo?"),
        ("0.5", 3, "expected '*'"),
        ("", 0, "a difficulty is one of"),
        ("beta(1,1) beta(2,2)", 10, "expected '+'"),
    ],
)
def test_bad_text_is_pointed_at(text, place, message):
    with pytest.raises(DifficultyError) as caught:
        parse_difficulty(text)
    first, *_, shown, caret = str(caught.value).split("\n")
    assert message in str(caught.value), first
    assert shown == f"  {text}"
    assert caret == "  " + " " * place + "^"


def test_text_forms():
    assert parse_difficulty(" 0.25 * point(0) + 0.75*beta(5, 2) ") == mixture([(0.25, point(0)), (0.75, beta(5, 2))])
    assert parse_difficulty("rates(0.1,0.5)") == rates([0.1, 0.5])
    assert parse_difficulty("beta(1e0,+2)") == beta(1, 2)
    assert {"demo", "smollm2-gsm8k", "qwen2.5-1.5b-gsm8k"} <= set(shipped_histograms())
    for name in shipped_histograms():
        assert parse_difficulty(name).label.startswith(name)
    published = parse_difficulty("qwen2.5-1.5b-gsm8k", "beta")  # ranges of rates, taken as they are
    assert published == parse_difficulty("qwen2.5-1.5b-gsm8k")
    assert published.mean == pytest.approx(0.677, abs=0.02)  # what its source says of all samples
    with pytest.raises(ValueError, match="fit='best'"):
        parse_difficulty("demo", "best")


# Files


def test_beta_fit_finds_the_beta_and_is_a_maximum():
    rng = np.random.default_rng(1)
    p = rng.beta(0.5, 1.5, 4000)
    counts = PassCounts(rng.binomial(8, p), np.full(p.size, 8))
    a, b = counts.fit_beta()
    assert (a, b) == (pytest.approx(0.5, abs=0.05), pytest.approx(1.5, abs=0.15))
    best = counts.log_likelihood(beta(a, b))
    for da, db in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert counts.log_likelihood(beta(a * da, b * db)) < best
    assert counts.log_likelihood(counts.difficulty("mixture")) > best - 0.5


def test_raw_rates_of_few_rollouts_are_too_wide():
    counts = PassCounts(np.random.default_rng(2).binomial(4, 0.5, 2000), np.full(2000, 4))
    spread = {fit: counts.difficulty(fit).variance for fit in ("beta", "mixture", "raw")}
    assert spread["raw"] == pytest.approx(0.25 / 4, rel=0.1)  # the noise of four coins
    assert max(spread["beta"], spread["mixture"]) < 0.01


def test_adaptive_counts_bias_raw_rates_but_not_the_fit():
    """Rollouts until a success, at most 16: the mean of the raw rates is far too high."""
    rng = np.random.default_rng(3)
    tries = np.minimum(rng.geometric(rng.beta(1, 3, 4000)), 17)
    counts = PassCounts((tries <= 16).astype(int), np.minimum(tries, 16))
    assert counts.difficulty("raw").mean > 0.4
    assert counts.difficulty("beta").mean == pytest.approx(0.25, abs=0.02)
    assert counts.difficulty("mixture").mean == pytest.approx(0.25, abs=0.03)


def test_degenerate_counts():
    for right in (0, 4):
        counts = PassCounts(np.full(20, right), np.full(20, 4))
        assert counts.difficulty("beta").mean == pytest.approx(right / 4, abs=0.02)
        assert counts.difficulty("mixture").mean == pytest.approx(right / 4, abs=0.1)
    with pytest.raises(ValueError, match="at least one prompt"):
        PassCounts(np.array([], dtype=int), np.array([], dtype=int))


def completions(folder, name="completions_00001.parquet", **more):
    import pyarrow
    from pyarrow import parquet

    columns = {
        "step": [1] * 5,
        "prompt": ["a", "a", "b", "b", "b"],
        "completion": ["x"] * 5,
        "accuracy": [1.0, 0.0, 1.0, 1.0, None],
        "advantage": [0.5, -0.5, 0.0, 0.0, 0.0],
        **more,
    }
    folder.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table(columns), folder / name)


def test_completions_of_a_run(tmp_path):
    ours = {
        "group": [0, 0, 1, 1, 1],
        "group_size": [2, 2, 3, 3, 3],
        "round": [1, 1, 1, 2, 2],
        "belief_mean": [0.5] * 5,
    }
    completions(tmp_path / "completions")
    completions(tmp_path / "completions", "completions_00002.parquet", **ours)
    for path in (tmp_path, tmp_path / "completions"):
        counts = read_pass_counts(path)
        assert counts.successes.tolist() == [2, 4]
        assert counts.rollouts.tolist() == [4, 4]  # a completion without a reward tells nothing
    completions(tmp_path / "two", format=[1.0] * 5)
    with pytest.raises(ValueError, match="which reward tells a success: its numeric columns are accuracy, format"):
        read_pass_counts(tmp_path / "two")
    assert read_pass_counts(tmp_path / "two", reward="format").successes.tolist() == [2, 3]


def test_other_files(tmp_path):
    evaluation = {"settings": {}, "metrics": {}, "prompts": [{"num_correct": 1, "num_samples": 4}] * 3}
    (tmp_path / "results.json").write_text(json.dumps(evaluation))
    assert read_pass_counts(tmp_path).rollouts.tolist() == [4, 4, 4]
    (tmp_path / "h.json").write_text(json.dumps({"samples": 2, "prompts": [3, 0, 1]}))
    assert read_pass_counts(tmp_path / "h.json").successes.tolist() == [0, 0, 0, 2]
    (tmp_path / "c.csv").write_text("successes,rollouts\n1,4\n3,4\n")
    assert parse_difficulty(f"file:{tmp_path / 'c.csv'}", "raw").mean == 0.5
    (tmp_path / "r.csv").write_text("pass_rate\n0.25\n0.5\n")
    assert read_difficulty(tmp_path / "r.csv").mean == 0.375
    (tmp_path / "bins.json").write_text(json.dumps({"counts": [1, 1]}))
    assert read_difficulty(tmp_path / "bins.json").entropy(2) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="not of how many rollouts"):
        read_pass_counts(tmp_path / "r.csv")
    (tmp_path / "x.json").write_text("{}")
    for bad in ("missing.json", "x.json"):
        with pytest.raises(ValueError, match=bad):
            read_difficulty(tmp_path / bad)


def test_many_rollouts_of_a_prompt_do_not_underflow():
    found = PassCounts(np.array([0, 3000, 30]), np.array([5000, 5000, 50])).difficulty("mixture")
    assert found.mean == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "successes,rollouts\n1,4\n2.5,8\n", "successes of row 2 is 2.5; it must be a whole number"),
        ("a.csv", "successes,rollouts\n1,\n", "rollouts of row 1 is None"),
        ("a.csv", "successes,rollouts\n1,1e300\n", "rollouts of row 1 is 1e.300; .* from 0 to 10,000,000"),
        ("a.csv", "successes,rollouts\n1,4\n5,4\n", "row 2 has 5 successes of 4 rollouts"),
        ("a.csv", "", "no such table: Empty CSV file. It should be"),
        ("a.csv", "pass_rate\n0.5\n50\n", "pass rate 2 is 50.*divide by 100"),
        ("a.csv", "pass_rate\n0.5\nnan\n", "pass rate 2 is None"),
        ("a.json", '{"samples": 4, "right": [1, 2.5]}', "successes of row 2 is 2.5"),
        ("a.json", '{"samples": 4.5, "right": [1, 2]}', "rollouts of row 1 is 4.5"),
        ("a.json", '{"samples": 1, "prompts": [1.5, 2]}', "prompts of row 1 is 1.5"),
        ("a.json", '["0.5", 0.5]', "pass rate 1 is '0.5'"),
        ("a.json", '{"counts": ["1"]}', "counts of row 1 is '1'"),
        ("a.json", "3", "it should be a completions table"),
        ("a.json", "[0.5", "it is not JSON: .* It should be a completions table"),
        ("a.json", '{"prompts": [{"num_correct": 1}]}', "it should be a completions table"),
    ],
)
def test_bad_files_are_named_with_row_and_value(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name} cannot be used: .*{message}"):
        read_difficulty(tmp_path / name)


def test_rewards_of_a_file_of_completions(tmp_path):
    completions(tmp_path / "two", format=[0.2, 0.4, 0.6, 0.8, 1.0])
    known = parse_difficulty(f"file:{tmp_path / 'two'}", "raw", reward="format", threshold=0.5)
    assert known.mean == pytest.approx(0.5)
    with pytest.raises(ValueError, match="reward='prompt' is none of them: its numeric columns are accuracy, format"):
        read_pass_counts(tmp_path / "two", reward="prompt")
    (tmp_path / "c.csv").write_text("successes,rollouts\n1,4\n")
    with pytest.raises(ValueError, match=r"reward='format' is for a table of completions"):
        read_pass_counts(tmp_path / "c.csv", reward="format")
    with pytest.raises(ValueError, match=r"threshold=0.5 has no effect on difficulty 'demo'"):
        parse_difficulty("demo", threshold=0.5)
    with pytest.raises(ValueError, match="a path follows `file:`"):
        parse_difficulty("file: ")


def test_unknown_distributions_list_the_forms():
    with pytest.raises(DifficultyError, match=r"'gamma' is not known\. .*beta\(0\.5,1\.5\), point\(0\)"):
        parse_difficulty("gamma(1,2)")
