"""Comparisons, plans and their commands: exact numbers where there are any, errors that say what to expect."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from adaroll_trl.allocators import Allocator, streaming_allocators
from adaroll_trl.allocators.adaroll import AdaRollAllocator
from adaroll_trl.cli import build_parser
from adaroll_trl.cli import main as adaroll
from adaroll_trl.simulation import (
    Measured,
    PassCounts,
    Setting,
    beta,
    compare,
    parse_difficulty,
    plan,
    point,
    rates,
    simulate,
)
from adaroll_trl.simulation.compare import BOUND, SEQUENTIAL
from adaroll_trl.simulation.entropy import measured_gain, simulated_gain
from adaroll_trl.simulation.streaming import LENGTHS, DrawnBatches, stream_batches
from adaroll_trl.utilities import make_utility

ROOT = Path(__file__).parent.parent
SMALL = {"num_prompts": 8, "num_generations": 4, "max_rollouts": 8}


class Everything(Allocator):
    """A user's own: equal groups, and it remembers whom it was asked about."""

    name = "everything"

    def __init__(self):
        self.asked = []

    def allocate(self, state, rollouts_left, rounds_left):
        self.asked.append((tuple(state.prompt_ids), state.prior_alpha.copy(), state.prior_beta.copy()))
        return np.full(state.num_prompts, rollouts_left // state.num_prompts)


class Streamed(AdaRollAllocator):
    """Not the class that the simulator plays in compiled code."""


def test_rows_against_exact_numbers():
    known = parse_difficulty("0.5*beta(1,3)+0.5*point(0.5)")
    uniform, own, *_, sequential, bound = compare(Setting(known, **SMALL), ["uniform", Everything(), "adaroll"], 60)
    exact = 0.5 * beta(1, 3).signal(4) + 0.5 * (1 - 2 * 0.5**4)
    assert uniform.signal == (pytest.approx(exact), 0.0)
    assert own.signal.value == pytest.approx(exact, abs=1e-12)  # its own control variate
    assert own.gain == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.0, abs=1e-12))
    assert (sequential.allocator, bound.allocator) == (SEQUENTIAL, BOUND)
    assert sequential.sequential_share.value == 1.0
    assert bound.utility.value > sequential.utility.value - 3 * sequential.utility.error


def test_paired_errors_are_those_of_repetition():
    """The spread of the gain over repeated simulations is what its standard error says."""
    found = [simulate("adaroll", 8, 32, 2, num_batches=200, seed=seed, difficulty="beta(1,3)") for seed in range(60)]
    gains = np.array([result.gain.value for result in found])
    signals = np.array([result.signal.value for result in found])
    assert gains.std(ddof=1) == pytest.approx(np.mean([result.gain.error for result in found]), rel=0.3)
    assert signals.std(ddof=1) == pytest.approx(np.mean([result.signal.error for result in found]), rel=0.3)
    unpaired = np.mean([result.utilities.std() for result in found]) / math.sqrt(200)
    assert gains.std(ddof=1) < unpaired


def test_a_wrong_prior_costs_and_is_still_paired():
    options = {"num_batches": 400, "max_rollouts": 16}
    right = simulate("adaroll", 16, 128, 3, prior=(0.3, 2.7), **options)
    wrong = simulate("adaroll", 16, 128, 3, prior=(20.0, 20.0), difficulty=beta(0.3, 2.7), **options)
    np.testing.assert_array_equal(right.success_probs, wrong.success_probs)
    np.testing.assert_array_equal(right.uniform_utilities, wrong.uniform_utilities)
    assert right.mean > wrong.mean + 2 * (right.standard_error + wrong.standard_error)


def test_allocators_hear_of_prompts_and_beliefs():
    own = Everything()
    result = simulate(own, 4, 16, 1, num_batches=3, difficulty=rates([0.0, 1.0]), carried=4, carried_decay=0.5)
    names = [name for ids, _, _ in own.asked for name in ids]
    assert len(set(names)) == 12
    alpha, beliefs = own.asked[0][1], own.asked[0][1] + own.asked[0][2]
    np.testing.assert_array_equal(beliefs, 4.0)  # 2 of the prior, 4 outcomes at a half
    np.testing.assert_array_equal(alpha, 1 + 2 * result.success_probs[0])


def test_stateful_allocators_live_over_batches():
    from adaroll_trl.allocators import make_allocator

    cero = make_allocator("cero")
    simulate(cero, 4, 16, 1, num_batches=5, carried=4)
    assert cero.state_dict()["steps"] == 5


