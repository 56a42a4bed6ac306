"""Advantages over groups of any size, by TRL's rules.

TRL computes advantages on `rewards.view(-1, num_generations)`. Here the groups' rewards lie in the rows of a matrix
that is padded with NaN, which TRL's NaN-aware mean and std ignore. For groups of equal size that follow each other the
matrix is TRL's view, so the numbers are TRL's to the last bit, with one deliberate difference: where all rewards of a
group are alike up to float rounding, its centred rewards and std are exactly 0. TRL leaves the rounding error there,
divided by a std of about 1e-4.
"""

from __future__ import annotations

import torch
from trl.trainer.utils import nanstd

__all__ = ["group_advantages"]

# A reward spread of at most this times the largest reward is rounding (float32 resolves 1.2e-7), not signal
_ALIKE = 1e-6
_EPSILON = 1e-4  # what TRL adds to a std before it divides by it


def group_advantages(
    rewards_per_func: torch.Tensor,
    group_ids: torch.Tensor,
    reward_weights: torch.Tensor,
    scale_rewards: str = "group",
    multi_objective_aggregation: str = "sum_then_normalize",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and reward stds of rollouts whose groups may differ in size.

    Args:
        rewards_per_func (`torch.Tensor` of shape (B, F)): each reward function's value; NaN where it returned None.
        group_ids (integer `torch.Tensor` of shape (B,)): the group of each rollout, in any order.
        reward_weights (`torch.Tensor` of shape (F,)): weights of the reward functions.
        scale_rewards (`str`): "group", "batch" or "none", as in `GRPOConfig`.
        multi_objective_aggregation (`str`): "sum_then_normalize" or "normalize_then_sum", as in `GRPOConfig`.

    Returns:
        Two tensors of shape (B,). The advantages are 0 for a rollout without any reward, for the only rollout of a
        group and where a group's rewards are all alike (with "normalize_then_sum", which centres once more over the
        batch, 0 up to the rounding of that mean). The stds are those the advantages were divided by; with
        scale_rewards="none" those of the groups; 0 for a group of one.
    """
    layout = _Layout(group_ids)
    weights = reward_weights.to(rewards_per_func.device).unsqueeze(0)
    if multi_objective_aggregation == "sum_then_normalize":
        advantages, std = _sum_then_normalize(rewards_per_func, weights, layout, scale_rewards)
    elif multi_objective_aggregation == "normalize_then_sum":
        advantages, std = _normalize_then_sum(rewards_per_func, weights, layout)
    else:
        raise ValueError(
            f"multi_objective_aggregation={multi_objective_aggregation!r} is not known. Use 'sum_then_normalize' or "
            "'normalize_then_sum'."
        )
    return torch.nan_to_num(advantages, nan=0.0), std


def weighted_rewards(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum over reward functions, (B,); NaN where every function returned None."""
    rewards = (rewards_per_func * reward_weights.to(rewards_per_func.device).unsqueeze(0)).nansum(dim=1)
    rewards[torch.isnan(rewards_per_func).all(dim=1)] = torch.nan
    return rewards


def unscaled(advantages: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Advantages that were divided by their `std` as if they had not been; both of shape (B,)."""
    return advantages * (std + _EPSILON)


def group_masses(advantages: torch.Tensor, group_ids: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Half the summed |advantage| of each group, shape (num_groups,): s f / n for a mean baseline and 0/1 rewards."""
    masses = torch.zeros(num_groups, dtype=advantages.dtype, device=advantages.device)
    return masses.index_add_(0, group_ids, advantages.abs() / 2)


def _sum_then_normalize(
    rewards_per_func: torch.Tensor, weights: torch.Tensor, layout: _Layout, scale_rewards: str
) -> tuple[torch.Tensor, torch.Tensor]:
    rewards = weighted_rewards(rewards_per_func, weights.squeeze(0))
    centred, std = layout.centre(rewards.unsqueeze(1))
    advantages, std = centred.squeeze(1), std.squeeze(1)
    if scale_rewards == "batch":
        std = _batch_std(rewards)
    elif scale_rewards not in ("group", "none"):
        raise ValueError(f"scale_rewards={scale_rewards!r} is not known. Use 'group', 'batch' or 'none'.")
    if scale_rewards != "none":
        advantages = advantages / (std + _EPSILON)
    return advantages, std


def _normalize_then_sum(
    rewards_per_func: torch.Tensor, weights: torch.Tensor, layout: _Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    centred, std = layout.centre(rewards_per_func)
    rewards = (centred / (std + _EPSILON) * weights).nansum(dim=1)
    rewards[torch.isnan(rewards_per_func).all(dim=1)] = torch.nan
    batch_std = _batch_std(rewards)
    return (rewards - torch.nanmean(rewards)) / (batch_std + _EPSILON), batch_std


def _batch_std(rewards: torch.Tensor) -> torch.Tensor:
    return nanstd(rewards).expand_as(rewards) if rewards.numel() > 1 else torch.zeros_like(rewards)


class _Layout:
    """Where each rollout sits in the padded matrix of shape (groups, largest group)."""

    def __init__(self, group_ids: torch.Tensor) -> None:
        sizes = torch.bincount(group_ids)
        order = torch.argsort(group_ids, stable=True)
        starts = torch.cumsum(sizes, dim=0) - sizes
        self.rows = group_ids
        self.columns = torch.empty_like(group_ids)
        self.columns[order] = torch.arange(group_ids.numel(), device=group_ids.device) - starts[group_ids[order]]
        self.sizes = sizes
        self.shape = (sizes.numel(), int(sizes.max()))

    def centre(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each rollout's distance from its group's mean and its group's std (Bessel), both (B, F)."""
        padded = values.new_full((*self.shape, values.shape[1]), torch.nan)
        padded[self.rows, self.columns] = values
        mean, std, alike = self._moments(padded)
        centred = values - mean[self.rows]
        alike = alike[self.rows]
        centred = torch.where(alike & ~torch.isnan(centred), torch.zeros_like(centred), centred)
        return centred, torch.where(alike, torch.zeros_like(values), std[self.rows])

    def _moments(self, padded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # One function is a matrix of its own, as TRL's view is: a reduction over another layout may round differently
        matrix = padded.squeeze(2) if padded.shape[2] == 1 else padded
        mean, std = torch.nanmean(matrix, dim=1), nanstd(matrix, dim=1)
        if padded.shape[2] == 1:
            mean, std = mean.unsqueeze(1), std.unsqueeze(1)
        known = ~torch.isnan(padded)
        highest = padded.masked_fill(~known, -torch.inf).amax(dim=1)
        lowest = padded.masked_fill(~known, torch.inf).amin(dim=1)
        largest = torch.where(known, padded, torch.zeros_like(padded)).abs().amax(dim=1)
        alike = (known.sum(dim=1) > 1) & (highest - lowest <= _ALIKE * largest)
        return mean, std, alike | (self.sizes == 1).unsqueeze(1)
