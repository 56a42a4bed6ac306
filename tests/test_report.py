"""adaroll report: a page from what a run leaves on disk, whatever state it is in, and nothing from anywhere else."""

from __future__ import annotations

import base64
import json
import re
import shutil
import tracemalloc
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaroll_trl.plots import COLOURS
from adaroll_trl.report import figures
from adaroll_trl.report.command import main
from adaroll_trl.report.completions import read_tables, read_texts
from adaroll_trl.report.figures import drawing, pictures
from adaroll_trl.report.files import read_run
from adaroll_trl.report.run import load_runs
from adaroll_trl.report.settings import ALLOCATION_SETTINGS
from adaroll_trl.report.tables import plain_text, prompt_tables, settings_tables, shorten
from adaroll_trl.run_folder import checkpoints_in

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pyarrow = pytest.importorskip("pyarrow")
from matplotlib.figure import Figure  # noqa: E402
from pyarrow import parquet  # noqa: E402

WHOLE_DPI = drawing._DPI
NASTY = '<script>alert("x")</script><img src=http://example.com/x.png>\u202e'
GROUP = 4


def write_table(
    folder: Path, step: int, counts: list[tuple[str, int, int]], adaptive: bool = True, **more: Any
) -> None:
    """A completions table of a batch of (prompt, successes, rollouts)."""
    columns: dict[str, list[Any]] = {"step": [], "prompt": [], "completion": [], "right": [], "group": []}
    for group, (prompt, successes, rollouts) in enumerate(counts):
        for place in range(rollouts):
            columns["step"].append(step)
            columns["prompt"].append(prompt)
            columns["completion"].append(f"{'right' if place < successes else 'wrong'} {NASTY}")
            columns["right"].append(float(place < successes))
            columns["group"].append(group)
    columns["advantage"] = [0.0] * len(columns["step"])
    if not adaptive:
        del columns["group"]
    columns |= more
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), folder / "completions" / f"completions_{step:05d}.parquet")


