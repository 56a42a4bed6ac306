"""Options, data sets and files that nobody should give: refused by name, or trained on as they are."""

from __future__ import annotations

import copy
import json
import re
import tracemalloc
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.allocators import ALLOCATOR_NAMES, AllocationState, make_allocator
from adaroll_trl.beliefs import Beliefs
from adaroll_trl.checks import check_counts, check_prompts
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.solver.store import TableFileError, TableStore, TableStoreWarning, read_table
from tests.tiny import length_reward, same_weights, sums_dataset, weights

# Options

NAMES = [item.name for item in fields(AdaRollOptions)]
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([10**30, 10**400, -(10**400), 1e300, float("nan"), float("inf"), -0.5, 0.5, 1.5, 1j]),
    st.text(max_size=6),
    st.sampled_from(["uniform", "cero", "mixed", "os:sep", ":", "a:b:c", "{}", '{"tau": 1}', "[" * 10_000, b"mixed"]),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
)


@given(changes=st.dictionaries(st.sampled_from(NAMES), ANYTHING, min_size=1, max_size=3))
@example(changes={"allocator_kwargs": "[" * 10_000})
@example(changes={"allocator_kwargs": '{"tau": 1}'})
@settings(max_examples=400, deadline=None)
def test_any_value_of_any_option_is_valid_or_named(changes):
    options, error = AdaRollOptions(**changes), None
    try:
        options.validate_adaroll()
    except ValueError as caught:
        error = caught
    assert error is None or any(name in str(error) for name in changes), f"{error} names none of {sorted(changes)}"


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_the_wrong_type_is_refused_for_every_option(name):
    with pytest.raises(ValueError, match=f"^{name}=<object object"):
        AdaRollOptions(**{name: object()}).validate_adaroll()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_rollouts": 3}, "max_rollouts=3 must be at least num_generations=4"),
        ({"max_rollouts": 5, "min_rollouts": 6}, "max_rollouts=5 .* at least min_rollouts=6"),
        ({"success_reward": "nobody"}, "success_reward='nobody'"),
        ({"num_generations": 5}, "num_generations=5"),
    ],
)
def test_options_that_contradict_each_other_are_named(build, options, named):
    with pytest.raises(ValueError, match=named):
        build(AdaRollGRPOTrainer, **options)


def test_a_minimum_that_the_budget_cannot_pay_is_plain_grpo_and_told(build):
    with pytest.warns(UserWarning, match=r"min_rollouts=5 of num_generations=4 .* nothing to allocate"):
        trainer = build(AdaRollGRPOTrainer, min_rollouts=5, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


# Data sets

RUN = {"allocator": "adaroll", "rounds": 2, "min_rollouts": 1, "max_steps": 2, "belief_decay": 1.0}
BATCH = 12  # rollouts of one generation batch, which serves both steps


def rows(prompts: list[Any], **columns: list[Any]) -> Dataset:
    return Dataset.from_dict({"prompt": prompts, "number": list(range(len(prompts))), **columns})


def counted(trainer: Any) -> float:
    return sum(map(sum, trainer._beliefs.state_dict().values()))


def successes(trainer: Any) -> float:
    return sum(s for s, _ in trainer._beliefs.state_dict().values())


def test_duplicate_prompts_share_one_belief(build):
    trainer = build(AdaRollGRPOTrainer, dataset=rows(["What is 2 + 3?"] * 6), **RUN)
    trainer.train()
    assert len(trainer._beliefs) == 1
    assert counted(trainer) == BATCH


@pytest.mark.parametrize(
    "ids", [[1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5], [True, False, True, False], [["x"], [], ["x", "y"], ["z"]]]
)
def test_ids_that_are_no_strings_name_prompts(build, ids):
    trainer = build(AdaRollGRPOTrainer, dataset=rows(["a", "b", "c", "d"], prompt_id=ids), **RUN)
    trainer.train()
    assert set(trainer._beliefs.state_dict()) <= set(map(str, ids))
    assert counted(trainer) == BATCH


def test_columns_that_cannot_be_hashed_go_through(build):
    data = rows(["a", "b", "c", "d"], tags=[["x"], [], ["y", "z"], None], answer=[{"value": i} for i in range(4)])
    trainer = build(AdaRollGRPOTrainer, dataset=data, **RUN)
    trainer.train()
    assert len(trainer._beliefs) == 3
    assert counted(trainer) == BATCH


def test_an_id_that_is_missing_is_named(build):
    data = rows(["first", "second", "third"], prompt_id=["a", None, "c"])
    with pytest.raises(ValueError, match="prompt_id is None for the prompt 'second'"):
        build(AdaRollGRPOTrainer, dataset=data, **RUN).train()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rows([]), "train_dataset has 0 rows, fewer than the 3 prompts of a generation batch"),
        (rows(["a"]), "train_dataset has 1 rows, fewer than the 3 prompts"),
        (Dataset.from_dict({"question": ["a", "b", "c"]}), "train_dataset has no column `prompt`; it has question"),
    ],
)
def test_a_data_set_that_makes_no_batch_is_refused(build, data, message):
    with pytest.raises(ValueError, match=message):
        build(AdaRollGRPOTrainer, dataset=data, **RUN)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("prompts", "shown"), [(["", "b", "c"], "''"), (["", "", ""], "''"), ([[], chat("b"), chat("c")], r"\[\]")]
)
def test_a_prompt_without_tokens_is_refused_with_its_row(build, prompts, shown):
    with pytest.raises(ValueError, match=rf"The prompt of the row .*'number': \d.* is {shown}: it has no tokens"):
        build(AdaRollGRPOTrainer, dataset=rows(prompts), **RUN).train()
    with pytest.raises((RuntimeError, IndexError)):  # so does GRPOTrainer, without telling the row
        build(GRPOTrainer, dataset=rows(prompts), plain_config=True, max_steps=2).train()


