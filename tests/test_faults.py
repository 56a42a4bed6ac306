"""A run that cannot be lost: killed processes, functions that fail, disks that fill, files that are cut short.

Two real processes on gloo play the faults, see `tests/workers/faults.py`; one launch plays all of them. What each test
shows is a row of docs/reliability.md.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.checkpoint import checkpoint_to_resume, save_state
from adaroll_trl.files import write_json
from adaroll_trl.solver.store import TableStore, TableStoreWarning
from adaroll_trl.user_functions import checked_rewards, checked_rollouts, raise_reward_errors
from tests.tiny import same_weights, sums_dataset, weights

ROOT = Path(__file__).parent.parent
SETUPS: dict[str, dict[str, Any]] = {
    "ours": {"trainer": "ours"},
    "cero": {"trainer": "ours", "options": {"allocator": "cero", "rounds": 4}},  # its prices are the allocator's state
    "plain": {"trainer": "plain"},
}
BY_PROMPT = {**SETUPS["ours"], "by_prompt": True}
ALONE = {**BY_PROMPT, "world": 1, "multiple_of": 2}
LONGER = {"max_steps": 10, "save_strategy": "no"}
WHOLE_BATCH = {"per_device_train_batch_size": 8}  # what two processes have between them
# Phase, rank that is killed (each of the two in every phase), from which step, setup. Batches begin at steps 0, 2
# and 4, and each ends with a save.
KILLS = [
    ("generating", 0, 2, "cero"),
    ("generating", 1, 2, "ours"),
    ("scoring", 0, 2, "plain"),
    ("scoring", 1, 2, "ours"),
    ("allocating", 0, 2, "cero"),
    ("allocating", 1, 2, "ours"),
    ("training", 0, 3, "plain"),
    ("training", 1, 3, "ours"),
    ("saving", 0, 4, "cero"),
    ("saving", 1, 4, "ours"),
]
PROMPTLY = 5.0  # seconds within which a rank ends after another one has


def killed(phase: str, rank: int, step: int, setup: str) -> list[dict[str, Any]]:
    """A run in which a rank is killed, and its resumption."""
    run = f"{phase}-{rank}-{setup}"
    kill = {"phase": phase, "rank": rank, "step": step}
    return [
        {"name": f"{run} killed", "run": f"run {run}", "kill": kill, **SETUPS[setup]},
        {"name": f"{run} resumed", "run": f"run {run}", "resume": True, **SETUPS[setup]},
    ]


def faulty(kind: str, rank: int = 1, step: int = 2, **extra: Any) -> dict[str, Any]:
    fault = {"kind": kind, "ranks": [rank], "step": step, "limit": 100_000}
    return {"name": kind, "run": f"run {kind}", "fault": fault, **SETUPS["ours"], **extra}


def cases() -> list[dict[str, Any]]:
    """In this order: some go on from what others left."""
    cut = {"checkpoint-6/trainer_state.json": '{"epoch":', "checkpoint-4/adaroll_state.json": '{"beliefs":'}
    return [
        *({"name": setup, "run": f"run {setup}", **SETUPS[setup]} for setup in SETUPS),
        {"name": "ours again", "run": "run again", **SETUPS["ours"]},
        {"name": "two processes", "run": "run two", **BY_PROMPT, "options": LONGER},
        {"name": "one process", "run": "run one", **ALONE, "options": {**LONGER, **WHOLE_BATCH}},
        {
            "name": "threads and workers",
            "run": "run threads",
            "threads": 2,
            **ALONE,
            "options": {**LONGER, **WHOLE_BATCH, "dataloader_num_workers": 2},
        },
        *(case for kill in KILLS for case in killed(*kill)),
        *(faulty(kind) for kind in ("raise", "string", "two functions", "another option")),
        faulty("inf", rank=0),
        faulty("hang", group_timeout=4, patience=1),
        *(faulty(kind, rollout_func=True) for kind in ("nothing", "empty rows")),
        faulty("full disk", rank=0, step=4),
        {"name": "after full disk", "run": "run full disk", "resume": True, **SETUPS["ours"]},
        {
            "name": "cut",
            "run": "run cut",
            "resume": True,
            "prepare": {"run": "run ours", "files": cut},
            **SETUPS["ours"],
        },
        {"name": "tables", "run": "tables", "tables": True, "world": 8},
    ]


@pytest.fixture(scope="module")
def played(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the worker left: `codes`, `after_first` and `texts` by case and rank, and `rank(case, number)`."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "cases.json").write_text(json.dumps(cases()))
    launch("tests.workers.faults", model_dir, folder)
    results = json.loads((folder / "results.json").read_text())
    return SimpleNamespace(
        folder=folder,
        codes=lambda case: results[case]["codes"],
        after_first=lambda case: results[case]["after_first"],
        text=lambda case, rank: (folder / case / f"output{rank}.txt").read_text(),
        rank=lambda case, rank=0: torch.load(folder / case / f"rank{rank}.pt", weights_only=False),
    )


def launch(module: str, model_dir: Path, folder: Path, *before: str) -> str:
    command = [sys.executable, *before, "-m", module, str(model_dir), str(folder), str(folder / "cases.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    # Without it torch 2.13 restarts into the addresses of the processes that died, whatever they run
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


# Killed processes


@pytest.mark.multiprocess
@pytest.mark.parametrize(("phase", "rank", "step", "setup"), KILLS, ids=[f"{p}-{r}-{s}" for p, r, _, s in KILLS])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(played, phase, rank, step, setup):
    run = f"{phase}-{rank}-{setup}"
    assert played.codes(f"{run} killed")[rank] == -9
    assert played.codes(f"{run} killed")[1 - rank] not in (0, -999), "the other ends by itself, with an error"
    assert max(played.after_first(f"{run} killed")) < PROMPTLY
    assert "Connection" in played.text(f"{run} killed", 1 - rank)
    assert played.codes(f"{run} resumed") == [0, 0]
    for number in (0, 1):
        whole, resumed = played.rank(setup, number), played.rank(f"{run} resumed", number)
        assert whole["step"] == resumed["step"] == 6
        assert same_weights(whole["weights"], resumed["weights"])
        assert resumed["seen"], "the data goes on in the same order, from the checkpoint at step 2"
        assert resumed["seen"] == [entry for entry in whole["seen"] if entry[0] >= 2]
        assert whole["log"] == resumed["log"]
    if setup != "plain":
        whole, resumed = played.rank(setup)["state"], played.rank(f"{run} resumed")["state"]
        assert whole == resumed, "beliefs, prices, calibration, fitted prior"
        assert sum(map(sum, whole["beliefs"].values())) > 0
        assert bool(whole["allocator"]) == (setup == "cero")


@pytest.mark.multiprocess
def test_a_run_killed_while_it_saves_resumes_from_the_checkpoint_before(played):
    for run in ("saving-0-cero", "saving-1-ours"):
        warning = played.text(f"{run} resumed", 0)
        assert "checkpoint-2: the run ended while checkpoint-4 was being saved" in warning


@pytest.mark.multiprocess
@pytest.mark.slow
def test_torchrun_restarts_a_killed_run_and_it_ends_with_the_same_weights(played, model_dir, tmp_path):
    kill = {"phase": "training", "rank": 1, "step": 3}
    (tmp_path / "cases.json").write_text(json.dumps([{"name": "run", "run": "run", "kill": kill, **SETUPS["ours"]}]))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=1")
    text = launch("tests.workers.faults", model_dir, tmp_path, *torchrun)
    assert "exitcode: -9" in text
    found = torch.load(tmp_path / "run" / "rank0.pt", weights_only=False)
    assert found["step"] == 6
    assert same_weights(found["weights"], played.rank("ours")["weights"])


# The same again


@pytest.mark.multiprocess
def test_the_same_seed_gives_the_same_counts_and_weights_twice(played):
    for number in (0, 1):
        first, second = played.rank("ours", number), played.rank("ours again", number)
        assert first["seen"], "prompts of each round, in order"
        assert first["seen"] == second["seen"]
        assert first["log"] == second["log"]
        assert same_weights(first["weights"], second["weights"])
    assert played.rank("ours")["state"] == played.rank("ours again")["state"]


def counts_by_round(ranks: list[dict[str, Any]]) -> list[tuple[int, Counter[int]]]:
    """Of each round: the step, and the rollouts of each prompt over all processes."""
    rounds = zip(*(rank["seen"] for rank in ranks), strict=True)
    return [(hands[0][0], Counter(number for hand in hands for number in hand[1:])) for hands in rounds]


@pytest.mark.multiprocess
def test_two_processes_give_each_prompt_what_one_process_gives_it(played):
    """Processes sample with seeds of their own, so rewards here hang on the prompt alone; and a round's total is a
    multiple of the number of processes, so the one process rounds as two do."""
    one, two = [played.rank("one process")], [played.rank("two processes", number) for number in (0, 1)]
    assert counts_by_round(one) == counts_by_round(two)
    assert len(counts_by_round(one)) == 3 * 5, "three rounds of five batches"
    batches: dict[int, Counter[int]] = {}
    for step, counts in counts_by_round(one):
        batches.setdefault(step, Counter()).update(counts)
    assert all(counts.total() == 16 for counts in batches.values())
    assert any(len(set(counts.values())) > 1 for counts in batches.values()), "something was allocated"
    assert one[0]["state"]["beliefs"] == two[0]["state"]["beliefs"] == two[1]["state"]["beliefs"]


@pytest.mark.multiprocess
def test_the_solvers_threads_and_workers_of_the_data_loader_do_not_meet(played):
    """Workers are forked once an epoch, from a process with the solver's threads, and solve something themselves."""
    assert played.codes("threads and workers") == [0], "-999: it hung"
    found, expected = played.rank("threads and workers"), played.rank("one process")
    assert found["threads"] == 2
    solvers = list((played.folder / "threads and workers").glob("solved by *"))
    assert len(solvers) > 1 + 2, "the trainer, and the workers of more than one epoch"
    assert found["seen"] == expected["seen"]
    assert same_weights(found["weights"], expected["weights"])


