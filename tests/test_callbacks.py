"""Callbacks: events inside a batch, the round in the progress bar, tables, histograms, and advice in due time."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from transformers.trainer_callback import ProgressCallback

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.callbacks import (
    AdviceCallback,
    AllocationCallback,
    AllocationTableCallback,
    HistogramCallback,
    RoundProgressCallback,
)
from adaroll_trl.callbacks.advice import prompts_per_step
from adaroll_trl.callbacks.round_costs import RoundCosts
from tests.tiny import parity_reward, sums_dataset


class Follow(AllocationCallback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, int]] = []
        self.batches: list[Any] = []

    def on_round_begin(self, args: Any, state: Any, control: Any, *, batch: Any, **kwargs: Any) -> None:
        self.rounds.append((len(batch.rounds) + 1, len(batch.rounds) + batch.rounds_left))

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: Any, **kwargs: Any) -> None:
        self.batches.append(batch)


class Bar:
    """Stands for tqdm's bar."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def set_postfix_str(self, text: str) -> None:
        self.shown.append(text)


def test_a_run_tells_of_rounds_and_batches(build, monkeypatch):
    """One short run: events, the bar, the table, and histograms in the reporters' own calls."""
    follow, progress, out = Follow(), ProgressCallback(), io.StringIO()
    table = AllocationTableCallback(Console(file=out, width=120))
    trainer = build(
        AdaRollGRPOTrainer,
        rounds=3,
        max_steps=3,
        gradient_accumulation_steps=3,
        trainer_kwargs={"callbacks": [follow, progress, table, HistogramCallback()]},
    )
    sent: list[tuple[str, str, int, Any]] = []
    for reporter in fake_reporters(sent):
        trainer.callback_handler.callbacks.append(reporter)
    bar = Bar()
    monkeypatch.setattr(ProgressCallback, "on_train_begin", lambda self, *args, **kwargs: None)
    for event in ("on_step_end", "on_log", "on_train_end"):
        monkeypatch.setattr(ProgressCallback, event, lambda self, *args, **kwargs: None)
    progress.training_bar = bar
    trainer.train()

    assert follow.rounds == [(1, 3), (2, 3), (3, 3)] * 3
    assert bar.shown == ["round 1/3", "round 2/3", "round 3/3", ""] * 3
    assert [int(batch.rollouts.sum()) for batch in follow.batches] == [12] * 3
    assert out.getvalue().count("share of rollouts") == 3
    assert "step 2: 3 prompts, 12 rollouts in 3 rounds" in out.getvalue()
    for kind in ("tensorboard", "wandb", "trackio"):
        mine = [(name, step) for one, name, step, _ in sent if one == kind]
        assert mine == [
            (f"train/adaroll/hist/{name}", step)
            for step in (1, 2, 3)
            for name in ("rollouts_per_prompt", "success_rates")
        ]
    rollouts = [values for one, name, _, values in sent if one == "wandb" and name.endswith("rollouts_per_prompt")]
    assert [values.tolist() for values in rollouts] == [batch.rollouts.tolist() for batch in follow.batches]


def test_the_bar_shows_no_round_where_a_batch_is_one():
    bar, progress, callback = Bar(), ProgressCallback(), RoundProgressCallback()
    progress.training_bar = bar
    for before, left in ((0, 1), (0, 2), (1, 1)):
        batch: Any = SimpleNamespace(rounds=[None] * before, rounds_left=left)
        callback.on_round_begin(None, None, None, batch=batch, callbacks=[progress])
    assert bar.shown == ["round 1/2", "round 2/2"]


def fake_reporters(sent: list[tuple[str, str, int, Any]]) -> list[Any]:
    """transformers' callbacks around stand-ins for the three libraries, which are not installed here."""

    class Library:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def Histogram(self, values: Any) -> Any:
            return SimpleNamespace(values=values)

        def log(self, entry: dict[str, Any]) -> None:
            step = entry.pop("train/global_step")
            ((name, histogram),) = entry.items()
            sent.append((self.kind, name, step, histogram.values))

    class Writer:
        def add_histogram(self, name: str, values: Any, step: int) -> None:
            sent.append(("tensorboard", name, step, values))

    reporters = []
    for kind, library in (
        (TensorBoardCallback, "tensorboard"),
        (WandbCallback, "wandb"),
        (TrackioCallback, "trackio"),
    ):
        silent = type("Silent", (kind,), {name: _nothing for name in dir(kind) if name.startswith("on_")})
        reporter = silent.__new__(silent)  # without the library
        reporter.tb_writer = Writer()
        reporter._wandb = reporter._trackio = Library(library)
        reporters.append(reporter)
    return reporters


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None: ...


def test_every_trainer_has_the_progress_and_the_advice_once(build):
    mine = AdviceCallback()
    callbacks = build(AdaRollGRPOTrainer, trainer_kwargs={"callbacks": [mine]}).callback_handler.callbacks
    assert [one for one in callbacks if isinstance(one, AdviceCallback)] == [mine]
    assert sum(isinstance(one, RoundProgressCallback) for one in callbacks) == 1