def test_an_empty_prompt_that_has_tokens_trains(build):
    """Those of the chat template, or of the tokenizer."""
    trainer = build(AdaRollGRPOTrainer, dataset=rows([chat(""), chat("b"), chat("c")]), **RUN)
    trainer.train()
    assert counted(trainer) == BATCH
    check_prompts(rows(["", "b"]), lambda text: {"input_ids": [[1, *map(ord, part)] for part in text]})


def test_a_column_that_a_transform_adds_is_not_missed(build):
    data = Dataset.from_dict({"question": ["a", "b", "c"]})
    data.set_transform(lambda batch: {"prompt": batch["question"], "number": [0] * len(batch["question"])})
    trainer = build(AdaRollGRPOTrainer, dataset=data, remove_unused_columns=False, **RUN)
    trainer.train()
    assert counted(trainer) == BATCH


def test_one_row_is_enough_for_a_batch_of_one_prompt(build):
    with pytest.warns(UserWarning, match="holds a single prompt"):
        trainer = build(AdaRollGRPOTrainer, dataset=rows(["a"]), **{**RUN, "num_generations": BATCH})
    trainer.train()
    assert trainer.state.global_step == 2
    assert counted(trainer) == BATCH


def test_a_prompt_longer_than_the_models_context_is_counted_as_any_other(build):
    trainer = build(AdaRollGRPOTrainer, dataset=rows(["word " * 600, "b", "c"]), **{**RUN, "max_steps": 1})
    assert trainer.model.config.max_position_embeddings < 600
    trainer.train()
    assert counted(trainer) == BATCH