# Functions that fail


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("kind", "rank", "message"),
    [
        ("raise", 1, "RuntimeError: judge is down"),
        ("string", 1, "ValueError: Reward function 'judge' returned 'good' for completion 4 of 4: a reward must be a"),
        (
            "inf",
            0,
            "ValueError: Reward function 'judge' returned inf for completion 4 of 4: a reward must be a finite",
        ),
    ],
)
def test_a_reward_that_fails_on_one_process_is_told_on_all(played, kind, rank, message):
    assert played.codes(kind) == [1, 1]
    assert max(played.after_first(kind)) < PROMPTLY
    assert message in played.text(kind, rank)
    assert f"RuntimeError: A reward function failed on process {rank}: {message}" in played.text(kind, 1 - rank)


@pytest.mark.multiprocess
def test_a_reward_that_hangs_ends_the_others_when_the_process_group_times_out(played):
    """Who then ends the one that hangs is torchrun; here nobody does, and the worker kills it."""
    first = played.after_first("hang")
    assert played.codes("hang")[0] == 1
    assert "Timed out waiting" in played.text("hang", 0)
    assert played.codes("hang")[1] == -999
    assert first[1] > first[0]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("two functions", "reward_funcs differs between processes: ['judge'] on process 0; ['judge', 'length_reward'"),
        ("another option", "min_rollouts differs between processes: 1 on process 0; 2 on process 1. All processes"),
    ],
)
def test_processes_that_were_set_up_differently_are_refused_on_all(played, kind, message):
    assert played.codes(kind) == [1, 1]
    for rank in (0, 1):
        assert f"ValueError: {message}" in played.text(kind, rank)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing", "TypeError: The `rollout_func` returned None: it must return a dict with prompt_ids"),
        ("empty rows", "ValueError: The `rollout_func` returned a completion without tokens for prompt 1 of "),
    ],
)
def test_generation_that_returns_nothing_is_named_and_the_others_end(played, kind, message):
    assert played.codes(kind) == [1, 1]
    assert max(played.after_first(kind)) < PROMPTLY
    assert message in played.text(kind, 1)
    assert "Connection" in played.text(kind, 0)


