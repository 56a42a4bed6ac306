"""How the rounds of a generation batch become one batch again.

A round is an ordinary call of TRL's `_generate_and_score_completions`, so it returns what TRL returns for a smaller
batch: tensors padded to the round's own longest prompt and completion, metrics averaged over the round's rows, and log
entries. Merged, they must be what one call over all rows would have given.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import torch

from .batch import TABLE_COLUMNS, Round

# How each entry of TRL's output dict grows from rounds to batch. Tensors of shape (rows, T) are padded to the longest
# round with the value here; None is the tokenizer's pad token.
_PROMPT_SIDE: dict[str, float | None] = {
    "prompt_ids": None,
    "prompt_mask": 0,
}  # on the left
_COMPLETION_SIDE: dict[str, float | None] = {  # on the right
    "completion_ids": None,
    "completion_mask": 0,
    "old_per_token_logps": 0.0,
    "ref_per_token_logps": 0.0,
    "sampling_per_token_logps": 0.0,
    "importance_sampling_ratio": 1.0,  # VESPO sums its log over all positions, masked or not
    "tool_mask": 1,
}
_WHOLE_SEQUENCE = {"token_type_ids": 0, "mm_token_type_ids": 0}  # on both sides
_STACKED = (  # one row per image, patch or tile
    "pixel_values",
    "image_grid_thw",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
    "image_position_ids",
)
_LISTS = ("num_images", "num_tiles")  # one entry per row, 0 for a row without images
_KNOWN = {*_PROMPT_SIDE, *_COMPLETION_SIDE, *_WHOLE_SEQUENCE, *_STACKED, *_LISTS, "advantages", "num_items_in_batch"}


def merge_outputs(outputs: Sequence[dict[str, Any]], pad_token_id: int) -> dict[str, Any]:
    """One output dict from the rounds' dicts, in the key order of the first round that has each key.

    Raises:
        ValueError: for a key whose shape is not known here, or one that only some rounds have and that has no neutral
            value.
    """
    if len(outputs) == 1:
        return dict(outputs[0])
    keys = list(dict.fromkeys(key for output in outputs for key in output))
    unknown = [key for key in keys if key not in _KNOWN]
    if unknown:
        raise ValueError(
            f"The trainer's output has keys that adaroll_trl does not know how to merge over rounds: {unknown}. They "
            "come from a newer TRL or from a subclass. Set rounds=1, or use a TRL version that adaroll_trl supports."
        )
    prompt_width = max(output["prompt_ids"].shape[1] for output in outputs)
    completion_width = max(output["completion_ids"].shape[1] for output in outputs)
    return {key: _merge_key(key, outputs, pad_token_id, prompt_width, completion_width) for key in keys}


def _merge_key(
    key: str, outputs: Sequence[dict[str, Any]], pad_token_id: int, prompt_width: int, completion_width: int
) -> Any:
    if key == "num_items_in_batch":
        return torch.stack([output[key] for output in outputs]).sum()
    if key in _LISTS:
        return [count for output in outputs for count in output.get(key, [0] * _rows(output))]
    if key in _STACKED:
        return _stack(key, [output[key] for output in outputs if key in output], len(outputs))
    if key in ("tool_mask", *_WHOLE_SEQUENCE):  # not every round need use a tool, or an image
        outputs = [output if key in output else {**output, key: _neutral(key, output)} for output in outputs]
    missing = [index + 1 for index, output in enumerate(outputs) if key not in output]
    if missing:
        raise ValueError(
            f"{key!r} is missing from the output of round {missing} and present in other rounds of the same batch, so "
            "the rounds cannot be merged. A `rollout_func` must return the same fields in every call."
        )
    tensors = [output[key] for output in outputs]
    if key == "advantages":
        return torch.cat(tensors)
    if key in _PROMPT_SIDE:
        fill = _PROMPT_SIDE[key]
        fill = pad_token_id if fill is None else fill
        return torch.cat([_pad(t, prompt_width - t.shape[1], 0, fill) for t in tensors])
    if key in _COMPLETION_SIDE:
        fill = _COMPLETION_SIDE[key]
        fill = pad_token_id if fill is None else fill
        width = max(t.shape[1] for t in tensors)  # (rows, 1) for a ratio per sequence, else the completion's width
        return torch.cat([_pad(t, 0, width - t.shape[1], fill) for t in tensors])
    padded = []
    for output in outputs:
        left = prompt_width - output["prompt_ids"].shape[1]
        right = completion_width - output["completion_ids"].shape[1]
        padded.append(_pad(output[key], left, right, _WHOLE_SEQUENCE[key]))
    return torch.cat(padded)


def _rows(output: dict[str, Any]) -> int:
    return int(output["prompt_ids"].shape[0])


def _neutral(key: str, output: dict[str, Any]) -> torch.Tensor:
    """What `key` would hold in a round that has no use for it."""
    completion = output["completion_ids"]
    if key == "tool_mask":
        return torch.ones_like(completion)
    return completion.new_zeros(_rows(output), output["prompt_ids"].shape[1] + completion.shape[1])


def _pad(tensor: torch.Tensor, left: int, right: int, value: float) -> torch.Tensor:
    if left == right == 0:
        return tensor
    return torch.nn.functional.pad(tensor, (left, right), value=value)


def _stack(key: str, tensors: list[torch.Tensor], rounds: int) -> torch.Tensor:
    if len({tensor.shape[1:] for tensor in tensors}) > 1:
        raise ValueError(
            f"{key!r} has a different shape in different rounds ({[tuple(t.shape) for t in tensors]}), so the rounds "
            "cannot be merged. Resize the images to one size in the dataset, or set rounds=1."
        )
    return torch.cat(tensors)


def scratch_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Empty logs of the same layout, for one round."""
    return {key: defaultdict(list) if isinstance(entry, dict) else [] for key, entry in logs.items()}


