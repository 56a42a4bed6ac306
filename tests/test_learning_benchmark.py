"""The learning benchmark: stored runs repeat exactly, statistics against scipy."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from adaroll_trl.demo.tiny import build_model, build_tokenizer

FOLDER = Path(__file__).parent.parent / "benchmarks" / "learning"
MODULES = (
    *(
        "stored",
        "regimes",
        "cell",
        "design",
        "planned",
        "summary",
        "differences",
        "explanations",
        "verdict",
        "report",
        "picture",
    ),
    *("run", "kappa"),
)


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules, which have the names that other benchmarks' have."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@pytest.fixture
def options(bench, tmp_path):
    """Two arms in the sparse regime, one seed, two steps, from a model that nobody warmed up."""
    start = tmp_path / "work" / "starts" / "warm-up300-seed0"
    tokenizer = build_tokenizer()
    build_model(tokenizer, 0).save_pretrained(start)
    tokenizer.save_pretrained(start)
    arguments = ["--stages", "base", "--cells", "HR-grpo", "HR-carry-1", "--seeds", "0", "--steps", "2", "--jobs", "1"]
    paths = ["--results", str(tmp_path / "learning"), "--work", str(tmp_path / "work")]
    return bench.run.make_parser().parse_args([*arguments, *paths, "--job", "0"])


def test_a_run_is_stored_once_and_repeats_exactly(bench, options, monkeypatch, capsys):
    monkeypatch.setattr(bench.cell, "MAX_TOKENS", 4)
    assert [bench.run.result_path(Path(), *run).as_posix() for run in bench.run.missing_runs(options)] == [
        "HR-grpo/seed0.json",
        "HR-carry-1-round/seed0.json",
    ]
    assert bench.run.run_share(options) == 0
    assert bench.run.missing_runs(options) == []
    stored = sorted(options.results.glob("*/*.json"))
    first = bench.summary.read_runs(options.results)
    stored[0].unlink()
    assert bench.run.run_share(options) == 0
    again = bench.summary.read_runs(options.results)
    for one, other in zip(first, again, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }
    for run in again:
        columns = np.array(run["groups"]).sum(axis=0)
        assert columns[bench.stored.GROUP_COLUMNS.index("rollouts")] == 2 * 16 * 8  # equal budgets
        assert len(run["right"]["0"]) == len(run["right"]["2"]) == 480
    bench.report.write_report(options.results)
    page = options.results.with_suffix(".md").read_text()
    assert "| `carry-1-round` | 1 |" in page
    assert "(one seed)" in capsys.readouterr().out
    assert options.results.with_suffix(".png").stat().st_size > 1000


def test_runs_of_a_cell_that_has_changed_are_refused(bench, options):
    cell, seed = bench.run.missing_runs(options)[0]
    made = {**vars(cell), "seed": seed, "cpu_seconds": 30.0}
    bench.run.write_json(bench.run.result_path(options.results, cell, seed), made)
    bench.run.check_stored(options)
    assert bench.run.hours(options, [(cell, 1)] * 4) == pytest.approx(4 * 30 / 3600)
    bench.run.write_json(bench.run.result_path(options.results, cell, seed), {**made, "steps": 3})
    with pytest.raises(SystemExit, match="was made with steps=3, and the cell HR-grpo has 2 now"):
        bench.run.check_stored(options)
    with pytest.raises(SystemExit, match="--steps 2 is for a try"):
        bench.run.main(["--steps", "2"])


def test_runs_that_began_from_another_model_are_no_pairs(bench, options, monkeypatch):
    monkeypatch.setattr(bench.cell, "MAX_TOKENS", 4)
    runs = bench.run.missing_runs(options)
    (grpo, seed), (carry, _) = runs
    made = {**vars(grpo), "cell": grpo.name, "seed": seed, "right": {"0": "g" * 480}}
    bench.run.write_json(bench.run.result_path(options.results, grpo, seed), made)
    with pytest.raises(SystemExit, match=r"The start of regime HR, seed 0, in .*starts is not the one"):
        bench.run.make_starts(options.work / "starts", options.results, [("HR", seed)])
    assert bench.run.run_share(options) == 0  # somebody makes it all the same
    with pytest.raises(ValueError, match="HR-grpo and HR-carry-1-round began from two different models for seed 0"):
        bench.report.write_report(options.results)
    bench.run.result_path(options.results, grpo, seed).unlink()
    bench.run.make_starts(options.work / "starts", options.results, [("HR", seed)])
    assert carry.name in {run["cell"] for run in bench.summary.read_runs(options.results)}


def test_a_run_that_fails_is_told_and_the_others_go_on(bench, options, monkeypatch, capsys):
    def run_cell(cell, seed, *_):
        if cell.arm == "grpo":
            raise RuntimeError("no luck")
        return {"cpu_seconds": 0}

    monkeypatch.setattr(bench.run, "run_cell", run_cell)
    assert bench.run.run_share(options) == 1
    assert "HR-grpo, seed 0, failed" in capsys.readouterr().err
    assert [cell.arm for cell, _ in bench.run.missing_runs(options)] == ["grpo"]


def test_every_cell_of_the_design_is_a_valid_config_and_has_a_name_of_its_own(bench, tmp_path):
    from adaroll_trl import AdaRollGRPOConfig

    cells = [cell for stage in bench.design.STAGES.values() for cell in stage]
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        AdaRollGRPOConfig(
            output_dir=str(tmp_path),
            bf16=False,
            use_cpu=True,
            per_device_train_batch_size=cell.prompts * cell.num_generations,
            num_generations=cell.num_generations,
            **cell.options,
        )


def test_arms_of_a_seed_see_the_same_prompts_and_none_that_is_held_out(bench):
    regime = bench.regimes.REGIMES["HR"]
    rows = regime.training(3200, 4)
    assert len(rows) == 240
    assert rows == regime.training(3200, 4)
    assert rows != regime.training(3200, 5)
    assert not {row["prompt"] for row in rows} & {problem.prompt for problem in regime.held_out()}


def fake_run(right, seed=0, steps=4, **fields):
    return {"right": right, "seed": seed, "steps": steps, "prompts": 10, "num_generations": 8, **fields}


def test_intervals_are_those_of_a_paired_t_test(bench):
    differences = np.array([0.02, -0.01, 0.03, 0.01, 0.02])
    found = bench.summary.interval(differences, 1)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == (pytest.approx(low), pytest.approx(high))
    many = bench.summary.interval(differences, 10)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / 10)
    assert (many.mean - many.simultaneous, many.mean + many.simultaneous) == (pytest.approx(low), pytest.approx(high))
    assert not many.found
    assert bench.summary.interval(differences + 0.1, 10).found


def test_holm_corrects_step_by_step(bench):
    np.testing.assert_allclose(bench.summary.holm([0.01, 0.04, 0.03, 0.5]), [0.04, 0.09, 0.09, 0.5])
    np.testing.assert_allclose(bench.summary.holm([0.9, 0.8]), [1.0, 1.0])


def test_a_verdict_is_given_for_complete_tables_and_against_the_right_grpo(bench, monkeypatch):
    base = [("H", "grpo", ""), ("H", "good", ""), ("H", "fell", "")]
    changed = [("H", "grpo", "G4"), ("H", "good", "G4"), ("H", "good", "min1")]
    monkeypatch.setattr(bench.planned, "_PLANNED", dict.fromkeys([*base, *changed]))
    monkeypatch.setattr(
        bench.planned, "seeds_of", lambda factor: (8, 9, 10, 11) if factor == "confirm" else (0, 1, 2, 3)
    )

    def runs(*last, first=0):  # of 16 samples of each of 10 problems; every start has 1 in 16
        return {seed: fake_run({"0": "1" * 10, "4": digit * 10}, seed) for seed, digit in enumerate(last, first)}

    cells = {
        ("H", "grpo", ""): runs(*"4455"),
        ("H", "good", ""): runs(*"6777"),
        ("H", "fell", ""): runs(*"5560"),
        ("H", "grpo", "G4"): runs(*"2323"),
        ("H", "good", "G4"): runs(*"232"),
        ("H", "good", "min1"): runs(*"6777"),
    }
    text = "\n".join(bench.verdict.verdict(cells))
    p = stats.ttest_1samp(np.array([2, 3, 2, 2]) / 16, 0).pvalue
    assert f"- `good` in H: final pass@1 +14.1 (p {p:.4f}, after Holm {6 * p:.3f})" in text
    assert "`good` in H (min1): final pass@1 +14.1" in text  # GRPO does not know a minimum
    assert "(G4)" not in text  # its fourth run is missing
    assert "`fell`" not in text
    again = [("H", "grpo", "confirm"), ("H", "good", "confirm")]
    monkeypatch.setattr(bench.planned, "_PLANNED", dict.fromkeys([*base, *changed, *again]))
    both = cells | {again[0]: runs(*"4444", first=8), again[1]: runs(*"4543", first=8)}
    last = "\n".join(bench.verdict.verdict(both)).split("nothing was chosen (all of it")[1]
    alone, pooled = last.split("Over both")
    assert alone.count("\n- ") == 1
    assert "`good` in H: final pass@1 +7.0 ± " in pooled  # the mean of 2, 3, 2, 2, 0, 1, 0, -1 in 16
    assert "(8 seeds)" in pooled
    assert "`good` in H (confirm): final pass@1 +0.0 (p 1.0000, after Holm 1.000)" in last  # a family of its own
    assert f"after Holm {6 * p:.3f}" in "\n".join(bench.verdict.verdict(both))
    cells["H", "good", "G4"] = runs(*"3434")
    assert "`good` in H (G4): final pass@1 +6.2" in "\n".join(bench.verdict.verdict(cells))
    fallen = [line for line in bench.verdict.fallen(cells) if line.startswith("| H")]
    assert fallen == ["| H `fell` | 3 | 6.2 | 0.0 | +6.2 ± 0.0 |"]
    cells["H", "good", ""].pop(0)
    assert "None yet" not in "\n".join(bench.verdict.verdict(cells))
    assert "`good` in H: " not in "\n".join(bench.verdict.verdict(cells))


def test_an_arm_that_was_stopped_early_is_shown_and_no_finding(bench, monkeypatch):
    monkeypatch.setattr(bench.planned, "_PLANNED", dict.fromkeys([("H", "grpo", ""), ("H", "kept", "")]))
    monkeypatch.setattr(bench.planned, "seeds_of", lambda factor: (0, 1, 2))
    size = len(bench.report.REGIMES["H"].held_out())

    def runs(*last):
        ends = ({"0": "1" * size, "4": digit * size} for digit in last)
        return {seed: fake_run(right, seed, cpu_seconds=1.0) for seed, right in enumerate(ends)}

    cells = {("H", "grpo", ""): runs(*"445"), ("H", "kept", ""): runs(*"667"), ("H", "stopped", ""): runs(*"66")}
    lines = [*bench.report._comparison(cells, "H", "", cells["H", "grpo", ""], ["kept", "stopped"])]
    kept, stopped = (next(line for line in lines if f"`{arm}`" in line) for arm in ("kept", "stopped"))
    assert "| **+12.5 ± 0.0** |" in kept
    assert "| +12.5 ± 0.0 |" in stopped
    assert "**" not in stopped


def test_only_seeds_that_both_have_are_compared(bench):
    arm = {0: fake_run({"0": "0", "4": "g"}), 1: fake_run({"0": "0", "4": "8"}), 3: fake_run({"0": "0", "4": "0"})}
    grpo = {0: fake_run({"0": "0", "4": "8"}), 1: fake_run({"0": "0", "4": "8"}), 2: fake_run({"0": "0", "4": "0"})}
    found = bench.summary.compare(arm, grpo, bench.summary.final, 1)
    assert (found.mean, found.seeds) == (pytest.approx(0.25), 2)


def test_outcomes_of_a_curve(bench):
    run = fake_run({"0": "00", "2": "11", "4": "gg"})  # of 16, 4 and 16 samples
    np.testing.assert_allclose(bench.summary.curve(run)[1], [0, 0.25, 1])
    assert bench.summary.area(run) == pytest.approx((0.125 + 0.625) / 2)
    assert bench.summary.rollouts_to(run, 0.5) == pytest.approx(0.08 * (2 + 2 / 3))
    assert bench.summary.rollouts_to(run, 2.0) == pytest.approx(0.32)  # not reached: the whole run
    assert bench.summary.half_way(run) == 0.5
    assert bench.summary.final_pass_at_k(fake_run({"0": "0", "4": "01g"})) == pytest.approx((0 + 0.5 + 1) / 3)


def test_hard_levels_come_from_the_starts(bench):
    runs = [fake_run({"0": "0g1"}, 0), fake_run({"0": "2g1"}, 1)]
    np.testing.assert_array_equal(bench.summary.hard_levels(runs, np.array([5, 3, 5])), [True, False, True])


def test_the_page_is_that_of_the_stored_runs(bench):
    """All of it but the day it was printed on."""
    results = bench.run.RESULTS

    def undated(text):
        return re.sub(r"printed on \d{4}-\d\d-\d\d", "", text)

    page = undated(results.with_suffix(".md").read_text())
    assert page == undated(bench.report.page(bench.summary.read_runs(results), results)), (
        "run benchmarks/learning/run.py --report-only"
    )


def test_kappa_at_a_start(bench, options, monkeypatch):
    monkeypatch.setattr(bench.kappa, "exact_match", lambda text, answer: float(len(text) % 2))
    found = bench.kappa.measure("HH", 0, options.work / "starts", prompts=4, rollouts=5)
    assert 0 < found["pass_rate"] < 1
    for estimate in (found["kappa"], found["kappa_adam"]):  # None, infinity, where no spread is seen
        kappa, low, high = (np.inf if value is None else value for value in estimate)
        assert 0 < low <= kappa <= high


def test_kappa_is_measured_for_starts_that_runs_began_from(bench, options, monkeypatch):
    def measure(name, seed, *_):
        return {"regime": name, "seed": seed, "measured": "now"}

    before = [{"regime": "HH", "seed": 0, "measured": "before"}, {"regime": "H", "seed": 1, "measured": "before"}]
    bench.run.write_json(options.results / "kappa.json", before)
    monkeypatch.setattr(bench.kappa, "measure", measure)
    monkeypatch.setattr(bench.run, "right_at_start", lambda *_: "here")
    places = ["--results", str(options.results), "--work", str(options.work)]
    bench.kappa.main(["--regimes", "U", "HH", "--seeds", "0", *places])
    found = json.loads((options.results / "kappa.json").read_text())
    assert [(one["regime"], one["seed"], one["measured"]) for one in found] == [
        ("H", 1, "before"),
        ("U", 0, "now"),
        ("HH", 0, "now"),
    ]
    cell = bench.run.missing_runs(options)[0][0]
    made = {**vars(cell), "cell": "U-grpo", "regime": "U", "seed": 0, "right": {"0": "elsewhere"}}
    bench.run.write_json(options.results / "U-grpo" / "seed0.json", made)
    with pytest.raises(SystemExit, match="The start of regime U, seed 0"):
        bench.kappa.main(["--regimes", "U", "--seeds", "0", *places])