def scored(returned: Any, rows: int = 3) -> torch.Tensor:
    """The rewards of a function that returns this, through the trainer's watch on it."""

    def judge(**kwargs: Any) -> Any:
        return returned

    trainer = SimpleNamespace(reward_funcs=[judge], reward_func_names=["judge"])
    with checked_rewards(trainer) as errors:
        values = trainer.reward_funcs[0](prompts=[], completions=[""] * rows)
    assert trainer.reward_funcs == [judge]
    rewards = torch.tensor(values).unsqueeze(1)
    raise_reward_errors(rewards, ["judge"], errors, rank=0)
    return rewards[:, 0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 0.0], "returned 2 rewards for 3 completions"),
        ([[1.0, 0.0, 0.0]], "returned 1 rewards for 3 completions"),
        ([], "returned 0 rewards for 3 completions"),
        (None, "returned None: it must return a list of 3 rewards"),
        (0.5, "returned 0.5: it must return a list"),
        ("110", "returned '110': it must return a list"),
        ({"a": 1, "b": 0, "c": 1}, r"returned \{'a': 1.* it must return a list"),
        ([1.0, "1.0", 0.0], "returned '1.0' for completion 2 of 3"),
        ([1.0, 0.0, float("-inf")], "returned -inf for completion 3 of 3"),
        ([1.0, 0.0, 1e39], r"returned 1e\+39 for completion 3 of 3"),
        ([10**400, 0.0, 0.0], "returned 10+ for completion 1 of 3"),
        ([[1.0, 0.0], 0.0, 0.0], r"returned \[1.0, 0.0\] for completion 1 of 3"),
        ([1j, 0.0, 0.0], "returned 1j for completion 1 of 3"),
        (np.array([1.0, np.inf, 0.0]), "returned inf for completion 2 of 3"),
    ],
)
def test_rewards_that_cannot_be_name_function_value_and_place(returned, message):
    with pytest.raises((TypeError, ValueError), match=f"Reward function 'judge' {message}"):
        scored(returned)