def test_plan_of_uniform_is_exact_and_its_match_is_consistent():
    difficulty = parse_difficulty("0.25*point(0)+0.75*beta(1,3)")
    expected = plan(difficulty, 16, (6,), (3,), num_batches=400)
    (row,) = expected.rows
    signal, match = row.signal, row.signal.match
    assert row.utility is signal  # of `mixed`
    exact = 0.75 * (1 - 3 / 9 - math.gamma(4) * math.gamma(7) / (math.gamma(10) / math.gamma(1)))
    assert signal.uniform == pytest.approx(exact, abs=1e-9)
    assert signal.uniform < signal.adaptive.value < signal.bound + 3 * signal.adaptive.error
    below = difficulty.signal(math.floor(signal.equal_groups.value))
    assert below <= signal.adaptive.value <= difficulty.signal(math.ceil(signal.equal_groups.value))
    assert 0 < signal.equal_groups.error < 1
    assert match.num_generations == math.ceil(match.equal_at.value)
    assert match.saving.value == pytest.approx(1 - match.equal_at.value / 6)
    at_match = simulate(
        "adaroll", 16, 16 * match.num_generations, 3, difficulty=difficulty, num_batches=400, min_rollouts=2
    )
    assert at_match.signal.value >= signal.uniform
    spent = sum(mass * one.value for mass, one in zip(expected.bin_masses, row.rollouts, strict=True) if mass > 0.001)
    assert spent == pytest.approx(6, abs=0.1)


def test_plan_where_nothing_can_be_won():
    (row,) = plan(point(0), 8, (4,), (2,), num_batches=20).rows
    assert (row.signal.uniform, row.signal.adaptive.value) == (0.0, 0.0)
    assert math.isnan(row.signal.equal_groups.value)
    assert row.signal.match.num_generations is None
    assert math.isnan(row.signal.match.saving.value)


def test_plan_in_the_utility_with_carried_beliefs():
    """Earlier outcomes are worth something only where they are known, and in one round nothing else is."""
    progress = make_utility("progress", kappa=2.0)
    setting = {"utility": progress, "prior": None, "num_batches": 200, "min_rollouts": 0}
    difficulty = parse_difficulty("smollm2-arithmetic")
    (known,), (unknown,) = (plan(difficulty, 16, (8,), (1,), carried=n, **setting).rows for n in (8, 0))
    assert unknown.utility.adaptive.value == pytest.approx(unknown.utility.uniform)
    assert unknown.utility.equal_groups.value == pytest.approx(8)
    assert unknown.utility.match.num_generations == 8
    assert known.utility.uniform == unknown.utility.uniform
    assert (
        10 < known.utility.equal_groups.value < 14
    )  # 11.4 in docs/results/worth_of_allocation.md, with a minimum of 2
    assert known.signal.gain.value < 0 < known.utility.gain.value  # it gives up prompts that are solved or hopeless
    assert known.utility.adaptive.value < known.utility.bound
    enough = known.utility.match.num_generations
    assert enough == math.ceil(known.utility.match.equal_at.value) < 7
    played = simulate(
        "adaroll",
        16,
        16 * enough,
        1,
        progress,
        prior=difficulty.fitted_prior(),
        num_batches=200,
        difficulty=difficulty,
        carried=8,
    )
    assert played.utility.value / 16 >= known.utility.uniform


def test_shares_of_no_gain_are_not_known():
    for row in compare(Setting(point(0), **SMALL), ["uniform", "adaroll"], 20):
        assert math.isnan(row.sequential_share.value), row.allocator
    uniform, sequential, _ = compare(Setting(beta(1, 1), **SMALL), ["uniform"], 40)
    assert (uniform.sequential_share, sequential.sequential_share) == ((0.0, 0.0), (1.0, 0.0))


def test_gain_vanishes_where_every_group_is_mixed():
    spread, alike = (simulated_gain(Setting(d), 200) for d in (beta(0.5, 0.5), beta(256, 256)))
    assert spread.gain.value > 0.1 > alike.gain.value
    assert spread.entropy > alike.entropy


