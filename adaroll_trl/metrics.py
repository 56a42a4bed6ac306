"""Successes, and what is logged of a generation batch under `adaroll/`.

Utilities are logged per prompt (the batch's sum divided by its number of prompts), so that batch sizes compare.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from trl.trainer.utils import nanstd

from .advantages import group_masses, weighted_rewards
from .batch import GenerationBatch
from .utilities import Utility

FloatArray = NDArray[np.float64]

_DEFAULT_THRESHOLD = 0.5


class SuccessSignal:
    """Which rollouts succeeded: the yes or no that beliefs are made of.

    Args:
        names (list of `str`): the reward functions' names.
        weights (`torch.Tensor`): their weights.
        reward (`str`, *optional*): the one that decides; None: the weighted sum.
        threshold (`float`, *optional*): success is a value at or above it. None means 0.5, and then a warning, once,
            where the values seen are not clearly on two sides of it.
        warn (callable): takes that warning.
    """

    def __init__(
        self,
        names: list[str],
        weights: torch.Tensor,
        reward: str | None = None,
        threshold: float | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        if reward is not None and names.count(reward) != 1:
            many = "is the name of several reward functions" if reward in names else "is not a reward function"
            raise ValueError(f"success_reward={reward!r} {many}. The reward functions are {names}.")
        self._index = None if reward is None else names.index(reward)
        self._weights = weights
        self._label = reward or "the weighted sum of the rewards"
        self._threshold = _DEFAULT_THRESHOLD if threshold is None else threshold
        self._watch_range = threshold is None
        self._warn = warn

    def outcomes(self, rewards_per_func: torch.Tensor, watch: bool = True) -> FloatArray:
        """1 for a success, 0 for a failure, nan for a rollout without reward; shape (B,).

        Args:
            rewards_per_func (`torch.Tensor` of shape (B, reward functions)): nan for none.
            watch (`bool`): whether these are enough rewards to judge by whether they look binary.
        """
        if self._index is None:
            values = weighted_rewards(rewards_per_func, self._weights)
        else:
            values = rewards_per_func[:, self._index]
        array = values.detach().cpu().numpy().astype(np.float64)
        if watch:
            self._warn_if_not_binary(array[~np.isnan(array)])
        # Rewards are float32: 0.7 is stored as a little less, and a weighted sum may round either way
        least = self._threshold - 1e-6 * max(1.0, abs(self._threshold))
        return np.where(np.isnan(array), np.nan, (array >= least).astype(np.float64))

    def _warn_if_not_binary(self, values: FloatArray) -> None:
        if not self._watch_range or values.size == 0 or values.min() == values.max():
            return
        low, high = float(values.min()), float(values.max())
        one_sided = low >= self._threshold or high < self._threshold
        undecided = np.abs((values - low) / (high - low) - 0.5) < 0.25
        if one_sided or undecided.mean() > 0.1:
            self._watch_range = False
            self._warn(
                f"The success signal is {self._label}, which ranges from {low:.4g} to {high:.4g} here and does not "
                f"look like a yes or no around the default threshold {self._threshold}. Set `success_threshold` to "
                "the value at or above which a rollout succeeded, or `success_reward` to a reward function that gives "
                "0 or 1."
            )


def reward_metrics(
    rewards_per_func: torch.Tensor, names: list[str], weights: torch.Tensor, std: torch.Tensor
) -> dict[str, float]:
    """TRL's reward metrics, under TRL's names, over all rounds of a batch."""
    metrics = {}
    for index, name in enumerate(names):
        metrics[f"rewards/{name}/mean"] = torch.nanmean(rewards_per_func[:, index]).item()
        metrics[f"rewards/{name}/std"] = nanstd(rewards_per_func[:, index]).item()
    rewards = weighted_rewards(rewards_per_func, weights)
    metrics["reward"] = torch.nanmean(rewards).item()
    metrics["reward_std"] = nanstd(rewards).item()
    metrics["frac_reward_zero_std"] = torch.isclose(std, torch.zeros_like(std)).float().mean().item()
    return metrics


def adaroll_metrics(
    batch: GenerationBatch, utility: Utility, rewards: torch.Tensor, advantages: torch.Tensor, group_ids: torch.Tensor
) -> dict[str, float]:
    """Everything that is logged under `adaroll/`; what is unknown (nan) is left out."""
    metrics = allocation_metrics(batch.successes, batch.failures, batch.rollouts, utility)
    metrics |= batch.estimates
    metrics |= training_metrics(rewards, advantages, group_ids)
    metrics |= {"rounds": float(len(batch.rounds)), "time/allocate": batch.seconds}
    return {f"adaroll/{name}": value for name, value in metrics.items() if not np.isnan(value)}


def allocation_metrics(
    successes: FloatArray, failures: FloatArray, rollouts: NDArray[np.int64], utility: Utility
) -> dict[str, float]:
    """What the allocation did, from each prompt's counts over the whole batch."""
    mixed = (successes > 0) & (failures > 0)
    return {
        "rollouts_per_prompt/min": float(rollouts.min()),
        "rollouts_per_prompt/mean": float(rollouts.mean()),
        "rollouts_per_prompt/max": float(rollouts.max()),
        "rollouts_per_prompt/std": float(rollouts.std()),
        "frac_prompts_mixed": float(mixed.mean()),
        "frac_prompts_all_correct": float(((successes > 0) & (failures == 0)).mean()),
        "frac_prompts_all_wrong": float(((successes == 0) & (failures > 0)).mean()),
        "frac_rollouts_in_mixed_groups": float(rollouts[mixed].sum() / rollouts.sum()),
        "utility/realised": float(utility(successes, failures).mean()),
    }


def training_metrics(rewards: torch.Tensor, advantages: torch.Tensor, group_ids: torch.Tensor) -> dict[str, float]:
    """What the loss gets to see, by prompt.

    `prompt_reward_mean` counts each prompt once, whatever its number of rollouts. A prompt's weight is the sum of its
    absolute advantages; `prompt_weight/max_over_mean` is nan (not logged) where no prompt has any.
    """
    num_prompts = int(group_ids.max()) + 1
    scored = ~torch.isnan(rewards)
    ids = group_ids[scored]
    sums = torch.zeros(num_prompts, device=rewards.device).index_add_(0, ids, rewards[scored])
    counts = torch.bincount(ids, minlength=num_prompts)
    weights = group_masses(advantages, group_ids, num_prompts)
    return {
        "prompt_reward_mean": (sums / counts)[counts > 0].mean().item(),
        "prompt_weight/max_over_mean": (weights.max() / weights.mean()).item(),
    }