def write_log(folder: Path, entries: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": len(entries), "log_history": entries}))


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pictures: most of a report's time goes into their pixels."""
    monkeypatch.setattr(drawing, "_DPI", 30)


@pytest.fixture
def adaptive(tmp_path: Path) -> Path:
    return write_adaptive(tmp_path)


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the report of an adaptive run is, drawn once. Its settings are transformers' own JSON, with secrets."""
    folder = write_adaptive(tmp_path_factory.mktemp("page"))
    content = {
        "hub_token": "<HUB_TOKEN>",
        "beta": 0.25,
        "vllm_server_base_url": "http://me:hf_secret@host:8000",
        "model_init_kwargs": {"token": "hf_secret", "dtype": "float32", "note": NASTY},
        "run_name": NASTY,
        "x" * 500: 1,
        NASTY: 1,
    }
    (folder / "training_args.json").write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_DPI", 30)
        report_of(folder)
    return folder.parent


@pytest.fixture
def page(page_folder: Path) -> str:
    return (page_folder / "page.html").read_text(encoding="utf-8")


def write_adaptive(parent: Path) -> Path:
    """Twelve batches of three prompts: one always solved, one half, one (with nasty text) once in the whole run."""
    folder = parent / "adaptive"
    for step in range(1, 13):
        hard = (f"hard {NASTY}", int(step == 7), 6)
        write_table(folder, step, [("easy", 3, 3), ("half", 1, 3), hard, (f"never {step}", 0, 2)])
    entries = [
        {
            "step": step,
            "reward": 0.4,
            "adaroll/prompt_reward_mean": 0.1 * step,
            "adaroll/rounds": 4.0,
            "adaroll/frac_prompts_mixed": 0.25,
            "adaroll/utility/realised": 0.25,
            "adaroll/utility/uniform": 0.5,
            "adaroll/utility/bound": 0.75,
            "adaroll/prompt_weight/curve/0.2-0.4": 1.5,
            "adaroll/prompt_weight/curve/0.4-0.6": 0.8,
            "adaroll/time/allocate": 0.01,
            "step_time": 2.0,
            "rewards/right/mean": 0.4,
        }
        for step in range(1, 13)
    ]
    write_log(folder, [*entries, {"step": 12, "eval_accuracy": 0.5}])
    return folder


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A run of TRL's own trainer."""
    folder = tmp_path / "plain"
    for step in range(1, 5):
        write_table(folder, step, [("easy", 4, 4), ("half", 2, 4), (f"hard {NASTY}", 0, 4)], adaptive=False)
    write_log(folder, [{"step": s, "reward": 0.5, "frac_reward_zero_std": 0.5, "step_time": 1.0} for s in range(1, 5)])
    return folder


def report_of(*folders: Path) -> str:
    output = folders[0].parent / "page.html"
    assert main([*map(str, folders), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Tags, their attributes, and the text of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.tags if name == tag]


# What a run's files say


def test_counts_of_batches_and_prompts(adaptive):
    run = read_run(adaptive)
    found = read_tables(run)
    assert found.rewards == ["right"]
    assert (len(found.batches), len(found.prompts), found.rollouts) == (12, 15, 12 * 14)
    assert {(one.successes, one.rollouts, one.batches) for one in found.prompts.values()} == {
        (36, 36, 12),
        (12, 36, 12),
        (1, 72, 12),
        (0, 2, 1),
    }
    assert sum(one.total() for one in found.pairs.values()) == 48
    assert all(batch.mixed == (0.5 if batch.step == 7 else 0.25) for batch in found.batches)
    (hard,) = (one for one in found.prompts.values() if one.successes == 1)
    assert hard.solved is not None
    assert hard.solved_step == 7
    assert read_texts(run, [hard.solved])[hard.solved] == (f"hard {NASTY}", f"right {NASTY}")


def test_a_batch_that_several_logging_steps_show_counts_once(tmp_path):
    for step in (1, 2, 3):
        write_table(tmp_path, step, [("a", 1, 2), ("b", 0, 2)])
    write_table(tmp_path, 4, [("a", 1, 2), ("b", 1, 2)])
    found = read_tables(read_run(tmp_path))
    assert (len(found.batches), found.repeated) == (2, 2)


SPACED = {"steps_per_generation": 4, "num_iterations": 1, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("every", "settings", "told"),
    [(1, {"logging_steps": 4}, False), (4, {}, True), (4, SPACED, True), (2, SPACED, False)],
)
def test_batches_between_tables_are_told_of_by_the_tables_themselves(tmp_path, every, settings, told):
    """A resumed run keeps the old `logging_steps` whatever its settings say; a batch may be as long as the gap."""
    for place in range(1, 4):
        write_table(tmp_path, place * every, [("a", place % 3, 4)])
    (tmp_path / "training_args.json").write_text(json.dumps(settings))
    (run,) = load_runs([tmp_path])
    assert any(f"at every {every}th step" in note for note in run.notes) == told


def test_settings_that_changed_under_way_are_told(adaptive):
    """A run resumed with other settings, or another run in the folder of the first."""
    for step, group in ((4, 3), (8, 4), (12, 4)):
        checkpoint = adaptive / f"checkpoint-{step}"
        checkpoint.mkdir()
        content = {"num_generations": group, "logging_dir": str(step), "utility": "mixed"}
        (checkpoint / "training_args.json").write_text(json.dumps(content))
    (adaptive / "training_args.json").write_text('{"num_generations": 4, "utility": "mixed"}')
    (note,) = (note for note in read_run(adaptive).notes if "changed" in note)
    assert note.startswith("The settings changed after checkpoint-4: num_generations 3 -> 4. The newest hold")


def test_a_table_of_a_step_that_no_run_has(adaptive):
    table = adaptive / "completions" / "completions_00004.parquet"
    shutil.copy(table, table.with_name(f"completions_{'9' * 20}.parquet"))
    assert len(read_run(adaptive).completions) == 12


def test_groups_of_a_plain_run_are_runs_of_one_prompt(tmp_path):
    write_table(tmp_path, 1, [("a", 4, 4), ("a", 0, 4), ("b", 1, 4)], adaptive=False)
    run = read_run(tmp_path)
    assert read_tables(run).batches[0].prompts == 2
    run.settings["num_generations"] = GROUP
    assert read_tables(run).batches[0].prompts == 3


def test_what_counts_as_a_success_follows_the_settings(tmp_path):
    write_table(tmp_path, 1, [("a", 2, 4)], graded=[0.9, 0.1, 0.1, 0.1])
    write_log(tmp_path, [{"step": 1, "reward": 1.0, "rewards/right/mean": 0.5, "rewards/graded/mean": 0.3}])
    run = read_run(tmp_path)

    def successes(**settings: Any) -> int:
        run.settings = settings
        return next(iter(read_tables(run).prompts.values())).successes

    assert successes() == 2
    assert successes(success_reward="graded") == 1
    assert successes(reward_weights=[1.0, 10.0]) == 4
    assert successes(success_threshold=1.5) == 1


def test_what_equal_groups_would_show_is_estimated_without_the_bias_of_stopping(tmp_path):
    """Rollouts that stop at the first mixed group hide the rates; the estimate comes within its noise of the truth."""
    rng = np.random.default_rng(0)
    truth = []
    for step in range(1, 41):
        batch = []
        for place in range(16):
            rate = rng.beta(0.8, 0.8)
            truth.append(1 - rate**GROUP - (1 - rate) ** GROUP)
            outcomes = rng.random(20) < rate
            n = next((n for n in range(2, 20) if 0 < outcomes[:n].sum() < n), 20)
            batch.append((f"{step} {place}", int(outcomes[:n].sum()), n))
        write_table(tmp_path, step, batch)
    (run,) = load_runs([tmp_path])
    run.files.settings["num_generations"] = GROUP
    assert np.mean(list(run.equal_groups.values())) == pytest.approx(np.mean(truth), abs=0.04)
    shown = np.mean([batch.mixed for batch in run.completions.batches])
    assert shown > np.mean(truth) + 0.2


# Settings from anybody

FORGED: dict[str, tuple[str | bytes, str]] = {
    "no JSON": ('{"beta": ', "training_args.json was skipped: it cannot be read"),
    "no text": (b"\x80\x04\x95", "training_args.json was skipped: it cannot be read"),
    "no object": ("[1, 2]", "training_args.json was skipped: it holds no JSON object"),
    "nested": ("[" * 100_000, "training_args.json was skipped: it cannot be read"),
    "nested in an object": ('{"beta": ' + '{"a": [' * 300 + "]}" * 300 + "}", "12 batches"),
    "too large": ('{"beta": "' + "x" * 5_000_000 + '"}', "it has more than 4,000,000 bytes"),
    "too many": (json.dumps({f"a{n}": n for n in range(2000)}), "has 2,000 settings: those after the first 1,000"),
    "a huge number": ('{"num_generations": 1' + "0" * 400 + "}", "it must be an integer from 1 to 10,000"),
    "a huge group": ('{"num_generations": 1000000000}', "num_generations=1000000000 was left out"),
    "no group": ('{"num_generations": true}', "num_generations=True was left out"),
    "a negative group": ('{"num_generations": -4}', "num_generations=-4 was left out"),
    "a threshold of text": ('{"success_threshold": "<script>"}', "success_threshold='<script>' was left out"),
    "a threshold that is none": ('{"success_threshold": NaN}', "success_threshold='nan' was left out"),
    "weights of text": (
        '{"reward_weights": [1, "b"]}',
        "reward_weights=[1, 'b'] was left out, since it must be a list",
    ),
    "a reward by list": ('{"success_reward": ["right"]}', "success_reward=['right'] was left out"),
    "steps of text": ('{"num_iterations": "<b>"}', "num_iterations='<b>' was left out, since it must be an integer"),
    "a utility": ('{"utility": [[]]}', "utility=[[]] was left out"),
}


@pytest.mark.parametrize(("content", "note"), FORGED.values(), ids=FORGED)
def test_settings_that_cannot_be_are_left_out_by_name_and_the_report_goes_on(content, note, adaptive):
    """The rest of the run is read as without them, in bounded memory."""
    path = adaptive / "training_args.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    tracemalloc.start()
    read_run(adaptive)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (run,) = load_runs([adaptive])
    shares, tables = run.equal_groups, settings_tables([run])
    assert note in " ".join([*run.notes, f"{len(run.completions.batches)} batches"])
    assert most < 3e7
    assert len(shares) == 4
    assert {one.rollouts for one in run.completions.batches} == {14}
    assert sum(one.successes for one in run.completions.prompts.values()) == 49
    assert sum(len(table.rows) for table in tables) <= 1000
    assert all(len(cell) <= 200 for table in tables for row in table.rows for cell in row)


def test_settings_are_shown_without_secrets_and_as_text(page):
    assert "0.25" in Page(page).text
    assert "http://host:8000" in Page(page).text
    for never in ("hf_secret", "hub_token", "x" * 81, "\u202e", "<script"):
        assert never not in page


def test_settings_of_a_checkpoint_serve_where_the_folder_has_none(adaptive):
    for place, beta in (("checkpoint-9", 1), ("checkpoint-30", 2)):
        write_log(adaptive / place, [{"step": 1, "reward": 0.1}])
        (adaptive / place / "training_args.json").write_text(json.dumps({"beta": beta}))
    assert read_run(adaptive).settings == {"beta": 2}
    (adaptive / "checkpoint-30" / "training_args.json").write_text("{")
    run = read_run(adaptive)
    assert run.settings == {"beta": 1}
    assert "checkpoint-30/training_args.json was skipped" in run.notes[0]
    (adaptive / "training_args.json").write_text(json.dumps({"beta": 3}))
    assert read_run(adaptive).settings == {"beta": 3}


def test_a_pickle_is_not_read(adaptive):
    (adaptive / "training_args.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    run = read_run(adaptive)
    assert run.settings == {}
    assert "the pickle training_args.bin is not read" in run.notes[0]


def test_a_log_and_a_state_from_anybody_are_read_as_far_as_they_go(adaptive):
    log = json.loads((adaptive / "trainer_state.json").read_text())
    odd = [
        {"step": "1", "reward": "2"},
        {"step": [], "eval_runtime": 1},
        {"reward": 10**400, "step": 1},
        {"step": None},
        {"step": 9, "adaroll/prompt_weight/curve/0.2-0.4": {}},
    ]
    for step in ("many", [], None, 10**400):
        content = {"global_step": step, "log_history": [*log["log_history"], *odd, 7, None]}
        (adaptive / "trainer_state.json").write_text(json.dumps(content))
        run = read_run(adaptive)
        assert run.series("reward")[1].tolist() == [0.4] * 12
        assert run.evaluation_steps == set()
    (weights,) = figures.draw_weights(load_runs([adaptive]))
    assert "at step 12: 1.50 at 0.30, 0.80 at 0.50" in weights.alt
    for state in ({"calibration": []}, {"calibration": {"bins": "ab"}}, {"calibration": {"bins": [[1, 2], 3]}}):
        write_log(adaptive / "checkpoint-1", [{"step": 1, "reward": 0.1}])
        (adaptive / "checkpoint-1" / "adaroll_state.json").write_text(json.dumps(state))
        assert list(figures.draw_calibration(load_runs([adaptive]))) == []


def test_steps_that_no_run_has_do_not_end_a_report(adaptive):
    """An array as long as these steps would not fit into any memory."""
    log = json.loads((adaptive / "trainer_state.json").read_text())
    shown = {"reward": 0.4, "frac_reward_zero_std": 0.5, "step_time": 1.0, "eval_runtime": 1.0}
    odd = [{**shown, "step": step} for step in (-5, 0, 0.5, 10**12, -(10**12), 1e300, -1e300, 10**400, "7", True)]
    write_log(adaptive, [*log["log_history"], *odd])
    assert main([str(adaptive), "--output", str(adaptive / "page.html")]) == 0
    assert "Mean reward over steps" in (adaptive / "page.html").read_text()


def test_texts_of_strangers_become_plain_and_short():
    assert plain_text([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "two"}]}]) == (
        "user: [image] two"
    )
    assert plain_text("a\x00\u202eb\n") == "a\ufffd\ufffdb\n"
    assert len(shorten("x" * 5000)) <= 400