@pytest.fixture
def two_runs(tmp_path):
    """Folders of a run with equal groups and of an adaptive one, each with an evaluation and a table that repeats."""
    from tests.test_report import write_log, write_table

    batches = {
        "grpo": [[("a", 0, 4), ("b", 2, 4)], [("a", 1, 4), ("c", 4, 4)]],
        "adaroll": [[("a", 1, 6), ("b", 1, 2)], [("a", 1, 5), ("c", 3, 3)]],
    }
    for name, (first, second) in batches.items():
        adaptive = name == "adaroll"
        write_table(tmp_path / name, 1, first, adaptive)
        write_table(tmp_path / name, 2, first, adaptive)  # the batch of step 1 again: it counts once
        write_table(tmp_path / name, 3, second, adaptive)
        write_table(tmp_path / name, 4, [("held out", 1, 2)] * 9, adaptive)
        log = [
            {"step": step, "reward": 0.5, "eval_reward": 0.1 if step < 3 else 0.3 if adaptive else 0.2}
            for step in (1, 2, 3)
        ]
        write_log(tmp_path / name, [*log, {"step": 4, "eval_runtime": 1.0, "eval_reward": log[-1]["eval_reward"]}])
    return tmp_path / "grpo", tmp_path / "adaroll"


def test_gain_of_finished_runs(two_runs, tmp_path):
    from adaroll_trl.report.gain import gain_of_runs

    found = gain_of_runs(*two_runs, fit="raw")
    assert found.label == "adaroll / grpo"
    assert found.gain.value == pytest.approx(0.75 / 0.5 - 1)  # groups with signal: 3 of 4 against 2 of 4
    assert found.entropy == pytest.approx(math.log(3))  # of 1/8, 1/2 and 1
    by_metric = gain_of_runs(*two_runs, metric="eval_reward", label="mine")
    assert (by_metric.label, by_metric.gain.value) == ("mine", pytest.approx(0.5))
    with pytest.raises(ValueError, match="has never logged 'eval_x'; it has eval_reward"):
        gain_of_runs(*two_runs, metric="eval_x")
    with pytest.raises(ValueError, match="nothing is not there"):
        gain_of_runs(two_runs[0], tmp_path / "nothing")
    shutil.rmtree(two_runs[1] / "completions")
    with pytest.raises(ValueError, match=r"adaroll has no completions with rewards.*log_completions=True"):
        gain_of_runs(*two_runs)


def test_gain_over_nothing_is_not_known():
    counts = PassCounts(np.array([0, 2]), np.array([4, 4]))
    assert math.isnan(measured_gain("none", counts, Measured(0.0), Measured(0.1)).gain.value)
    known = measured_gain("some", counts, Measured(0.5, 0.03), Measured(0.4, 0.04))
    assert known.gain == pytest.approx((-0.2, math.hypot(0.04, 0.8 * 0.03) / 0.5))