# Rewards and sizes


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ((1.0, 1.0), {}),
        ((0.0, 0.0), {}),
        ((-1.0, 1.0), {"success_threshold": 0.0}),
        ((0.0, 100.0), {"success_threshold": 50.0}),
        ((0.0, 1.0), {"num_generations": 2, "min_rollouts": 0}),
        ((0.0, 1.0), {"max_rollouts": 4}),
        ((0.0, 1.0), {"min_rollouts": 4}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nothing to allocate")
def test_rewards_of_any_range_and_the_smallest_groups_train(build, values, options):
    returned: list[float] = []

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        found = [values[sum(ids) % 2] for ids in completion_ids]
        returned.extend(found)
        return found

    trainer = build(AdaRollGRPOTrainer, reward=reward, dataset=sums_dataset(12), **{**RUN, **options})
    before = weights(trainer)
    trainer.train()
    assert len(returned) == counted(trainer) == BATCH
    assert successes(trainer) == sum(value > options.get("success_threshold", 0.5) for value in returned)
    log = trainer.state.log_history[0]
    assert np.isfinite(log["loss"])
    if values[0] == values[1]:
        assert log["frac_reward_zero_std"] == 1
        assert same_weights(weights(trainer), before), "all rewards alike leave the weights alone"


def test_a_length_penalty_beside_the_success_reward_counts_by_the_success(build):
    def success(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(sum(ids) % 2) for ids in completion_ids]

    def penalty(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [-10 * value for value in length_reward(completion_ids)]

    trainer = build(AdaRollGRPOTrainer, reward=[success, penalty], success_reward="success", **RUN)
    trainer.train()
    assert counted(trainer) == BATCH
    assert successes(trainer) == sum(trainer._logs["rewards"]["success"])


# Files of strangers


def forge(path: Path, header: Any) -> None:
    """A table file whose checksums are right, whatever it claims."""
    line = header if isinstance(header, bytes) else json.dumps(header).encode()
    line += b"\n"
    first = b"adaroll_trl-table 1 %08x\n" % zlib.crc32(line)
    start = -(-(len(first) + len(line)) // 64) * 64
    path.write_bytes((first + line).ljust(start, b"\0") + bytes(64))


def claimed(**entry: Any) -> dict[str, Any]:
    array = {"name": "x", "dtype": "<f8", "shape": [8], "offset": 0, **entry}
    crc = f"{zlib.crc32(bytes(64)):08x}"
    return {"key": {"solver": "t"}, "arrays": [array], "payload_bytes": 64, "payload_crc32": crc}


CLAIMS = {
    "10^12 entries": claimed(shape=[10**12]),
    "an overflowing product": claimed(shape=[2**32, 2**32]),
    "a negative length": claimed(shape=[-8]),
    "a fraction": claimed(shape=[1.5]),
    "a huge number": claimed(shape=[10**400]),
    "an offset beyond the end": claimed(offset=10**12),
    "a negative offset": claimed(offset=-64),
    "Python objects": claimed(dtype="|O"),
    "nothing": claimed(dtype="|V0"),
    "many fields": claimed(dtype="(1000000000,)f8"),
    "no name": claimed(name=None),
    "no shape": claimed(shape=None),
    "no arrays": {"key": {}, "payload_bytes": 64, "payload_crc32": ""},
    "a negative payload": {**claimed(), "payload_bytes": -1},
    "a list": [1, 2],
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
    "no JSON": b'{"key": ',
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("header", CLAIMS.values(), ids=CLAIMS)
def test_a_table_that_claims_what_cannot_be_is_refused_by_name_in_little_memory(tmp_path, header):
    path = TableStore(tmp_path).path({"solver": "t"})
    forge(path, header)
    tracemalloc.start()
    with pytest.raises(TableFileError, match=re.escape(str(path)) + " is (not a table file|truncated|damaged)"):
        read_table(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**7
    with pytest.warns(TableStoreWarning):
        assert TableStore(tmp_path).get({"solver": "t"}, lambda: {"x": np.arange(3)})["x"].sum() == 3


def test_a_true_header_of_the_same_form_is_read(tmp_path):
    forge(tmp_path / "x.table", claimed())
    assert read_table(tmp_path / "x.table")[1]["x"].tolist() == [0.0] * 8


@given(
    state=st.dictionaries(
        st.text(max_size=3), st.one_of(ANYTHING, st.lists(ANYTHING, min_size=2, max_size=2)), max_size=3
    )
)
@settings(max_examples=200, deadline=None)
def test_beliefs_of_any_form_are_counts_or_refused(state):
    beliefs, error = Beliefs(decay=0.5), None
    try:
        beliefs.load_state_dict(state)
    except ValueError as caught:
        error = caught
    if error is not None:
        assert "beliefs" in str(error)
    else:
        alpha, beta = beliefs.prior(list(state))
        assert np.isfinite(alpha).all()
        assert (np.minimum(alpha, beta) >= 1).all()


BATCHES = ["abc", "bcd", "dea"]  # ids of prompts
WITH_STATE = {"cero": {}, "thompson": {}, "vip": {"embeddings": {key: [ord(key), 1.0] for key in "abcde"}}}


def decide(allocator: Any, ids: str) -> None:
    """One batch of 12 rollouts in two rounds; the counts keep the contract."""
    n, spent = len(ids), np.zeros(len(ids), dtype=np.int64)
    for rounds_left in range(allocator.num_rounds(n, 12, 2, 1), 0, -1):
        state = AllocationState(spent * 0.5, spent * 0.5, 1.0, [1.0, 2.0, 3.0], spent, list(ids), 1, 8)
        left = 12 - int(spent.sum())
        spent = spent + check_counts(allocator.allocate(state, left, rounds_left), state, left, rounds_left, "it")
    allocator.observe(AllocationState(spent * 0.5, spent * 0.5, 1.0, 1.0, spent, list(ids), 1, 8))


def trained(name: str) -> Any:
    allocator = make_allocator(name, **WITH_STATE[name])
    for ids in BATCHES:
        decide(allocator, ids)
    return allocator


TRAINED = {name: json.loads(json.dumps(trained(name).state_dict())) for name in WITH_STATE}
JUNK = st.one_of(
    ANYTHING,
    st.sampled_from([0, 0.0, -0.0, 1e-320, 2**53, 2**53 + 1, "nan", "a", [], {}, [[]], [[1.0, 2.0, 3.0]], {"a": [1]}]),
)


@st.composite
def damaged(draw: Any, value: Any) -> Any:
    """`value` with one thing within it, at any depth, that is replaced, missing, too much, or there twice."""
    inside = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    action = draw(st.sampled_from(["inside"] * 3 + ["remove", "add", "double"])) if inside else "replace"
    if action == "replace":
        return draw(JUNK)
    value, key = copy.copy(value), draw(st.sampled_from(list(inside)))
    if action == "inside":
        value[key] = draw(st.one_of(JUNK, damaged(value[key])))
    elif action == "remove":
        del value[key]
    elif isinstance(value, dict):
        value[draw(st.text(max_size=3))] = copy.deepcopy(value[key]) if action == "double" else draw(JUNK)
    else:
        value.insert(key, copy.deepcopy(value[key]) if action == "double" else draw(JUNK))
    return value


@pytest.mark.parametrize("name", WITH_STATE)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_state_of_an_allocator_is_refused_by_name_or_decides_as_promised(name, data):
    state = data.draw(damaged(TRAINED[name]))
    for _ in range(data.draw(st.integers(0, 2))):
        state = data.draw(damaged(state))
    allocator, error = make_allocator(name, **WITH_STATE[name]), None
    try:
        allocator.load_state_dict(state)
    except ValueError as caught:
        error = caught
    if error is not None:
        assert re.search(rf"\b({'|'.join(TRAINED[name])})\b|allocator '{name}'", str(error)), error
    else:
        for ids in BATCHES:
            decide(allocator, ids)
        json.dumps(allocator.state_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ALLOCATOR_NAMES)
def test_a_state_that_is_no_dict_or_of_another_allocator_is_refused(name):
    allocator = make_allocator(name)
    for state in (None, [], [1], "", "state", 1, {"pages": 3}, {"": {}, 7: 1}, [[]]):
        with pytest.raises(ValueError, match=f"allocator '{name}' keeps "):
            allocator.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cero", {"steps": 10**30}, "steps=10+ must be an integer of at least 0 and at most 9,007,199,254,740,992"),
        ("thompson", {"step": 10**30}, "step=10+ must be an integer"),
        ("cero", {"prompts": {"a": []}}, "prompts must be any number x 3 numbers"),
        ("cero", {"prompts": [1]}, "prompts must be records by prompt"),
        ("vip", {"seen": [["a", 0.0, 0.0]]}, "seen variance has 0.0"),
        ("vip", {"seen": [["a", 0.0, -1.0]]}, "seen variance has -1.0"),
        ("vip", {"seen": 5}, "seen must be"),
    ],
)
def test_a_state_that_would_fail_later_is_refused_at_once(name, change, message):
    with pytest.raises(ValueError, match=message):
        make_allocator(name, **WITH_STATE[name]).load_state_dict({**TRAINED[name], **change})


def test_what_is_known_of_prompts_that_have_no_embedding_any_more_is_forgotten():
    fewer = make_allocator("vip", embeddings={key: WITH_STATE["vip"]["embeddings"][key] for key in "abc"}, memory=2)
    fewer.load_state_dict(TRAINED["vip"])
    assert [row[0] for row in TRAINED["vip"]["seen"]] == ["b", "c", "d", "e", "a"]
    assert [row[0] for row in fewer.state_dict()["seen"]] == ["c", "a"], "the newest, as many as `memory`"
    decide(fewer, "abc")