# The page


def test_the_page_holds_all_and_loads_nothing(page, page_folder):
    text, page = page, Page(page)
    images = page.all("img")
    assert len(images) == 11
    for image in images:
        assert len(image["alt"]) > 20
        assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base"}
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    assert "@import" not in text
    assert "url(" not in text
    policy = next(one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    anchors = {link[1:] for link in links if link.startswith("#")}
    assert anchors <= {attributes.get("id") for _, attributes in page.tags}
    saved = sorted(path.stem for path in (page_folder / "page_figures").glob("*.png"))
    assert len(saved) == 11
    assert {"reward", "signal", "allocation_1", "allocation_4", "difficulty", "weights", "time"} <= set(saved)


def test_texts_are_escaped(page):
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert '<script>alert("x")' in Page(page).text


def test_the_hardest_and_the_never_solved(adaptive):
    solved, never = prompt_tables(load_runs([adaptive]))
    prompt, completion, successes, rollouts, batches, step = solved.rows[0]
    assert prompt.startswith("hard")
    assert completion.startswith("right")
    assert (successes, rollouts, batches, step) == ("1", "72", "12", "7")
    assert len(never.rows) == 12
    assert {row[2] for row in never.rows} == {"2"}


def test_a_plain_run_leaves_out_what_it_does_not_have_and_says_so(plain):
    page = Page(report_of(plain))
    assert "GRPO, equal groups" in page.text
    for missing in ("Prompt weights: AdaRoll's trainer logs them", "Held-out results: the log has none", "Beliefs:"):
        assert missing in page.text
    assert "neither folder nor checkpoints have training_args.json" in page.text
    assert "SettingsCallback()" in page.text
    assert {image["alt"].split(".")[0] for image in page.all("img")} == {
        "Mean reward over steps",
        "Share of prompts with signal over steps",
        "Success rates",
        "Seconds over steps",
    }


def test_two_runs_side_by_side(plain, adaptive):
    text = report_of(plain, adaptive)
    page = Page(text)
    assert "adaptive - plain" in page.text
    assert "Who solved what" in page.text
    row = re.search(r"prompts with signal</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", text)
    assert row is not None
    assert row.groups() == ("33.3%", "25.0%", "-8.3 pp")


def test_settings_of_the_allocation_are_those_of_the_options_and_a_plain_run_has_none(plain, adaptive):
    """TRL's trainer takes an AdaRollGRPOConfig too, and reads nothing of it."""
    from adaroll_trl.config import AdaRollOptions

    assert set(ALLOCATION_SETTINGS) == {one.name for one in fields(AdaRollOptions)}
    runs = load_runs([plain, adaptive])
    for run in runs:
        run.files.settings = {"utility": "mixed", "max_rollouts": None, "beta": 0.0}
    differ, main_ones, _ = settings_tables(runs)
    assert differ.rows == [["utility", "-", "mixed"], ["max_rollouts", "-", "None"]]
    assert ["beta", "0.0", "0.0"] in main_ones.rows


def test_names_of_runs_are_shown_as_they_are_and_colours_stay_with_their_run(plain, adaptive, tmp_path, monkeypatch):
    """A folder's name is no formula to matplotlib, and a curve that one run lacks takes no colour away."""
    odd = adaptive.rename(tmp_path / f"_$x^{{b$ {'long ' * 12}")
    runs = load_runs([plain, odd])
    labels: list[str] = []
    colours: list[Any] = []
    save = Figure.savefig

    def look(figure: Figure, *args: Any, **kwargs: Any) -> None:
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
        labels.extend(text.get_text() for legend in legends for text in legend.get_texts())
        if figure.axes[0].get_ylabel() == "weight w(p)":
            colours.append(figure.axes[0].lines[0].get_color())
        save(figure, *args, **{**kwargs, "dpi": 20})

    monkeypatch.setattr(Figure, "savefig", look)
    pictures(runs)
    assert any(label.startswith("$x^{b$ long") for label in labels)
    assert max(len(line) for label in labels for line in label.splitlines()) <= 50
    assert colours == [COLOURS[1]]


def test_a_run_cut_short(adaptive, capsys):
    """A torn table is named and the rest shown; without a log the completions alone make a report."""
    torn = adaptive / "completions" / "completions_00012.parquet"
    torn.write_bytes(torn.read_bytes()[:300])
    (adaptive / "trainer_state.json").write_text('{"log_history": [')
    page = Page(report_of(adaptive))
    for text in (page.text, capsys.readouterr().out):
        assert "completions_00012.parquet: it cannot be read" in text
        assert "trainer_state.json was skipped" in text
    assert "Training reward: there is no trainer_state.json" in page.text
    assert any(image["alt"].startswith("Rollouts against success rate") for image in page.all("img"))


def test_the_newest_log_of_folder_and_checkpoints_is_taken(adaptive):
    entries = [{"step": step, "reward": 0.1} for step in range(1, 31)]
    write_log(adaptive / "checkpoint-30", entries)
    write_log(adaptive / "checkpoint-9", entries[:9])
    assert len(read_run(adaptive).history) == 30


@pytest.mark.parametrize("name", ["checkpoint-²", "checkpoint-٣", "checkpoint--1", "checkpoint-best", "checkpoint-"])
def test_a_folder_that_the_trainer_did_not_name_is_no_checkpoint(adaptive, name):
    write_log(adaptive / name, [{"step": step, "reward": 0.1} for step in range(1, 31)])
    write_log(adaptive / "checkpoint-9", [{"step": step, "reward": 0.1} for step in range(1, 21)])
    assert [path.name for path in checkpoints_in(adaptive)] == ["checkpoint-9"]
    assert len(read_run(adaptive).history) == 20


def test_an_evaluation_in_place_of_a_batch_is_left_out(adaptive):
    rows = [None] * 4
    write_table(adaptive, 13, [("held out", 1, 4)], group=pyarrow.array(rows, pyarrow.int64()))
    found = read_tables(read_run(adaptive))
    assert len(found.batches) == 12
    assert found.skipped == [
        "completions_00013.parquet: an evaluation ran at this step, and its completions replaced those of training"
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "is not there. A report needs the output_dir of a run, with trainer_state.json"),
        (lambda folder: folder.write_text(""), "is a file"),
        (lambda folder: folder.mkdir(), "holds no run.*completions_<step>.parquet.*It is empty"),
        (lambda folder: write_log(folder / "one", []), "holds no run.*It has one. Its folders one look like runs"),
        (lambda folder: write_log(folder, []), "has logged nothing yet"),
        (lambda folder: write_log(folder, [{"step": 1, "loss": 2.0}]), "a run without rewards"),
    ],
)
def test_a_folder_without_a_run_is_an_error_that_names_what_it_looked_for(make, message, tmp_path, capsys):
    folder = tmp_path / "run"
    make(folder)
    assert main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert re.search(message, error)
    assert str(folder) in error