def script_of(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_stored_pages_are_of_all_stored_runs():
    script = script_of("gain_by_entropy")
    page = (ROOT / "docs" / "results" / "gain_by_entropy.md").read_text()
    points = [point for of_arm in script.stored_learning().values() for point in of_arm]
    assert len(points) == 9
    assert script.table(points, "runs") in page
    assert script.table(script.stored_smollm2(), "runs") in page
    page = (ROOT / "docs" / "results" / "worth_of_allocation.md").read_text()
    for name in script_of("worth_of_allocation").starts(ROOT / "docs" / "results" / "learning"):
        assert f"## {name}\n" in page, f"run scripts/worth_of_allocation.py again: it has other starts than {name}"


def test_the_script_takes_finished_runs(two_runs, tmp_path, monkeypatch, capsys):
    script = script_of("gain_by_entropy")
    monkeypatch.setattr(script, "MEANS", (0.5,))
    monkeypatch.setattr(script, "PRECISIONS", (2.0, 1.0))
    monkeypatch.setattr(script, "shipped_histograms", lambda: ("demo",))
    runs = ["--runs", *map(str, two_runs)]
    other = ["--batches", "4", "--output-dir", str(tmp_path / "page")]
    monkeypatch.setattr(sys, "argv", ["gain_by_entropy.py", *runs, *other])
    script.main()
    page = (tmp_path / "page" / "gain_by_entropy.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith(f"| {two_runs[1]} / {two_runs[0]} |"))
    assert line.split("|")[3].startswith(" +50.0")
    assert (tmp_path / "page" / "gain_by_entropy.png").exists()
    for wrong in (["--metric", "eval_reward"], ["--runs", str(tmp_path), str(two_runs[0])]):
        monkeypatch.setattr(sys, "argv", ["gain_by_entropy.py", *wrong, *other])
        with pytest.raises(SystemExit):
            script.main()
    said = capsys.readouterr().err
    assert "--metric eval_reward has no effect without --runs" in said
    assert "holds no run" in said


# Commands


def test_simulate_command(tmp_path, capsys):
    file, picture = tmp_path / "a.csv", tmp_path / "a.png"
    small = ["--prompts", "8", "--num-generations", "4", "--batches", "20", "--carried", "0", "8", "--rounds", "2"]
    written = ["--csv", str(file), "--plot", str(picture)]
    assert adaroll(["simulate", *small, "--allocators", "uniform", "adaroll", "vip", *written]) == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["allocator"] for row in rows] == ["uniform", "adaroll", "vip", SEQUENTIAL, BOUND] * 2
    assert [row["carried"] for row in rows] == ["0"] * 5 + ["8"] * 5
    assert float(rows[0]["signal"]) == pytest.approx(beta(1, 1).signal(4))
    assert all(float(row["gain_se"]) > 0 for row in rows if row["allocator"] == "adaroll")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "prompts with" in capsys.readouterr().out


def test_plan_command(tmp_path, capsys):
    file, picture = tmp_path / "p.csv", tmp_path / "p.png"
    options = ["--difficulty", "demo", "--fit", "beta", "--prior", "fit", "--num-generations", "4", "--rounds", "2"]
    small = ["--prompts", "8", "--batches", "20", "--carried", "0", "8", "--carried-decay", "0.5"]
    chosen = ["--utility", "progress", "--kappa", "0.5", "--csv", str(file), "--plot", str(picture)]
    assert adaroll(["plan", *options, *small, *chosen]) == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["utility_name"], row["carried"]) for row in rows] == [("progress(kappa=0.5)", n) for n in "08"]
    demo = parse_difficulty("demo", "beta")
    assert float(rows[0]["signal_uniform"]) == pytest.approx(demo.signal(4))
    assert float(rows[1]["utility_uniform"]) == pytest.approx(demo.expected(make_utility("progress", kappa=0.5), 4))
    assert {"signal_adaptive_se", "utility_saving_se", "utility_equal_groups_se", "rollouts_0_0.02_se"} <= set(rows[0])
    assert picture.exists()
    printed = capsys.readouterr().out
    assert "believed beta({:.3g},{:.3g})".format(*demo.fitted_prior()) in printed
    assert (
        "Utility of a prompt, progress(kappa=0.5), 8 earlier outcomes of each prompt known (each counts 0.5)"
        in printed
    )


def signal_from_four(s, f):
    """A user's own utility."""
    return ((s >= 1) & (f >= 1) & (s + f >= 4)).astype(float)


NOT_A_FUNCTION = 3