def test_rows_of_an_evaluation_have_no_group_in_the_completions_table(build, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    trainer = build(
        AdaRollGRPOTrainer,
        max_steps=2,
        gradient_accumulation_steps=3,
        log_completions=True,
        num_completions_to_print=0,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
        num_generations_eval=1,
        trainer_kwargs={"eval_dataset": sums_dataset(4)},
    )
    trainer.train()
    last = parquet.ParquetFile(tmp_path / "completions" / "completions_00002.parquet").read()
    assert last.column("group")[-4:].to_pylist() == [None] * 4
    assert last.column("group")[:-4].null_count == 0


# Advice


ARGS = SimpleNamespace(
    generation_batch_size=128,
    num_generations=8,
    steps_per_generation=4,
    gradient_accumulation_steps=4,
    num_iterations=1,
    success_threshold=None,
    belief_decay=0.5,
    max_rollouts=96,
)
HEALTHY = {
    "reward": 0.4,
    "reward_std": 0.3,
    "adaroll/frac_prompts_mixed": 0.6,
    "adaroll/frac_prompts_all_wrong": 0.3,
    "adaroll/frac_prompts_all_correct": 0.1,
    "adaroll/rollouts_per_prompt/max": 24.0,
    "adaroll/rollouts_per_prompt/mean": 8.0,
    "adaroll/calibration/predicted": 0.45,
    "adaroll/calibration/realised": 0.4,
    "adaroll/calibration/ece": 0.05,
    "adaroll/utility/realised": 0.6,
    "adaroll/utility/uniform": 0.5,
}


def advice_after(
    steps: int, *, args: Any = ARGS, callback: AdviceCallback | None = None, **logged: float
) -> list[str]:
    """What is warned of in a run that logs this at each step; 16 prompts a step."""
    given: list[str] = []
    callback = callback or AdviceCallback(given.append)
    callback._warn = given.append
    logs = {**HEALTHY, **{name.replace("__", "/"): value for name, value in logged.items()}}
    for step in range(1, steps + 1):
        callback.on_log(args, SimpleNamespace(global_step=step, is_world_process_zero=True), None, logs=dict(logs))
    return given


def test_a_healthy_run_gets_no_advice():
    assert advice_after(50) == []


@pytest.mark.parametrize(
    ("logged", "says"),
    [
        (
            {"adaroll__frac_prompts_mixed": 0.1, "adaroll__frac_prompts_all_wrong": 0.85},
            ["Only 10% of the last 208 prompts", "85% all wrong, 10% all right", "easier prompts"],
        ),
        (
            {"adaroll__frac_prompts_mixed": 0.2, "adaroll__frac_prompts_all_correct": 0.7},
            ["Only 20%", "Most are too easy", "harder prompts"],
        ),
        (
            {"adaroll__frac_prompts_mixed": 0.0, "adaroll__frac_prompts_all_wrong": 1.0},
            ["No rollout of the last 208 prompts reached success_threshold=0.5", "mean is 0.4", "Lower"],
        ),
        (
            {
                "adaroll__frac_prompts_mixed": 0.0,
                "adaroll__frac_prompts_all_wrong": 0.0,
                "adaroll__frac_prompts_all_correct": 1.0,
            },
            ["Every rollout", "Raise `success_threshold`"],
        ),
        ({"adaroll__calibration__ece": 0.2}, ["calibration error is 0.20", "Lower `belief_decay` (now 0.5)"]),
        (
            {"adaroll__calibration__predicted": 0.7},
            ["predicted 0.70 successes", "0.40 came", "prior_source='empirical_bayes'"],
        ),
        (
            {"adaroll__rollouts_per_prompt__max": 64.0},
            ["One prompt takes 50% of a batch's rollouts", "64 of 128", "`max_rollouts` (now 96)"],
        ),
    ],
)
def test_advice_comes_once_with_the_number_the_reason_and_what_to_turn(logged, says):
    (message,) = advice_after(60, **logged)
    assert all(words in message for words in says), message


def test_advice_under_a_plain_config_names_the_decay_that_holds():
    plain = SimpleNamespace(**{name: value for name, value in vars(ARGS).items() if name != "belief_decay"})
    (message,) = advice_after(60, args=plain, adaroll__calibration__ece=0.2)
    assert "`belief_decay` (now 0.7)" in message


def test_advice_waits_for_evidence():
    assert advice_after(12, adaroll__frac_prompts_mixed=0.0) == []  # 192 prompts
    assert len(advice_after(13, adaroll__frac_prompts_mixed=0.0)) == 1
    assert prompts_per_step(ARGS) == 16


def test_advice_is_of_the_latest_prompts():
    callback = AdviceCallback()
    assert advice_after(30, callback=callback) == []
    later = SimpleNamespace(**vars(ARGS))
    found = []
    for step in range(31, 60):
        logs = {**HEALTHY, "adaroll/frac_prompts_mixed": 0.0}
        callback._warn = found.append
        callback.on_log(later, SimpleNamespace(global_step=step, is_world_process_zero=True), None, logs=logs)
    assert len(found) == 1


def test_other_processes_and_evaluations_stay_quiet():
    given: list[str] = []
    callback = AdviceCallback(given.append)
    for step in range(1, 60):
        state = SimpleNamespace(global_step=step, is_world_process_zero=step % 2 == 0)
        logs = {"eval_reward": 0.1} if step % 2 == 0 else {**HEALTHY, "adaroll/frac_prompts_mixed": 0.0}
        callback.on_log(ARGS, state, None, logs=logs)
    assert given == []


def test_a_plain_grpo_run_is_told_of_missing_signal():
    given: list[str] = []
    callback = AdviceCallback(given.append)
    for step in range(1, 20):
        state = SimpleNamespace(global_step=step, is_world_process_zero=True)
        callback.on_log(ARGS, state, None, logs={"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 0.9})
    assert len(given) == 1
    assert "Only 10% of the last 208 prompts" in given[0]


def run_rounds(costs: RoundCosts, now: list[float], sizes: list[int], fixed: float, per_rollout: float) -> None:
    """One batch on a clock of its own: its rounds, and 10 seconds of training."""
    batch = SimpleNamespace(rounds=[], seconds=0.0)
    for size in sizes:
        costs.round_begins(batch)  # type: ignore[arg-type]
        now[0] += fixed + per_rollout * size
        batch.rounds.append(SimpleNamespace(rows=size))
    costs.batch_ends(batch)  # type: ignore[arg-type]
    now[0] += 10.0


def test_what_a_round_costs_is_told_from_rounds_of_several_sizes():
    now = [0.0]
    costs = RoundCosts(lambda: now[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        run_rounds(costs, now, [64, *rng.multinomial(64, [0.2, 0.3, 0.5]).tolist()], fixed=5.0, per_rollout=0.05)
    found = costs.estimate()
    assert found is not None
    assert found.fixed == pytest.approx(5.0)
    period = 10 + 4 * 5.0 + 128 * 0.05
    assert found.period == pytest.approx(period)
    assert found.slowdown == pytest.approx(period / (period - 15))


def test_rounds_of_one_size_and_single_rounds_are_not_judged():
    for sizes in ([32, 32, 32, 32], [128]):
        now = [0.0]
        costs = RoundCosts(lambda now=now: now[0])
        for _ in range(20):
            run_rounds(costs, now, sizes, fixed=5.0, per_rollout=0.05)
        assert costs.estimate() is None


@pytest.mark.parametrize(("fixed", "advised"), [(5.0, True), (0.5, False)])
def test_rounds_that_cost_more_than_they_bring(fixed, advised):
    now = [0.0]
    callback = AdviceCallback()
    callback._costs = RoundCosts(lambda: now[0])
    for _ in range(20):
        run_rounds(callback._costs, now, [64, 12, 20, 32], fixed=fixed, per_rollout=0.05)
    found = advice_after(30, callback=callback)
    assert len(found) == advised
    if advised:
        assert "4 rounds make a batch about 1.70 times as long" in found[0]
        assert "its utility is 1.20 times what beliefs expect of equal groups" in found[0]
        assert "Lower `rounds`" in found[0]


def test_nothing_is_said_of_time_while_beliefs_disagree_with_outcomes():
    now = [0.0]
    callback = AdviceCallback()
    callback._costs = RoundCosts(lambda: now[0])
    for _ in range(20):
        run_rounds(callback._costs, now, [64, 12, 20, 32], fixed=5.0, per_rollout=0.05)
    wrong = {"adaroll/calibration/predicted": 0.5, "adaroll/calibration/realised": 0.2}
    (found,) = advice_after(30, callback=callback, **wrong)
    assert found.startswith("The prior disagrees with outcomes")
    callback.on_train_begin(ARGS, SimpleNamespace(global_step=0), None)
    assert advice_after(30, callback=callback)[0].startswith("The rounds cost more time")


def test_advice_in_a_real_run(build):
    """Rewards that never reach the default threshold: told once, by the trainer itself."""

    def low(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [0.3 * value for value in parity_reward([], completion_ids)]

    trainer = build(
        AdaRollGRPOTrainer,
        reward=low,
        per_device_train_batch_size=64,
        steps_per_generation=1,
        num_generations=2,
        min_rollouts=1,
        max_completion_length=4,
        max_steps=8,
    )
    with pytest.warns(UserWarning, match="No rollout of the last 224 prompts reached success_threshold=0.5") as caught:
        trainer.train()
    assert sum("No rollout of the last" in str(one.message) for one in caught) == 1