def test_one_run_twice_and_a_folder_as_output_are_refused(adaptive, capsys):
    assert main([str(adaptive), str(adaptive)]) == 2
    assert "is given twice" in capsys.readouterr().err
    assert main([str(adaptive), "--output", str(adaptive)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_the_page_does_not_grow_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "_DPI", WHOLE_DPI)
    for step in range(1, 201):
        write_table(
            tmp_path, step, [(f"p{step}-{place} " + "long " * 400, place % 2, 2 + place) for place in range(3)]
        )
    found = read_tables(read_run(tmp_path))
    assert len(found.prompts) == 600
    text = report_of(tmp_path)
    assert len(text) < 600_000
    assert text.count("<tr>") < 200


def test_a_real_run(build, tmp_path):
    """What the trainer writes, from its completions to its settings, is what a report reads."""
    from adaroll_trl import AdaRollGRPOTrainer

    trainer = build(
        AdaRollGRPOTrainer,
        per_device_train_batch_size=8,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        max_steps=4,
        log_completions=True,
        num_completions_to_print=0,
        belief_decay=0.5,
        save_strategy="steps",
        save_steps=4,
        save_only_model=True,
    )
    trainer.train()
    (run,) = load_runs([tmp_path])
    assert run.adaptive
    assert run.notes[0].startswith("2 tables repeat"), "all that there is was read"
    assert run.files.settings["belief_decay"] == 0.5
    assert run.files.settings["lr_scheduler_type"] == "linear"
    assert len(run.files.completions) == 4
    assert (len(run.completions.batches), run.completions.repeated) == (2, 2)
    batch = trainer.state.log_history[0]
    assert run.completions.batches[0].largest == batch["adaroll/rollouts_per_prompt/max"]
    assert run.completions.batches[0].mixed == pytest.approx(batch["adaroll/frac_prompts_mixed"])
    assert run.completions.batches[0].success_by_prompt == pytest.approx(batch["adaroll/prompt_reward_mean"])
    assert main([str(tmp_path)]) == 0
    assert "AdaRoll-GRPO" in (tmp_path / "report.html").read_text()