def test_utilities_of_ones_own_and_several_kappas(tmp_path, capsys):
    file = tmp_path / "a.csv"
    small = ["--prompts", "4", "--batches", "4", "--carried", "0", "--rounds", "1", "--csv", str(file)]
    chosen = ["--utility", "progress", "tests.test_simulation_plan:signal_from_four", "--kappa", "0.5", "4"]
    assert adaroll(["simulate", *small, *chosen, "--num-generations", "3", "--allocators", "uniform"]) == 0
    with file.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["allocator"] == "uniform"]
    assert [row["utility_name"] for row in rows] == ["progress(kappa=0.5)", "progress(kappa=4)", "signal_from_four"]
    expected = [beta(1, 1).expected(make_utility("progress", kappa=kappa), 3) for kappa in (0.5, 4.0)]
    assert [float(row["utility"]) for row in rows] == pytest.approx([*expected, 0.0])
    own = ["--num-generations", "4", "--utility", "tests.test_simulation_plan:signal_from_four"]
    assert adaroll(["plan", *small, *own]) == 0
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert float(row["utility_uniform"]) == pytest.approx(beta(1, 1).signal(4))
    assert "Utility of a prompt, signal_from_four" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["simulate", "--round", "2"], "Did you mean '--rounds'?"),
        (["simulate", "--difficulty", "bta(1,2)"], "Did you mean beta(a,b)"),
        (["simulate", "--allocators", "adarol"], "--allocators adarol is not known"),
        (["simulate", "--utility", "best"], "--utility best is not known. Use one of mixed, "),
        (["plan", "--utility", "no.where:at_all"], "--utility='no.where:at_all' cannot be loaded"),
        (["plan", "--utility", "tests.test_simulation_plan:NOT_A_FUNCTION"], "utility=3 must be one of"),
        (["plan", "--utility", "tests.test_simulation_plan:Everything"], "failed on two float arrays"),
        (["plan", "--kappa", "2"], "--kappa 2 has no effect with --utility mixed: only progress reads it"),
        (
            ["simulate", "--utility", "mass", "std", "--kappa", "1", "2"],
            "--kappa 1 has no effect with --utility mass std",
        ),
        (["plan", "--utility", "progress", "--kappa", "0"], "--kappa 0 must be a positive finite number"),
        (["plan", "--carried-decay", "0.5"], "--carried-decay 0.5 has no effect without --carried above 0"),
        (
            ["plan", "--num-generations", "8", "1"],
            "--num-generations 1 must be a whole number of at least 2: one roll",
        ),
        (["simulate", "--budget", "100"], "--budget 100 must be a multiple of --prompts 32"),
        (["plan", "--prior", "1"], "--prior 1 must be two positive finite numbers"),
        (["plan", "--prior", "0,1"], "two positive finite numbers"),
        (["plan", "--batches", "1"], "--batches 1 must be a whole number of at least 2"),
        (["plan", "--difficulty", "file:nothing.json"], "nothing.json is not there"),
        (["plan", "--reward", "x"], "reward='x' has no effect on difficulty 'beta(1,1)'"),
        (["plan", "--threshold", "nan"], "--threshold nan must be a finite number"),
        (["plan", "--prior", "nan,1"], "--prior nan,1 must be two positive finite numbers"),
        (["plan", "--seed", "-1"], "--seed -1 must be a whole number of at least 0"),
        (["simulate", "--num-generations", "0"], "--num-generations 0 must be a whole number of at least 1"),
        (["plan", "--rounds", "0"], "--rounds 0 must be"),
        (["plan", "--min-rollouts", "-1"], "--min-rollouts -1 must be"),
        (["plan", "--fit", "best"], "--fit invalid choice: 'best'"),
        (["simulate", "--carried", "-1"], "--carried -1 must be"),
        (["simulate", "--carried-decay", "2"], "--carried-decay 2 must be a finite number from 0 to 1"),
        (["simulate", "--seed"], "--seed expected one argument"),
        (["simulate", "--min-rollouts", "9"], "--min-rollouts 9 must be at most the rollouts per prompt"),
        (["simulate", "--max-rollouts", "4"], "--max-rollouts 4 must be at least the rollouts per prompt"),
        (
            ["simulate", "--budget", "64", "--num-generations", "8"],
            "--num-generations not allowed with argument --bud",
        ),
        (["simulate", "--allocators", "vip", "vip"], "--allocators vip is given twice"),
        (["simulate", "--allocators", "no.where:Me"], "--allocators='no.where:Me' cannot be loaded"),
        (["simulate", "--allocators", "cero", "--allocator-kwargs", "{"], "--allocator-kwargs { must be JSON"),
        (["simulate", "--allocators", "cero", "--allocator-kwargs", '{"tau": 0}'], "tau=0 must be a number above 0"),
        (["simulate", "--allocator-kwargs", '{"tau": 1}'], "are the options of one allocator: name it"),
        (["simulate", "--in-flight", "0"], "--in-flight 0 must be a whole number of at least 1"),
        (["simulate", "--in-flight", "4", "--rounds", "2"], "--rounds not allowed with argument --in-flight"),
        (["simulate", "--lengths", "tails"], "--lengths tails has no effect without --in-flight"),
        (["simulate", "--lengths", "long", "--in-flight", "4"], "--lengths invalid choice: 'long'"),
        (["simulate", "--in-flight", "4", "--allocators", "adaroll", "dars"], "allocator='dars' cannot stream"),
        (["simulate", "--csv", "."], "--csv .: is a folder"),
        (["simulate", "--csv", "no/where.csv"], "--csv no/where.csv: there is no folder no"),
        (["simulate", "--plot", "a.xyz"], "--plot a.xyz must end in one of ."),
        (["simulate", "--prompts", "10000000", "--batches", "10000000"], "of memory, where"),
    ],
)
def test_bad_options_end_in_a_sentence(command, message, capsys):
    assert adaroll(command) == 2
    assert message in capsys.readouterr().err


