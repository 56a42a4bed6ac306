"""Rollouts decided one by one inside one generation call: what must hold on every backend, and after every fault.

vLLM is stood in for here (`tests/standin.py`): in the process an engine that runs requests side by side, a token a
step, and a server over real HTTP. Continuous batching is transformers' own. A real vLLM is in `tests/test_vllm.py`.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError
from transformers import AutoModelForCausalLM
from transformers.generation.continuous_batching import ContinuousBatchingManager
from trl import GRPOTrainer

if Version(version("trl")) < Version("1.16"):
    pytest.skip("the stand-in server speaks the protocol of TRL 1.16's client", allow_module_level=True)

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.allocators import AllocationState
from adaroll_trl.callbacks import AdviceCallback, AllocationCallback, round_costs
from adaroll_trl.streaming import continuous
from adaroll_trl.streaming.checks import check_streaming
from adaroll_trl.streaming.engine import Engine
from adaroll_trl.streaming.loop import Ledger, stream_rollouts
from adaroll_trl.streaming.rollout import Rollout
from adaroll_trl.streaming.scoring import Scorer
from adaroll_trl.streaming.seams import StreamedBatch
from adaroll_trl.streaming.vllm_server import VLLMServer
from tests.compatibility import BUDGET, GROUP, PROMPTS, adaptive, ids_parity, number_in, parity
from tests.standin import StandInLLM, StandInServer, answer
from tests.test_equivalence import assert_same
from tests.test_vllm_standin import check_output
from tests.tiny import (
    HardestFirst,
    RandomCounts,
    RecordingTrainer,
    build_lively_model_dir,
    completions_of,
    make_trainer,
    prompts_of,
    sums_dataset,
    weights,
)

SMALL_CACHE = {"num_blocks": 64, "max_batch_tokens": 128}  # the default takes much of the machine
CONTINUOUS = {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": SMALL_CACHE}
COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}


def server_options(server: StandInServer) -> dict[str, Any]:
    return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": server.url}


@pytest.fixture
def make(model_dir: Path, tmp_path: Path) -> Any:
    """Builds a streaming trainer on batches of 4 prompts and 16 rollouts, 3 in flight, that gives all to the worst."""

    def build(**options: Any) -> Any:
        defaults = {"stream_rollouts": True, "in_flight": 3, "rounds": 4, "allocator": "tests.tiny:HardestFirst"}
        where = options.pop("model_dir", model_dir)
        return adaptive(where, tmp_path, **{**defaults, "use_vllm": True, **options})

    return build


@pytest.fixture(params=["colocate", "server", "continuous"])
def backend(request: Any, sent: Any) -> Iterator[dict[str, Any]]:
    if request.param == "server":
        with StandInServer() as server:
            yield server_options(server)
    else:
        yield COLOCATE if request.param == "colocate" else {"use_vllm": False, **CONTINUOUS}


class Counted:
    """`parity`, with how many completions it was asked about, by call."""

    __name__ = "counted"

    def __init__(self, seconds: float = 0.0, fail_at: int | None = None) -> None:
        self.sizes: list[int] = []
        self.seconds, self.fail_at = seconds, fail_at

    def __call__(self, completion_ids: list[list[int]], log_extra: Any, log_metric: Any, **columns: Any) -> Any:
        self.sizes.append(len(completion_ids))
        if self.fail_at is not None and sum(self.sizes) >= self.fail_at:
            raise ZeroDivisionError("the judge is out")
        time.sleep(self.seconds)
        log_extra("first token", [ids[0] for ids in completion_ids])
        log_metric("mean length", sum(map(len, completion_ids)) / len(completion_ids))
        return parity(
            completion_ids=completion_ids, **{key: columns[key] for key in ("prompts", "completions", "number")}
        )


def test_what_must_hold_on_every_backend(make, backend):
    reward = Counted()
    trainer = make(reward=reward, **backend)
    start = weights(trainer)
    trainer.train()
    assert len(trainer.recorded) == 2
    sizes = []
    for inputs, output in trainer.recorded:
        prompts = prompts_of(output)
        assert len(prompts) == len(inputs) == BUDGET
        sizes.append(Counter(prompts))
        assert len(sizes[-1]) == PROMPTS
        rewards = torch.tensor([ids_parity(ids) for ids in completions_of(output)])
        for prompt in sizes[-1]:  # advantages are those of the prompt's own group
            rows = [row for row, other in enumerate(prompts) if other == prompt]
            expected = rewards[rows] - rewards[rows].mean()
            if len(rows) > 1:
                expected = expected / (rewards[rows].std() + 1e-4)
            torch.testing.assert_close(output["advantages"][rows], expected, rtol=1e-4, atol=1e-4)
    assert any(max(size.values()) > GROUP for size in sizes)
    assert sum(reward.sizes) == 2 * BUDGET  # each completion is scored once
    logs = trainer._logs
    table = [
        logs["prompt"],
        logs["completion"],
        logs["advantages"],
        *logs["rewards"].values(),
        *logs["extra"].values(),
    ]
    assert {len(column) for column in table} == {BUDGET}
    _, output = trainer.recorded[-1]
    assert list(logs["extra"]["first token"]) == [ids[0] for ids in completions_of(output)]
    assert list(logs["rewards"]["counted"]) == [ids_parity(ids) for ids in completions_of(output)]
    assert list(logs["extra"]["group"]) == sorted(logs["extra"]["group"])
    log = [entry for entry in trainer.state.log_history if "adaroll/stream/in_flight" in entry]
    assert [entry["adaroll/stream/in_flight"] for entry in log] == [3, 3]
    assert all(entry["adaroll/rounds"] == 1 for entry in log)
    lengths = [len(ids) for ids in completions_of(output)]
    assert log[-1]["mean length"] == pytest.approx(sum(lengths) / BUDGET)  # of calls of different sizes
    assert any(not torch.equal(weights(trainer)[name], value) for name, value in start.items())


class Flipping(RecordingTrainer):
    """A user's subclass that makes something else of what the reward functions say."""

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        return 1 - super()._calculate_rewards(*args)