def append_logs(logs: dict[str, Any], rounds: Sequence[Round], columns: dict[str, list[Any]]) -> None:
    """Append the rounds' log entries to the trainer's `_logs`, so that every column has one entry per row.

    A reward function may log an extra column in some rounds only: the rows of the other rounds get None.

    Args:
        logs (`dict`): TRL's `_logs`: deques of entries, or dicts of such deques by column.
        rounds (sequence of `Round`): the rounds of a batch.
        columns (`dict` of `str` to `list`): extra columns of the whole batch.
    """
    for key, target in logs.items():
        if not isinstance(target, dict):
            entries = [round_.logs[key] for round_ in rounds]
            if any(entries):
                target.extend(_aligned(entries, rounds))
            continue
        for name in dict.fromkeys(name for round_ in rounds for name in round_.logs[key]):
            target[name].extend(_aligned([round_.logs[key].get(name, []) for round_ in rounds], rounds))
    for name, values in columns.items():
        logs["extra"][name].extend(values)
    # A column of an earlier batch that this batch lacks would no longer be in step with the others
    rows = sum(round_.rows for round_ in rounds)
    logged_now = {name for round_ in rounds for name in round_.logs["extra"]} | set(columns)
    for name in set(logs["extra"]) - logged_now:
        logs["extra"][name].extend([None] * rows)


def _aligned(entries: Sequence[list[Any]], rounds: Sequence[Round]) -> list[Any]:
    filled: list[Any] = []
    for round_, values in zip(rounds, entries, strict=True):
        filled.extend(values or [None] * round_.rows)
    return filled


def pad_columns(extra: dict[str, Any], rows: int) -> None:
    """Rows without an allocation, those of an evaluation: None, so that the columns stay in step with the others."""
    for name in TABLE_COLUMNS:
        if name in extra:
            extra[name].extend([None] * rows)


def replace_last(entries: deque[float], values: Sequence[float]) -> None:
    """Overwrite the newest `len(values)` entries."""
    for _ in range(min(len(values), len(entries))):
        entries.pop()
    entries.extend(values)


def merge_metrics(rounds: Sequence[Round]) -> dict[str, float]:
    """TRL's metrics of a batch from those of its rounds.

    Means are weighted by what they are means of: terminated lengths by terminated completions, tool failures by tool
    calls, what vLLM sampled with by tokens, everything else by rows. Names that end in min or max keep the least or
    greatest, and `num_tokens` is a running total. The reward metrics are not here: they come from the rewards
    themselves.
    """
    if len(rounds) == 1:
        return {name: _mean(values) for name, values in rounds[0].metrics.items()}
    names = dict.fromkeys(name for round_ in rounds for name in round_.metrics)
    return {name: _merge_metric(name, [r for r in rounds if r.metrics.get(name)]) for name in names}


def _merge_metric(name: str, rounds: Sequence[Round]) -> float:
    values = [_mean(round_.metrics[name]) for round_ in rounds]
    if name == "num_tokens":
        return values[-1]
    weights = [_weight(name, round_) for round_ in rounds]
    known = [(v, w) for v, w in zip(values, weights, strict=True) if not math.isnan(v) and w > 0]
    if not known:
        return values[-1]
    last = name.rsplit("/", 1)[-1]
    if last.startswith("min_") or last == "min" or last.endswith("_min"):
        return min(value for value, _ in known)
    if last.startswith("max_") or last == "max" or last.endswith("_max"):
        return max(value for value, _ in known)
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def _weight(name: str, round_: Round) -> float:
    if name.endswith("_terminated_length"):
        return round(round_.rows * (1 - _mean(round_.metrics["completions/clipped_ratio"])))
    if name == "tools/failure_frequency":
        return round_.rows * _mean(round_.metrics["tools/call_frequency"])
    if name == "sampling/sampling_logp_difference/mean" or (
        name == "sampling/importance_sampling_ratio/mean" and round_.output["importance_sampling_ratio"].shape[1] > 1
    ):  # one number a token, unless the ratio is the sequence's
        return round_.rows * _mean(round_.metrics["completions/mean_length"])
    return round_.rows


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