def test_an_allocator_of_ones_own_and_options_of_a_named_one(tmp_path, capsys):
    small = ["simulate", "--prompts", "4", "--num-generations", "4", "--batches", "4", "--rounds", "1"]
    file = tmp_path / "a.csv"
    chosen = ["--allocators", "tests.test_simulation_plan:Everything", "uniform", "--csv", str(file)]
    assert adaroll([*small, *chosen]) == 0
    assert file.read_text().splitlines()[1].startswith("mixed,1,0,everything,4,0.6")
    one = ["--allocators", "uniform", "thompson", "--allocator-kwargs", '{"seed": 3}']
    assert adaroll([*small, *one, "--min-rollouts", "1"]) == 0


def test_simulate_command_plays_streams(tmp_path, capsys):
    """What it says of `adaroll` agrees with the kernel on other draws, and with asking rollout by rollout."""
    file = tmp_path / "a.csv"
    small = ["--prompts", "8", "--num-generations", "8", "--max-rollouts", "16", "--batches", "250", "--carried", "0"]
    own = ["adaroll", "tests.test_simulation_plan:Streamed", "reinforce_ada"]
    assert adaroll(["simulate", *small, "--in-flight", "8", "--allocators", *own, "--csv", str(file)]) == 0
    with file.open(newline="") as lines:
        compiled, asked, other, sequential, _ = csv.DictReader(lines)
    assert (compiled["rounds"], compiled["in_flight"]) == ("", "8")
    batches = DrawnBatches.draw(LENGTHS["even"], 8, 16, 1500, seed=11)
    mixed = make_utility("mixed")
    utilities = stream_batches(batches, mixed, 64, 8, 2).utilities(mixed) / 8
    error = math.hypot(float(compiled["utility_se"]), utilities.std() / math.sqrt(1500))
    assert abs(float(compiled["utility"]) - utilities.mean()) < 4 * error
    assert error < 0.007  # of a gain of 0.10
    assert (compiled["utility"], compiled["gain_se"]) == (asked["utility"], asked["gain_se"])
    assert 0 < float(other["gain"]) < float(compiled["gain"]) < float(sequential["gain"])
    printed = capsys.readouterr().out
    assert "mixed, a stream with 8 in flight, lengths even" in printed


def test_without_names_all_that_stream_are_played(tmp_path):
    file = tmp_path / "a.csv"
    small = ["--prompts", "4", "--num-generations", "4", "--batches", "4", "--carried", "0", "2"]
    assert adaroll(["simulate", *small, "--in-flight", "2", "16", "--lengths", "tails", "--csv", str(file)]) == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["allocator"] for row in rows] == [*streaming_allocators(), SEQUENTIAL, BOUND] * 4
    assert [row["in_flight"] for row in rows[:: len(rows) // 4]] == ["2", "2", "16", "16"]


def test_play_in_parts_gives_the_same(monkeypatch):
    from adaroll_trl.simulation import play

    options = {"num_batches": 30, "carried": 2, "seed": 1}
    streams = [(name, {"in_flight": 3, "lengths": "tails"}) for name in ("thompson", "adaroll")]
    players = [*((name, {}) for name in ("thompson", "cero", "vigor")), *streams]
    whole = [simulate(name, 4, 16, 2, **options, **way) for name, way in players]
    monkeypatch.setattr(play, "_CHUNK_BYTES", 7 * 5 * 4 * 16)  # 7 batches at once
    parts = [simulate(name, 4, 16, 2, **options, **way) for name, way in players]
    for before, after in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(before.successes, after.successes)
        np.testing.assert_array_equal(before.rollouts, after.rollouts)
        np.testing.assert_array_equal(before.uniform_utilities, after.uniform_utilities)


@pytest.mark.parametrize("width", [30, 60, 500])
def test_tables_are_split_not_cut(width):
    from rich.console import Console
    from rich.table import Table

    from adaroll_trl.simulation.tables import print_table

    console = Console(width=width, record=True, file=io.StringIO())
    table = Table(title="Numbers")
    headings = ["G", *(f"heading {number}" for number in range(9))]
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    table.add_row("8", *(f"{number}.25 +- 0.01" for number in range(9)))
    print_table(console, table, {"G"})
    text = console.export_text()
    assert all(f"{number}.25 +- 0.01" in text and f"heading {number}" in text for number in range(9))
    assert text.count("Numbers") == 1
    assert max(map(len, text.splitlines())) <= width
    assert text.count("┃ G") == {30: 9, 60: 3, 500: 1}[width]


def test_help_lists_both_commands(capsys):
    text = build_parser().format_help()
    assert "simulate" in text
    assert "plan" in text