@pytest.mark.parametrize("streams", [True, False])
def test_rewards_that_a_subclass_changes_are_those_that_count(make, backend, streams):
    options = {"allocator": "adaroll", "belief_decay": 1.0, "stream_rollouts": streams, "max_steps": 2}
    trainer = make(trainer_class=Flipping, **options, **backend)
    trainer.train()
    ((_, output),) = trainer.recorded
    rewards = [1 - ids_parity(ids) for ids in completions_of(output)]
    assert list(trainer._logs["rewards"]["parity"]) == rewards
    groups: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts_of(output)):
        groups.setdefault(prompt, []).append(row)
    mixed = [rows for rows in groups.values() if len({rewards[row] for row in rows}) == 2]
    assert mixed
    for row in (row for rows in mixed for row in rows):
        assert (output["advantages"][row] > 0) == (rewards[row] == 1)
    assert sum(successes for successes, _ in trainer._beliefs.state_dict().values()) == sum(rewards)


@pytest.mark.parametrize("dataset", ["conversational", "plain"])
def test_rows_and_requests_in_the_process(make, sent, dataset):
    trainer = make(**COLOCATE, max_steps=4, dataset=sums_dataset(48, plain=dataset == "plain"))
    trainer.train()
    engine = StandInLLM.last.llm_engine
    for _, output in trainer.recorded:
        check_output(output)
    assert engine.most_at_once == 3
    steps = [log["adaroll/stream/engine_steps"] for log in trainer.state.log_history if "adaroll/rounds" in log]
    assert sum(steps) == engine.steps
    assert not [call for call in StandInLLM.last.calls if call.startswith("generate")]


def test_rows_and_requests_with_a_server(make, sent):
    with StandInServer(seconds=0.005) as server:
        trainer = make(**server_options(server), max_steps=4)
        trainer.train()
    for _, output in trainer.recorded:
        check_output(output)
    assert len(server.generations) == 2 * BUDGET
    assert all(body["n"] == 1 and len(body["prompt"]) == 1 for body in server.generations)
    assert server.most_at_once == 3


def test_a_server_that_mixes_rows_up_is_seen(make, sent):
    """The control of `check_output`: another prompt's answer in a row."""
    other = {"prompt": None}

    def swapped(prompt: Any, number: int, max_tokens: int) -> list[int]:
        source, other["prompt"] = other["prompt"] or prompt, prompt
        return answer(source, number, max_tokens)

    with StandInServer(swapped) as server:
        trainer = make(**server_options(server), max_steps=1, in_flight=1)
        trainer.train()
    with pytest.raises(AssertionError):
        check_output(trainer.recorded[0][1])


