"""A short adaptive training run with any of TRL's options, and what must hold after it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.test_advantages import plain_advantages
from tests.tiny import RecordingTrainer, completions_of, make_trainer, prompts_of, weights

BUDGET, PROMPTS, GROUP = 16, 4, 4


def ids_parity(ids: Sequence[int]) -> float:
    """What every reward of these tests is made of: it follows from the tokens alone."""
    return float(sum(ids) % 2)


def number_in(prompt: Any) -> int:
    """The number that a prompt of `sums_dataset` asks about, whatever the prompt's form."""
    return int(re.findall(r"What is (\d+) \+", str(prompt))[-1])


def parity(
    prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], number: list[int], **kwargs: Any
) -> list[float]:
    """0 or 1 by the completion's tokens; fails where a row's columns are not those of its prompt."""
    assert len(prompts) == len(completions) == len(completion_ids) == len(number)
    assert [number_in(prompt) for prompt in prompts] == number
    return [ids_parity(ids) for ids in completion_ids]


def adaptive(
    model_dir: Path, output_dir: Path, trainer_class: type = RecordingTrainer, reward: Any = parity, **options: Any
) -> Any:
    """A trainer on batches of 4 prompts and 16 rollouts, in up to 3 rounds decided by AdaRoll."""
    defaults: dict[str, Any] = {
        "allocator": "adaroll",
        "rounds": 3,
        "min_rollouts": 1,
        "max_completion_length": 8,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 2,
        "num_generations": GROUP,
        "max_steps": 4,
        "table_cache_dir": str(output_dir / "tables"),
    }
    return make_trainer(
        trainer_class, model_dir=model_dir, output_dir=output_dir, reward=reward, **{**defaults, **options}
    )


def check_run(
    trainer: Any,
    row_rewards: Callable[[list[int]], list[float]] = lambda ids: [ids_parity(ids)],
    aggregation: str = "sum_then_normalize",
    batches: int = 2,
) -> list[dict[str, Any]]:
    """Train, then check what must hold whatever the option: budget, prompts, rewards, advantages, loss, weights.

    Returns:
        The output of each generation batch.
    """
    start = weights(trainer)
    trainer.train()
    outputs = [output for _, output in trainer.recorded]
    assert len(outputs) == batches
    for inputs, output in trainer.recorded:
        _check_batch(trainer, inputs, output, row_rewards, aggregation)
    _check_table(trainer, outputs[-1], row_rewards)
    _check_log(trainer)
    end = weights(trainer)
    assert any(not torch.equal(end[name], value) for name, value in start.items())
    assert all(torch.isfinite(value).all() for value in end.values())
    return outputs


def _check_batch(
    trainer: Any, inputs: list[dict[str, Any]], output: dict[str, Any], row_rewards: Any, aggregation: str
) -> None:
    prompts = prompts_of(output)
    assert len(inputs) == len(prompts) == BUDGET
    assert all(len(value) == BUDGET for key, value in output.items() if key in ("completion_ids", "advantages"))
    sizes = Counter(prompts)
    assert len(sizes) == PROMPTS
    rewards = [row_rewards(ids) for ids in unmasked_completions(trainer, output)]
    if rewards[0]:
        expected = plain_advantages(
            rewards, prompts, trainer.reward_weights.tolist(), trainer.scale_rewards, aggregation
        )
        torch.testing.assert_close(output["advantages"], torch.tensor(expected), rtol=2e-3, atol=1e-4)


def unmasked_completions(trainer: Any, output: dict[str, Any]) -> list[list[int]]:
    """The completions, with those that `mask_truncated_completions` hides from the loss."""
    if not trainer.mask_truncated_completions:
        return completions_of(output)
    pad = trainer._tokenizer.pad_token_id
    return [[token for token in ids.tolist() if token != pad] for ids in output["completion_ids"]]


def _check_table(trainer: Any, output: dict[str, Any], row_rewards: Any) -> None:
    """Every column of the completions table has a row for each rollout, in the order of the batch."""
    logs = trainer._logs
    columns = [logs["prompt"], logs["completion"], logs["advantages"], *logs["rewards"].values()]
    columns += logs["extra"].values()
    assert {len(column) for column in columns} == {BUDGET}
    groups, sizes = list(logs["extra"]["group"]), list(logs["extra"]["group_size"])
    assert all(Counter(groups)[group] == size for group, size in zip(groups, sizes, strict=True))
    by_group: dict[int, set[Any]] = {}
    for group, prompt in zip(groups, prompts_of(output), strict=True):
        by_group.setdefault(group, set()).add(prompt)
    assert [len(by_group[group]) for group in range(PROMPTS)] == [1] * PROMPTS
    expected = [row_rewards(ids) for ids in unmasked_completions(trainer, output)]
    if expected[0]:
        found = zip(*logs["rewards"].values(), strict=True)
        torch.testing.assert_close(torch.tensor(list(found)), torch.tensor(expected), equal_nan=True)
    torch.testing.assert_close(torch.tensor(list(logs["advantages"])), output["advantages"].float().cpu())


def _check_log(trainer: Any) -> None:
    """The budget was spent in several rounds, unequally, and every step had a finite loss."""
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == trainer.state.global_step > 0
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"]) for entry in steps)
    batches = [entry for entry in steps if "adaroll/rounds" in entry]
    assert all(entry["adaroll/rounds"] >= 2 for entry in batches)
    assert all(entry["adaroll/rollouts_per_prompt/mean"] == GROUP for entry in batches)
    assert any(entry["adaroll/rollouts_per_prompt/std"] > 0 for entry in batches)