@pytest.mark.parametrize(
    "returned",
    [[1.0, None, 0], (1, float("nan"), False), np.array([1.0, np.nan, 0.0]), torch.tensor([1.0, np.nan, 0.0])],
)
def test_rewards_that_trl_takes_are_taken(returned):
    np.testing.assert_array_equal(scored(returned).numpy(), [1.0, np.nan, 0.0])
    np.testing.assert_array_equal(scored(iter([torch.tensor(1.0), np.float32(2), torch.tensor([3.0])])), [1, 2, 3])


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_rollout_without_reward_is_neither_success_nor_failure(build, missing):
    found: dict[str, list[int]] = {}  # successes and failures by prompt
    asked: list[float | None] = []

    def patchy(completion_ids: list[list[int]], number: list[int], **kwargs: Any) -> list[float | None]:
        values = [(0.0, 1.0, missing)[sum(ids) % 3] for ids in completion_ids]
        for prompt, value in zip(number, values, strict=True):
            counts = found.setdefault(str(prompt), [0, 0])
            if value in (0.0, 1.0):
                counts[value == 0.0] += 1
        asked.extend(values)
        return values

    data = sums_dataset(8)
    data = data.add_column("prompt_id", [str(number) for number in data["number"]])
    trainer = build(AdaRollGRPOTrainer, reward=patchy, dataset=data, rounds=3, belief_decay=1.0, max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer._beliefs.state_dict() == found
    assert 0 < sum(map(sum, found.values())) < len(asked)


def test_a_reward_model_that_overflows_is_named():
    with pytest.raises(ValueError, match="Reward model 'model' returned inf for a completion"):
        raise_reward_errors(torch.tensor([[0.0, 1.0], [0.0, torch.inf]]), ["f", "model"], [], rank=0)


@pytest.mark.parametrize("name", ["sync", "async", "async object"])
def test_a_failing_function_fails_alike_however_it_is_called(build, name):
    async def coroutine(**kwargs: Any) -> list[float]:
        raise RuntimeError("judge is down")

    class Judge:
        __name__ = "judge"

        async def __call__(self, **kwargs: Any) -> list[float]:
            raise RuntimeError("judge is down")

    def plain(**kwargs: Any) -> list[float]:
        raise RuntimeError("judge is down")

    reward = {"sync": plain, "async": coroutine, "async object": Judge()}[name]
    with pytest.raises(RuntimeError, match=r"^judge is down$"):
        build(AdaRollGRPOTrainer, reward=reward, allocator="uniform").train()


def test_a_rollout_func_is_checked_for_what_a_round_needs():
    tokens = {"prompt_ids": [[1]], "completion_ids": [[2]], "logprobs": [[0.0]]}
    assert checked_rollouts(lambda prompts, trainer: tokens)(["p"], None) is tokens
    for returned, message in (
        ([], r"returned \[\]: it must return a dict"),
        ({**tokens, "completion_ids": []}, "returned 0 completions for 1 prompts"),
        ({**tokens, "completion_ids": [[]]}, "completion without tokens for prompt 1 of 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            checked_rollouts(lambda prompts, trainer, returned=returned: returned)(["p"], None)


# Full disks and damaged files


@pytest.mark.multiprocess
def test_a_disk_that_fills_during_a_save_costs_that_checkpoint_only(played):
    assert "File too large" in played.text("full disk", 0)
    assert played.codes("full disk") == [1, 1]
    assert max(played.after_first("full disk")) < PROMPTLY
    assert "checkpoint-2: the run ended while checkpoint-4 was being saved" in played.text("after full disk", 0)
    assert same_weights(played.rank("after full disk")["weights"], played.rank("ours")["weights"])
    assert played.rank("after full disk")["state"] == played.rank("ours")["state"]


@pytest.mark.multiprocess
def test_a_state_file_cut_short_is_named_on_every_process(played):
    assert played.codes("cut") == [1, 1]
    for rank in (0, 1):
        assert "checkpoint-4/adaroll_state.json is damaged: JSONDecodeError" in played.text("cut", rank)
    assert "the run ended while checkpoint-6 was being saved" in played.text("cut", 0)


@pytest.fixture
def small_files() -> Any:
    """A disk on which no file may have more than 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_state_file_that_does_not_fit_leaves_the_old_one(tmp_path, small_files):
    write_json(tmp_path / "state.json", [1])
    with pytest.raises(OSError, match="File too large"):
        write_json(tmp_path / "state.json", list(range(1000)))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert json.loads((tmp_path / "state.json").read_text()) == [1]


def test_a_table_that_does_not_fit_stays_in_memory(tmp_path, small_files):
    with pytest.warns(TableStoreWarning, match="could not be stored .*File too large"):
        found = TableStore(tmp_path).get({"solver": "test"}, lambda: {"x": np.arange(1000)})
    assert found["x"].sum() == 499500
    assert list(tmp_path.iterdir()) == []


def test_a_state_file_on_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("adaroll_trl.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(str(tmp_path / "checkpoint-1"), {"beliefs": {}, "allocator": {}})
    assert list((tmp_path / "checkpoint-1").iterdir()) == []


@pytest.mark.multiprocess
def test_eight_processes_build_a_table_once(played):
    assert played.codes("tables") == [0] * 8
    assert len(list((played.folder / "tables").glob("built*"))) == 1
    assert [path.suffix for path in (played.folder / "tables").glob("test-*")] == [".table"]


def complete(folder: Path) -> Path:
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    return folder


def test_the_newest_complete_checkpoint_is_taken_and_what_is_not_complete_is_named(tmp_path):
    told: list[str] = []
    choose = partial(checkpoint_to_resume, tmp_path, warn=told.append)
    assert choose(None) is choose(False) is choose("false") is None
    with pytest.raises(ValueError, match="has no checkpoint"):
        choose(True)
    (tmp_path / "checkpoint-10").mkdir()
    for name in ("checkpoint-old", "checkpoint-²"):
        complete(tmp_path / name)
    with pytest.raises(ValueError, match="no complete checkpoint: the run ended while checkpoint-10 was being saved"):
        choose(True)
    nine, two = complete(tmp_path / "checkpoint-9"), complete(tmp_path / "checkpoint-2")
    assert told == []
    assert choose(True) == choose("true") == str(nine)
    assert told[0] == f"Resuming from {nine}: the run ended while checkpoint-10 was being saved."
    assert choose(str(two)) == str(two)
    (nine / "trainer_state.json").write_text('{"epoch"')
    with pytest.raises(
        ValueError, match=r"checkpoint-9' is not complete: .*The newest complete one is .*checkpoint-2"
    ):
        choose(str(nine))
    with pytest.raises(ValueError, match="no such folder"):
        choose(str(tmp_path / "checkpoint-3"))


def test_a_checkpoint_that_is_written_again_is_incomplete_until_it_is_whole(tmp_path):
    folder = complete(tmp_path / "checkpoint-4")
    save_state(str(folder), {"beliefs": {}, "allocator": {}})
    assert [path.name for path in folder.iterdir()] == ["adaroll_state.json"]


def checkpoint_of(build: Any, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    options = {"belief_decay": 1.0, "prior_source": "empirical_bayes", "allocator": "cero"}
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    build(AdaRollGRPOTrainer, **options, **saving).train()
    return tmp_path / "checkpoint-3" / "adaroll_state.json", {**options, **saving, "max_steps": 6}


def test_every_part_of_a_state_file_is_checked_before_it_is_used(build, tmp_path):
    path, options = checkpoint_of(build, tmp_path)
    sound = json.loads(path.read_text())
    assert sound["allocator"]["price"] is not None
    trainer = build(AdaRollGRPOTrainer, **options)
    key = next(iter(sound["beliefs"]))
    wrong = [
        ({}, "is damaged: KeyError"),
        ({"beliefs": []}, "beliefs must be counts by prompt"),
        ({"beliefs": {key: [1.0, -1.0]}}, r"beliefs has -1.0 at \[0, 1\]: it must be a number from 0"),
        ({"beliefs": {key: [1.0, float("nan")]}}, r"beliefs has nan at"),
        ({"beliefs": {key: [1.0, 1e300]}}, r"beliefs has 1e\+300 at"),
        ({"beliefs": {key: [1.0, 10**400]}}, "beliefs must be any number x 2 numbers"),
        ({"beliefs": {key: [1.0]}}, f"beliefs of prompt '{key}' must be 2 counts"),
        ({"beliefs": {key: "ab"}}, f"beliefs of prompt '{key}' must be 2 counts"),
        ({"allocator": {"price": 1.0}}, "keeps .* but the checkpoint has .*another allocator"),
        ({"allocator": {**sound["allocator"], "price": -1.0}}, r"price=-1.0 must be a number of at least 0"),
        ({"allocator": {**sound["allocator"], "prompts": {key: [1.0, 2]}}}, "prompts must be any number x 3 numbers"),
        ({"allocator": []}, "cannot be used"),
        ({"calibration": {"bins": [[0.0] * 3] * 11}}, "calibration bins must be 10 x 3 numbers"),
        ({"calibration": {}}, "cannot be used: KeyError"),
        ({"prior": {"visits": [[1, 1, 1]]}}, "prior visits must be any number x 4 numbers"),
        ({"weighting": {**sound["weighting"], "rates": {"density": [1], "believed": [1]}}}, "density must be 32"),
    ]
    for change, message in wrong:
        path.write_text(json.dumps({**sound, **change} if change else {"beliefs": {}}))
        with pytest.raises(ValueError, match=message) as caught:
            trainer._restore(str(path.parent))
        assert str(path) in str(caught.value)
    for text in (
        "",
        '{"beliefs": ',
        "[" * 100_000,
        '"text"',
        "null",
        "1e999",
        '{"beliefs": {}, "allocator": ' + "9" * 5000 + "}",
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"adaroll_state.json is damaged"):
            trainer._restore(str(path.parent))
    path.write_bytes(b"\x80\x04\x95")  # the start of a pickle
    with pytest.raises(ValueError, match=r"adaroll_state.json is damaged: UnicodeDecodeError"):
        trainer._restore(str(path.parent))


# A vLLM server that dies


def test_a_server_that_dies_ends_the_run_and_a_new_one_goes_on_from_the_checkpoint(model_dir, tmp_path, monkeypatch):
    from tests.compatibility import adaptive
    from tests.standin import StandInServer, pretend_vllm

    class Dying(StandInServer):
        """Ends in the middle of the answer to its `life`-th request for completions."""

        life = 10**9
        answered: dict[tuple[int, ...], int]  # how often each prompt was asked for before the last request

        def __init__(self) -> None:
            super().__init__()
            self._server.handle_error = lambda *args: None  # type: ignore[method-assign]

        def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
            self.life -= 1
            if self.life == 0:
                self.answered = dict(self._numbers._asked)
            elif self.life < 0:
                threading.Thread(target=self.__exit__).start()
                raise ConnectionAbortedError  # in the handler's thread: the client sees its connection end
            return super()._complete(body)

    pretend_vllm(partial(monkeypatch.setattr, raising=False))
    saving = {"save_strategy": "steps", "save_steps": 2, "belief_decay": 1.0, "max_steps": 6}

    def make(server: StandInServer) -> Any:
        mode = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url}
        trainer = adaptive(model_dir, tmp_path, **mode, **saving)
        for adapter in trainer.vllm_generation.vllm_client.session.adapters.values():
            adapter.max_retries.backoff_factor = 0.01  # of TRL's: 2, which is about a minute in all
        return trainer

    with StandInServer() as server:
        whole = make(server)
        whole.train()
        a_batch = len(server.generations) // 3
    for folder in tmp_path.glob("checkpoint-*"):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    with Dying() as dying:
        first = make(dying)
        dying.life = a_batch + 1  # in the second batch, after a round of it has been scored
        with pytest.raises(OSError, match=r"Max retries exceeded|Connection"):
            first.train()
    assert first.state.global_step == 2
    with StandInServer() as server:
        server._numbers._asked = dying.answered  # from the checkpoint on it says what the first server would have said
        second = make(server)
        second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 6
    assert sum(map(sum, second._beliefs.state_dict().values())) == 3 * 16, "each rollout once"
    assert second._beliefs.state_dict() == whole._beliefs.state_dict()
    assert same_weights(weights(second), weights(whole))
