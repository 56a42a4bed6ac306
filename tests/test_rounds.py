"""Merging rounds: what one call over all rows would have given."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import numpy as np
import pytest
import torch

from adaroll_trl.batch import GenerationBatch, Round
from adaroll_trl.rounds import append_logs, merge_metrics, merge_outputs, replace_last, scratch_logs

PAD = 9


def output(rows, prompt, completion, value=1, **extra):
    return {
        "prompt_ids": torch.full((rows, prompt), value),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long),
        "completion_ids": torch.full((rows, completion), value),
        "completion_mask": torch.ones(rows, completion, dtype=torch.long),
        "advantages": torch.zeros(rows),
        "num_items_in_batch": torch.tensor(rows * completion),
        **extra,
    }


def round_of(group_ids, metrics=None, logs=None):
    ids = np.asarray(group_ids)
    result = Round(ids, np.full(len(ids), 0.5), slice(0, len(ids)))
    for name, value in (metrics or {}).items():
        result.metrics[name].append(value)
    result.logs = logs or {}
    return result


def test_prompts_pad_on_the_left_and_completions_on_the_right():
    merged = merge_outputs([output(2, 3, 4), output(1, 5, 2, value=2)], PAD)
    assert list(merged) == list(output(1, 1, 1))
    assert merged["prompt_ids"].tolist() == [[PAD, PAD, 1, 1, 1]] * 2 + [[2] * 5]
    assert merged["prompt_mask"].tolist() == [[0, 0, 1, 1, 1]] * 2 + [[1] * 5]
    assert merged["completion_ids"].tolist() == [[1] * 4] * 2 + [[2, 2, PAD, PAD]]
    assert merged["completion_mask"].tolist() == [[1] * 4] * 2 + [[1, 1, 0, 0]]
    assert merged["num_items_in_batch"].item() == 2 * 4 + 1 * 2
    assert merged["num_items_in_batch"].ndim == 0


@pytest.mark.parametrize(
    ("key", "fill"),
    [
        ("old_per_token_logps", 0.0),
        ("ref_per_token_logps", 0.0),
        ("sampling_per_token_logps", 0.0),
        ("importance_sampling_ratio", 1.0),
        ("tool_mask", 1),
    ],
)
def test_per_token_tensors_pad_with_their_neutral_value(key, fill):
    first, second = torch.full((2, 4), 3.0), torch.full((1, 2), 5.0)
    merged = merge_outputs([output(2, 3, 4, **{key: first}), output(1, 3, 2, **{key: second})], PAD)
    assert merged[key].tolist() == [[3.0] * 4] * 2 + [[5.0, 5.0, fill, fill]]


def test_ratios_per_sequence_concatenate():
    ratios = [torch.full((2, 1), 0.5), torch.full((1, 1), 0.7)]
    merged = merge_outputs(
        [output(2, 3, 4, importance_sampling_ratio=ratios[0]), output(1, 3, 2, importance_sampling_ratio=ratios[1])],
        PAD,
    )
    assert merged["importance_sampling_ratio"].shape == (3, 1)


def test_token_types_pad_on_both_sides_and_may_be_absent():
    types = torch.full((2, 3 + 4), 7)
    merged = merge_outputs([output(2, 3, 4, mm_token_type_ids=types), output(1, 5, 6)], PAD)
    assert merged["mm_token_type_ids"].tolist() == [[0, 0] + [7] * 7 + [0, 0]] * 2 + [[0] * 11]


def test_a_round_without_tools_or_images_gets_neutral_entries():
    first = output(2, 3, 4, pixel_values=torch.ones(3, 8), num_images=[1, 2], tool_mask=torch.zeros(2, 4))
    merged = merge_outputs([first, output(1, 3, 5)], PAD)
    assert merged["num_images"] == [1, 2, 0]
    assert merged["pixel_values"].shape == (3, 8)
    assert merged["tool_mask"].tolist() == [[0, 0, 0, 0, 1]] * 2 + [[1] * 5]


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match=r"\['teacher_logits'\]"):
        merge_outputs([output(1, 1, 1, teacher_logits=torch.ones(1, 1)), output(1, 1, 1)], PAD)


def test_a_key_that_only_some_rounds_have_is_named():
    with pytest.raises(ValueError, match=r"'sampling_per_token_logps' is missing from the output of round \[2\]"):
        merge_outputs([output(1, 1, 1, sampling_per_token_logps=torch.ones(1, 1)), output(1, 1, 1)], PAD)


def test_images_of_different_shapes_are_refused():
    rounds = [output(1, 1, 1, pixel_values=torch.ones(1, 3, size, size), num_images=[1]) for size in (4, 8)]
    with pytest.raises(ValueError, match="'pixel_values' has a different shape"):
        merge_outputs(rounds, PAD)


def test_one_round_is_left_as_it_is():
    only = output(2, 3, 4, teacher_logits=torch.ones(2, 1))
    merged = merge_outputs([only], PAD)
    assert merged == only
    assert merged is not only


def test_metrics_merge_by_what_they_are_means_of():
    first = round_of(
        [0] * 6,
        {
            "num_tokens": 100.0,
            "completions/mean_length": 4.0,
            "completions/min_length": 2.0,
            "completions/max_length": 8.0,
            "completions/clipped_ratio": 0.5,  # 3 of 6 terminated
            "completions/mean_terminated_length": 3.0,
            "completions/min_terminated_length": 2.0,
            "completions/max_terminated_length": 5.0,
            "tools/call_frequency": 1.0,
            "tools/failure_frequency": 0.5,
            "sampling/importance_sampling_ratio/min": 0.5,
            "sampling/importance_sampling_ratio/max": 1.5,
            "custom": 1.0,
        },
    )
    second = round_of(
        [1] * 2,
        {
            "num_tokens": 150.0,
            "completions/mean_length": 8.0,
            "completions/min_length": 8.0,
            "completions/max_length": 8.0,
            "completions/clipped_ratio": 1.0,  # none terminated: TRL then logs zeros
            "completions/mean_terminated_length": 0.0,
            "completions/min_terminated_length": 0.0,
            "completions/max_terminated_length": 0.0,
            "tools/call_frequency": 3.0,
            "tools/failure_frequency": 0.0,
            "sampling/importance_sampling_ratio/min": math.nan,
            "sampling/importance_sampling_ratio/max": 1.2,
        },
    )
    merged = merge_metrics([first, second])
    assert merged["num_tokens"] == 150.0
    assert merged["completions/mean_length"] == (6 * 4 + 2 * 8) / 8
    assert merged["completions/min_length"] == 2.0
    assert merged["completions/max_length"] == 8.0
    assert merged["completions/clipped_ratio"] == (3 + 2) / 8
    assert merged["completions/mean_terminated_length"] == 3.0
    assert merged["completions/min_terminated_length"] == 2.0
    assert merged["completions/max_terminated_length"] == 5.0
    assert merged["tools/failure_frequency"] == (3 + 0) / (6 + 6)
    assert merged["sampling/importance_sampling_ratio/min"] == 0.5
    assert merged["sampling/importance_sampling_ratio/max"] == 1.5
    assert merged["custom"] == 1.0


def test_no_terminated_completion_in_any_round_logs_zero_as_trl_does():
    metrics = {"completions/clipped_ratio": 1.0, "completions/mean_terminated_length": 0.0}
    merged = merge_metrics([round_of([0, 0], metrics), round_of([0], metrics)])
    assert merged["completions/mean_terminated_length"] == 0.0


def trl_logs(size):
    return {
        "images": deque(maxlen=size),
        "prompt": deque(maxlen=size),
        "rewards": defaultdict(lambda: deque(maxlen=size)),
        "advantages": deque(maxlen=size),
        "extra": defaultdict(lambda: deque(maxlen=size)),
    }


def test_log_columns_stay_in_step_when_a_round_lacks_one():
    logs = trl_logs(3)
    logs["extra"]["from an earlier batch"].extend(["x", "y", "z"])
    rounds = []
    for ids, extra, images in (([0, 1], {"note": ["a", "b"]}, [["i"], ["j"]]), ([0], {}, [])):
        scratch = scratch_logs(logs)
        scratch["prompt"].extend(f"p{i}" for i in ids)
        scratch["rewards"]["r"].extend(float(i) for i in ids)
        scratch["advantages"].extend([0.0] * len(ids))
        scratch["images"].extend(images)
        for name, values in extra.items():
            scratch["extra"][name].extend(values)
        rounds.append(round_of(ids, logs=scratch))
    append_logs(logs, rounds, {"group": [0, 1, 0]})
    assert list(logs["prompt"]) == ["p0", "p1", "p0"]
    assert list(logs["rewards"]["r"]) == [0.0, 1.0, 0.0]
    assert list(logs["images"]) == [["i"], ["j"], None]
    assert {name: list(values) for name, values in logs["extra"].items()} == {
        "note": ["a", "b", None],
        "group": [0, 1, 0],
        "from an earlier batch": [None] * 3,
    }


def test_replace_last_overwrites_the_newest_entries():
    entries = deque([1.0, 2.0, 3.0, 4.0], maxlen=5)
    replace_last(entries, [8.0, 9.0])
    assert list(entries) == [1.0, 2.0, 8.0, 9.0]


def test_a_batch_keeps_count():
    rows = [{"prompt": str(i)} for i in range(2)]
    batch = GenerationBatch(rows, ["a", "b"], np.ones(2), np.ones(2), left=5, rounds_left=2)
    batch.record(batch.plan_round(np.array([2, 1]), 0, 1), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    assert batch.left == 2
    assert batch.rounds_left == 1
    np.testing.assert_allclose(batch.belief_means, [0.5, 0.5])
    batch.record(batch.plan_round(np.array([0, 2]), 0, 1), np.array([0.0, 2.0]), np.array([0.0, 0.0]))
    assert batch.rollouts.tolist() == [2, 3]  # one rollout of prompt 1 got no reward
    np.testing.assert_allclose(batch.belief_means, [0.5, 0.75])
    assert batch.table_columns() == {
        "group": [0, 0, 1, 1, 1],
        "group_size": [2, 2, 3, 3, 3],
        "round": [1, 1, 1, 2, 2],
        "belief_mean": [0.5] * 5,
    }