def test_continuous_batching_answers_its_own_prompts(make, sent, tmp_path):
    """With top_k=1 a prompt has one answer, which plain generation gives as well."""
    model_dir = build_lively_model_dir(tmp_path / "lively")
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    trainer = make(use_vllm=False, **CONTINUOUS, top_k=1, max_steps=1, model_dir=model_dir)
    trainer.train()
    (_, output) = trainer.recorded[0]
    model.eval()
    found = {}
    for prompt, completion in zip(prompts_of(output), completions_of(output), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        assert completion == expected[0, len(prompt) :].tolist()[: len(completion)]
        found[prompt] = tuple(completion)
    assert len(set(found.values())) == PROMPTS  # another row's answer would be seen


@pytest.mark.parametrize("name", ["colocate", "server"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_uniform_is_grpo(sent, model_dir, tmp_path, name, loss_type):
    """The k-th completion of a prompt is the same in both, so weights and metrics must be, bit for bit."""

    def train(trainer_class: type, **options: Any) -> Any:
        with StandInServer() as server:
            where = COLOCATE if name == "colocate" else server_options(server)
            common = {"loss_type": loss_type, "max_steps": 6, "reward": [parity, Counted()], **where, **options}
            trainer = make_trainer(trainer_class, model_dir=model_dir, output_dir=tmp_path, **common)
            trainer.train()
        return trainer

    plain = train(GRPOTrainer, plain_config=True)
    in_flight = 5 if name == "colocate" else 1  # one after another, so that the server sees them in order
    ours = train(AdaRollGRPOTrainer, allocator="uniform", stream_rollouts=True, in_flight=in_flight)
    for history in (plain.state.log_history, ours.state.log_history):
        for log in history:  # a mean over calls of equal size there, weighted by their size here
            log.pop("mean length", None)
    assert_same(plain, ours)


def test_callbacks_are_told_of_a_stream_as_of_one_round(make, sent):
    told: list[tuple[str, int, int, int]] = []

    class Follow(AllocationCallback):
        def on_round_begin(self, args: Any, state: Any, control: Any, *, batch: Any, **kwargs: Any) -> None:
            told.append(("round", len(batch.rounds), batch.rounds_left, batch.left))

        def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: Any, **kwargs: Any) -> None:
            told.append(("batch", len(batch.rounds), batch.rounds_left, batch.left))

    trainer = make(**COLOCATE, max_steps=24, steps_per_generation=2, trainer_kwargs={"callbacks": [Follow()]})
    (advice,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, AdviceCallback)]
    trainer.train()
    assert told == [("round", 0, 1, BUDGET), ("batch", 1, 0, 0)] * 12
    assert len(advice._costs._rounds) == 12 - round_costs.IGNORED  # each is timed, and
    assert advice._costs.estimate() is None  # of one round nothing is said


def test_the_default_is_an_eighth_in_flight(make, sent):
    trainer = make(**COLOCATE, in_flight=None, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["adaroll/stream/in_flight"] == BUDGET / 8
    trainer = make(**COLOCATE, in_flight=100, max_steps=1)
    StandInLLM.last.llm_engine.vllm_config.scheduler_config.max_num_seqs = 5
    trainer.train()
    assert trainer.state.log_history[0]["adaroll/stream/in_flight"] == 5  # more than the engine runs would only queue


# Order


class Shuffled(Engine):
    """Ends its requests in any order, with lengths that tell how each will be rewarded."""

    def __init__(self, seed: int) -> None:
        self.random, self.open = random.Random(seed), list[str]()

    def submit(self, name: str, prompt: int) -> None:
        self.open.append(name)

    def poll(self, wait: bool) -> list[tuple[str, list[int], Any]]:
        self.random.shuffle(self.open)
        ended = [self.open.pop() for _ in range(self.random.randrange(len(self.open) + 1))]
        return [(name, [0], None) for name in ended]

    def abort(self) -> None:
        self.open.clear()


def decisions(seed: int, in_flight: int, in_order: bool) -> tuple[list[str], list[float]]:
    """What was generated of 6 prompts, and the beliefs at the time."""
    state = AllocationState(np.zeros(6), np.zeros(6), min_rollouts=1, max_rollouts=12)

    def score(rollouts: list[Rollout]) -> None:
        for rollout in rollouts:  # a rollout's outcome is its own, whenever it ends
            rollout.outcome = float(random.Random(f"{rollout.prompt} {rollout.sample}").random() < rollout.prompt / 6)

    ledger = Ledger(HardestFirst().stream(state, 36, in_flight), "hardest_first", state)
    streamed = stream_rollouts(Shuffled(seed), Scorer(score), ledger, 36, in_flight, in_order)
    assert ledger.successes.sum() + ledger.failures.sum() == 36, "the policy hears of every rollout"
    return [rollout.name for rollout in streamed.rollouts], [rollout.belief_mean for rollout in streamed.rollouts]


@given(st.integers(0, 10**6), st.integers(1, 36))
@settings(max_examples=30, deadline=None)
def test_in_order_of_start_no_decision_depends_on_lengths_or_time(seed, in_flight):
    assert decisions(seed, in_flight, in_order=True) == decisions(0, in_flight, in_order=True)


def test_in_order_of_the_end_they_do():
    assert len({tuple(decisions(seed, 6, in_order=False)[0]) for seed in range(10)}) > 1


def test_the_order_of_start_in_a_trainer(make, backend):
    trainer = make(stream_order="start", max_steps=2, **backend)
    trainer.train()
    (_, output) = trainer.recorded[0]
    assert len(output["advantages"]) == BUDGET
    if trainer.use_vllm:
        check_output(output)


# Slow rewards


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_slow_rewards_do_not_stop_the_engine(make, sent, kind):
    steps_during_rewards = []

    def look() -> int:
        return StandInLLM.last.llm_engine.steps

    def slow(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        before = look()
        time.sleep(0.15)
        steps_during_rewards.append(look() - before)
        return [ids_parity(ids) for ids in completion_ids]

    async def slow_async(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        before = look()
        await asyncio.sleep(0.15)
        steps_during_rewards.append(look() - before)
        return [ids_parity(ids) for ids in completion_ids]

    trainer = make(**COLOCATE, reward=slow if kind == "sync" else slow_async, in_flight=4, max_steps=1)
    trainer.train()
    check_output(trainer.recorded[0][1])
    assert sum(steps_during_rewards) > 0
    assert len(steps_during_rewards) < BUDGET  # what ended meanwhile was scored together


def test_rewards_are_waited_for_where_nothing_is_known(make, sent):
    """No more than twice `in_flight` rollouts are ever decided without a score."""
    unscored, most = [0], [0]

    class Watched(HardestFirst):
        def stream(self, state, budget, in_flight):
            inner = super().stream(state, budget, in_flight)
            decide, record = inner.next_prompt, inner.record

            def next_prompt():
                unscored[0] += 1
                most[0] = max(most[0], unscored[0])
                return decide()

            def recorded(prompt, success):
                unscored[0] -= 1
                record(prompt, success)

            inner.next_prompt, inner.record = next_prompt, recorded
            return inner

    trainer = make(**COLOCATE, reward=Counted(seconds=0.1), max_steps=1)
    trainer.allocator = Watched()
    trainer.train()
    assert 3 < most[0] <= 6
    assert unscored[0] == 0


# Faults


STREAM_THREADS = ("adaroll-scorer", "adaroll-stream", "_run_generation_loop")  # ours, and continuous batching's


def threads_of_streams() -> list[str]:
    """Those that are left once what they were at has had time to end."""
    end = time.monotonic() + 5
    while names := [thread.name for thread in threading.enumerate() if any(map(thread.name.count, STREAM_THREADS))]:
        if time.monotonic() > end:
            return names
        time.sleep(0.01)
    return []


def check_aftermath(trainer: Any) -> None:
    """What must hold after a fault that has gone: engine empty, no thread left, and training works."""
    assert not threads_of_streams()
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        assert not StandInLLM.last.llm_engine.running
    source = getattr(trainer, "vllm_generation", None) or trainer.accelerator.unwrap_model(trainer.model)
    assert not {"generate", "generate_batch"} & set(vars(source)), "something stayed replaced"
    before = len(getattr(trainer, "recorded", []))
    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps
    assert len(trainer.recorded) > before
    for _, output in trainer.recorded[before:]:
        assert len(output["advantages"]) == BUDGET
        if trainer.use_vllm:
            check_output(output)


def test_a_reward_that_raises(make, backend):
    reward = Counted(fail_at=7)
    trainer = make(reward=reward, max_steps=1, **backend)
    with pytest.raises(ZeroDivisionError, match="the judge is out"):
        trainer.train()
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        engine = StandInLLM.last.llm_engine
        assert engine.aborted
    reward.fail_at = None
    check_aftermath(trainer)


@pytest.mark.parametrize("failure", [RuntimeError("EngineCore died"), KeyboardInterrupt()])
def test_an_engine_that_dies_and_an_interrupt(make, sent, failure):
    trainer = make(**COLOCATE)
    engine = StandInLLM.last.llm_engine
    engine.fail_at, engine.failure = 6, failure
    with pytest.raises(type(failure)):
        trainer.train()
    engine.fail_at = None
    check_aftermath(trainer)


def test_a_lost_request_is_named(make, sent):
    trainer = make(**COLOCATE, in_flight=1)
    StandInLLM.last.llm_engine.lose_at = 5
    with pytest.raises(RuntimeError, match=r"vLLM has no request left, but .* have not come back"):
        trainer.train()
    StandInLLM.last.llm_engine.lose_at = None
    check_aftermath(trainer)


def test_a_request_that_continuous_batching_loses_is_named(make, monkeypatch):
    """Its manager lives on, and would be waited for without end."""
    add, asked = ContinuousBatchingManager.add_request, list[str]()

    def losing(manager: Any, ids: list[int], request_id: str, **options: Any) -> str | None:
        asked.append(request_id)
        return request_id if len(asked) == 5 else add(manager, ids, request_id=request_id, **options)

    monkeypatch.setattr(ContinuousBatchingManager, "add_request", losing)
    monkeypatch.setattr(continuous, "LOST", 0.5)
    trainer = make(use_vllm=False, **CONTINUOUS, max_steps=1)
    with pytest.raises(
        RuntimeError, match=r"Continuous batching has no request left, but .* have not come back"
    ) as told:
        trainer.train()
    assert asked[4] in str(told.value)
    check_aftermath(trainer)


class Manager:
    """Stands for transformers' manager: alive, with a queue and a batch that are as they are set."""

    def __init__(self) -> None:
        self.input_queue: SimpleQueue[str] = SimpleQueue()
        self.pending, self.current_batch = False, 0
        self.batch_processor: Any = SimpleNamespace(has_pending_requests=lambda: self.pending)

    def add_request(self, ids: list[int], request_id: str, **options: Any) -> str:
        return request_id

    def get_result(self, timeout: float) -> None:
        time.sleep(0.01)

    def is_running(self) -> bool:
        return True


@pytest.mark.parametrize("state", ["nothing to do", "not scheduled", "hangs", "setting up", "works"])
def test_how_long_continuous_batching_is_waited_for(monkeypatch, state):
    manager = Manager()
    monkeypatch.setattr(continuous, "_manager_of", lambda *args: nullcontext(manager))
    monkeypatch.setattr(continuous, "LOST", 0.1)
    monkeypatch.setattr(continuous, "STALLED", 0.3)
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=1))
    engine = continuous.ContinuousBatching(model, {0: [5]}, {}, in_flight=1)
    time.sleep(0.4)  # in which nothing was asked for
    engine.submit("0-0", 0)
    manager.pending = state in ("hangs", "works")
    if state == "not scheduled":
        manager.input_queue.put("0-0")
    if state == "setting up":
        manager.batch_processor = None
    start = time.monotonic()

    def poll() -> float:
        while time.monotonic() < start + 1:
            manager.current_batch += state == "works"
            assert engine.poll(wait=True) == []
        return time.monotonic() - start

    if state == "works":
        assert poll() >= 1
        return
    expected, most = ("no request left, but", 0.25) if state == "nothing to do" else ("no step for 0.3 seconds", 0.9)
    with pytest.raises(RuntimeError, match=rf"Continuous batching has .*{expected}.*\['0-0'\] have not come back"):
        poll()
    assert time.monotonic() - start < most


def test_a_server_that_refuses(make, server):
    trainer = make(**server_options(server))
    server.fail_from = 5
    with pytest.raises(Exception, match="Request failed: 404"):
        trainer.train()
    server.fail_from = None
    check_aftermath(trainer)


def test_a_server_that_cannot_be_reached_any_more(make, sent):
    """Its port refuses connections from the middle of a batch on, until the server is back."""
    with StandInServer(seconds=0.01) as server:
        trainer = make(**server_options(server), max_steps=1)
        client = trainer.vllm_generation.vllm_client
        client.session.mount("http://", HTTPAdapter(max_retries=0))  # TRL's own wait for a minute

        def dying(completion_ids: list[list[int]], **columns: Any) -> list[float]:
            if len(server.generations) > 6:
                client.base_url = "http://127.0.0.1:9"
            return [ids_parity(ids) for ids in completion_ids]

        trainer.reward_funcs[0] = dying
        with pytest.raises(ConnectionError):
            trainer.train()
        client.base_url = server.url
        trainer.reward_funcs[0] = parity
        check_aftermath(trainer)


def test_log_extra_of_the_wrong_length(make, sent):
    too_many = [1]

    def reward(completion_ids: list[list[int]], log_extra: Any, **columns: Any) -> list[float]:
        log_extra("word", ["a word"] * (len(completion_ids) + too_many[0]))
        return [ids_parity(ids) for ids in completion_ids]

    trainer = make(**COLOCATE, reward=reward)
    with pytest.raises(ValueError, match=r"log_extra\('word'\) got .* values for"):
        trainer.train()
    too_many[0] = 0
    check_aftermath(trainer)


def test_a_policy_beyond_its_bounds(make, sent):
    class Stubborn(HardestFirst):
        def stream(self, state, budget, in_flight):
            stream = super().stream(state, budget, in_flight)
            stream.next_prompt = lambda: 0
            return stream

    trainer = make(**COLOCATE, max_rollouts=6)
    trainer.allocator = Stubborn()
    with pytest.raises(ValueError, match="prompt 0 once more than max_rollouts=6 allows"):
        trainer.train()
    trainer.allocator = HardestFirst()
    check_aftermath(trainer)


def test_rewards_without_a_value(make, sent):
    """None tells the policy nothing, and is as in TRL for the loss."""

    def patchy(completion_ids: list[list[int]], **columns: Any) -> list[float | None]:
        return [None if ids[-2] % 3 == 0 else ids_parity(ids) for ids in completion_ids]

    trainer = make(**COLOCATE, reward=patchy, max_steps=1)
    trainer.train()
    rewards = list(trainer._logs["rewards"]["patchy"])
    completions = completions_of(trainer.recorded[0][1])
    for reward, ids in zip(rewards, completions, strict=True):
        assert math.isnan(reward) if ids[-2] % 3 == 0 else reward == ids_parity(ids)
    assert any(map(math.isnan, rewards))


# Refusals


def refused(make: Any, match: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_refusals(make, sent):
    refused(make, "needs an engine that takes requests while others run", use_vllm=False)
    refused(
        make,
        "stream_rollouts=True: allocator='pilot_commit' cannot stream: it waits for",
        allocator="pilot_commit",
        **COLOCATE,
    )
    refused(make, "stream_rollouts='yes' must be True or False", stream_rollouts="yes")
    refused(make, "in_flight=0 must be", in_flight=0)
    refused(
        make,
        "prompt_weighting='unbiased' with allocator 'hardest_first' in a stream",
        **COLOCATE,
        prompt_weighting="unbiased",
    )
    rollout = {"rollout_func": lambda prompts, trainer: {}}
    refused(make, "stream_rollouts=True with `rollout_func`", **COLOCATE, trainer_kwargs=rollout)


def setup(processes: int = 1, sharded: bool = False, **changes: Any) -> Any:
    """A trainer's attributes that decide whether it can stream; as it is, it can."""
    defaults: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "use_transformers_continuous_batching": False,
        "vllm_tensor_parallel_size": 1,
        "tools": [],
        "environment_factories": None,
        "rollout_func": None,
        "reward_funcs": [parity],
        "accelerator": SimpleNamespace(num_processes=processes),
        "is_deepspeed_enabled": sharded,
        "is_fsdp_enabled": False,
    }
    return SimpleNamespace(**{**defaults, **changes})


CANNOT_STREAM = [
    (setup(tools=[len]), "with `tools`"),
    (setup(environment_factories={"main": object}), "with `environment_factory`"),
    (setup(rollout_func=len), "with `rollout_func`"),
    (setup(use_vllm=False), "needs an engine"),
    (setup(2, vllm_tensor_parallel_size=2), "with vllm_tensor_parallel_size=2 in vllm_mode='colocate'"),
    (setup(3), "on 3 processes: .* a generation batch of 4 prompts cannot be dealt evenly"),
    (setup(2, sharded=True, reward_funcs=[torch.nn.Linear(1, 1)]), "with a reward model on several processes"),
]
CAN_STREAM = [
    setup(),
    setup(use_vllm=False, use_transformers_continuous_batching=True),
    setup(2, vllm_mode="server", vllm_tensor_parallel_size=2),
    setup(3, vllm_mode="server"),
    setup(2, reward_funcs=[torch.nn.Linear(1, 1)]),
    setup(1, sharded=True, reward_funcs=[torch.nn.Linear(1, 1)]),
]


@pytest.mark.parametrize(("trainer", "reason"), CANNOT_STREAM)
def test_what_cannot_stream_is_refused(trainer, reason):
    with pytest.raises(ValueError, match=rf"stream_rollouts=True .*{reason}.*stream_rollouts=False"):
        check_streaming(trainer, HardestFirst(), 4)


def test_a_process_without_images_that_is_dealt_some_is_refused():
    """Its rows came without images; of the other process's prompts, which it now holds, one has some."""
    dealt = {0: ([5], None), 1: ([6], ["a picture"])}
    batch: Any = SimpleNamespace(
        _by_prompt=lambda planned, pairs: dealt,
        _planned_here=np.array([0, 0]),
        _exchange=lambda: None,
        _round=SimpleNamespace(own_group_ids=np.array([0, 1])),
    )
    generate = StreamedBatch._around(batch, lambda **options: "answer")
    with pytest.raises(
        ValueError, match=r"stream_rollouts=True .* only some prompts have images.*stream_rollouts=False"
    ):
        generate(prompts=[[5], [5]])
    del dealt[1]
    batch._round.own_group_ids = np.array([0, 0])
    assert generate(prompts=[[5], [5]]) == "answer"


@pytest.mark.parametrize("trainer", CAN_STREAM)
def test_what_is_next_to_it_streams(trainer):
    check_streaming(trainer, HardestFirst(), 4)


def test_an_allocator_that_is_put_in_later_must_stream_too(make, sent):
    trainer = make(**COLOCATE)
    before = trainer.allocator
    with pytest.raises(ValueError, match="stream_rollouts=True: allocator='random' cannot stream"):
        trainer.allocator = RandomCounts()
    assert trainer.allocator is before


def test_options_without_effect_are_told(make, sent):
    with pytest.warns(UserWarning, match="No effect .*in_flight=3"):
        make(**COLOCATE, stream_rollouts=False, allocator="adaroll")
    with pytest.warns(UserWarning, match="No effect .*stream_rollouts=True: rounds=2"):
        make(**COLOCATE, rounds=2)


def test_evaluation_does_not_stream(make, server, sums):
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "max_steps": 2}
    trainer = make(**server_options(server), **options, trainer_kwargs={"eval_dataset": sums.select(range(4))})
    trainer.train()
    assert [body["n"] for body in server.generations if body["n"] != 1] == [GROUP] * 2
    assert number_in(trainer._logs["prompt"][0]) >= 0


@pytest.mark.parametrize("streams", [True, False])
def test_an_evaluation_of_several_batches_with_continuous_batching(make, sums, streams):
    """TRL leaves the model in training mode after each generation: no evaluation batch may be taken for training."""
    own = {} if streams else {"stream_rollouts": False, "in_flight": None, "allocator": "adaroll"}
    own |= {"use_vllm": False, "per_device_eval_batch_size": 16, "belief_decay": 1.0, "max_steps": 2}
    trainer = make(**CONTINUOUS, **own, trainer_kwargs={"eval_dataset": sums.select(range(12))})
    trainer.train()
    before = trainer._beliefs.state_dict()
    trainer.evaluate()
    assert trainer._beliefs.state_dict() == before


# Two processes

SOON = 60  # seconds within which a run ends of which one process has failed; the process group would wait for 1,800


@pytest.fixture(scope="module", params=["ddp", "zero3"])
def ranks(request: Any, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes left (`tests/workers/streaming.py`)."""
    folder = tmp_path_factory.mktemp(f"stream-{request.param}")
    with StandInServer() as server:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        command += ["-m", "tests.workers.streaming", str(model_dir), str(folder), request.param, server.url]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        root = Path(__file__).parent.parent
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    results = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
    for result in results:
        result |= {"requests": len(server.generations), "launch": request.param}
    return results


def backends_of(ranks: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [rank[name] for rank in ranks] for name in ("server", "colocate", "continuous") if name in ranks[0]}


@pytest.mark.multiprocess
def test_two_processes(ranks):
    for name, both in backends_of(ranks).items():
        assert {result["world"] for result in both} == {2}
        engine = {"ddp": ("DistributedDataParallel", 0), "zero3": ("DeepSpeedEngine", 3)}[ranks[0]["launch"]]
        assert {result["engine"] for result in both} == {engine}
        assert {result.get("running") for result in both} == {0 if name == "colocate" else None}
        sizes = []
        for outputs in zip(*(result["outputs"] for result in both), strict=True):
            prompts = [prompts_of(output) for output in outputs]
            assert [len(part) for part in prompts] == [BUDGET // 2] * 2
            sizes.append(Counter(prompts[0] + prompts[1]))
            assert len(sizes[-1]) == PROMPTS
            if name != "server":  # each process streams prompts of its own, with its own half of the budget
                assert not set(prompts[0]) & set(prompts[1])
            if name != "continuous":
                for output in outputs:
                    check_output(output)
        assert any(max(size.values()) > GROUP for size in sizes)
        assert [result["scored"] for result in both] == ([2 * BUDGET, 0] if name == "server" else [BUDGET] * 2)
        assert both[0]["log"] == both[1]["log"]
        assert both[0]["columns"] == both[1]["columns"]
        assert both[0]["columns"]["parity"] == both[0]["rewards"]
        rewards = [ids_parity(ids) for result in both for ids in completions_of(result["outputs"][-1])]
        assert both[0]["rewards"] == rewards
    # A run of two batches, a batch that failed, and the one after it: each rollout was asked for once
    assert 3 * BUDGET < ranks[0]["requests"] < 4 * BUDGET


@pytest.mark.multiprocess
def test_a_reward_that_raises_on_one_of_two_processes(ranks):
    for name in backends_of(ranks):
        check_failure(ranks, name, 0 if name == "server" else 1, "ZeroDivisionError: the judge is out")


@pytest.mark.multiprocess
def test_an_engine_that_dies_on_one_of_two_processes(ranks):
    if "engine" not in ranks[0]["failures"]:
        pytest.skip("the stand-in engine is not part of this launch, for time")
    check_failure(ranks, "engine", 1, "RuntimeError: EngineCore died")


def check_failure(ranks: list[dict[str, Any]], name: str, fails_on: int, error: str) -> None:
    """Both end, soon, and both say why; nothing is left, and the next call works."""
    both = [rank["failures"][name] for rank in ranks]
    assert both[fails_on]["error"] == error
    assert (
        both[1 - fails_on]["error"] == f"RuntimeError: Process {fails_on} failed while its rollouts streamed: {error}"
    )
    sizes: Counter[Any] = Counter()
    for result in both:
        assert result["seconds"] < SOON
        assert not result["threads"]
        assert result.get("running", 0) == 0
        assert len(result["next"]["advantages"]) == BUDGET // 2
        sizes.update(prompts_of(result["next"]))
        if name != "continuous":
            check_output(result["next"])
    assert len(sizes) == PROMPTS
    assert sizes.total() == BUDGET


# What a fresh user found


def test_what_a_failed_call_logged_does_not_reach_the_next_batch(make, sent):
    reward = Counted()

    def failing(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        if sum(reward.sizes) > 5 and failing.fails:
            raise ZeroDivisionError("the judge is out")
        return [ids_parity(ids) for ids in completion_ids]

    failing.fails = True
    trainer = make(**COLOCATE, reward=[reward, failing])  # the first logs, then the second raises
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    failing.fails = False
    check_aftermath(trainer)


def test_an_interrupted_reward_call_has_ended_before_the_next_begins(make, sent):
    at_once, most, functions = [0], [0], []

    def slow(completion_ids: list[list[int]], log_extra: Any, **columns: Any) -> list[float]:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.3)
        log_extra("ids", [ids[0] for ids in completion_ids])
        at_once[0] -= 1
        return [ids_parity(ids) for ids in completion_ids]

    trainer = make(**COLOCATE, reward=slow, max_steps=1)
    functions += trainer.reward_funcs
    engine = StandInLLM.last.llm_engine
    engine.fail_at, engine.failure = 8, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    engine.fail_at = None
    check_aftermath(trainer)
    assert most[0] == 1
    assert trainer.reward_funcs == functions


def test_an_engine_that_cannot_be_built_leaves_no_thread(make, sent, monkeypatch):
    trainer = make(use_vllm=False, **CONTINUOUS, max_steps=1)
    model = trainer.accelerator.unwrap_model(trainer.model)
    monkeypatch.setattr(model, "continuous_batching_context_manager", lambda **options: 1 / 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    monkeypatch.undo()
    check_aftermath(trainer)


def test_slow_rewards_do_not_make_the_loop_spin(make, server, monkeypatch):
    """It looks after a server a hundred times a second at most."""
    polls, poll = [0], VLLMServer.poll

    def counted(engine: VLLMServer, wait: bool) -> Any:
        polls[0] += 1
        return poll(engine, wait)

    monkeypatch.setattr(VLLMServer, "poll", counted)
    slow = StandInServer(seconds=0.1)
    with slow:
        make(**server_options(slow), reward=Counted(seconds=0.4), max_steps=1, in_flight=8).train()
    assert polls[0] < 2000  # without a wait it is some hundred thousand


def test_what_runs_goes_on_when_nothing_may_be_started(make, sent):
    """A reward that waits until the engine is empty gets its way: too many unscored ones stop starts, not steps."""
    late = []

    def patient(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        end = time.monotonic() + 5
        while StandInLLM.last.llm_engine.running and time.monotonic() < end:
            time.sleep(0.01)
        late.append(time.monotonic() >= end)
        return [ids_parity(ids) for ids in completion_ids]

    make(**COLOCATE, reward=patient, max_steps=1, in_flight=3).train()
    assert not any(late)
