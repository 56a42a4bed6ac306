"""`group_advantages`: TRL's numbers on equal groups, a plain loop's on any others, and 0 where there is no signal."""

from __future__ import annotations

import math

import pytest
import torch
from trl.trainer.utils import nanstd

from adaroll_trl.advantages import group_advantages, group_masses, unscaled

SCALES = ["group", "batch", "none"]
MODES = ["sum_then_normalize", "normalize_then_sum"]
NAN = math.nan


def trl_advantages(rewards_per_func, group, weights, scale, mode):
    """What TRL 1.16 computes inside `_generate_and_score_completions` (its lines, for equal groups)."""
    unscorable = torch.isnan(rewards_per_func).all(dim=1)
    if mode == "sum_then_normalize":
        rewards = (rewards_per_func * weights.unsqueeze(0)).nansum(dim=1)
        rewards[unscorable] = torch.nan
        mean = torch.nanmean(rewards.view(-1, group), dim=1).repeat_interleave(group, dim=0)
        if scale == "batch":
            std = nanstd(rewards).expand_as(rewards)
        else:
            std = nanstd(rewards.view(-1, group), dim=1).repeat_interleave(group, dim=0)
        advantages = rewards - mean
        if scale != "none":
            advantages = advantages / (std + 1e-4)
    else:
        grouped = rewards_per_func.view(-1, group, rewards_per_func.shape[1])
        mean_k, std_k = torch.nanmean(grouped, dim=1, keepdim=True), nanstd(grouped, dim=1, keepdim=True)
        reward_k = ((grouped - mean_k) / (std_k + 1e-4)).view(-1, rewards_per_func.shape[1])
        rewards = (reward_k * weights.unsqueeze(0)).nansum(dim=1)
        rewards[unscorable] = torch.nan
        std = nanstd(rewards).expand_as(rewards)
        advantages = (rewards - torch.nanmean(rewards)) / (std + 1e-4)
    return torch.nan_to_num(advantages, nan=0.0), std


def plain_advantages(rewards, ids, weights, scale, mode):
    """The same rules in plain Python, group by group."""

    def moments(values):
        known = [v for v in values if not math.isnan(v)]
        if not known:
            return NAN, NAN
        mean = sum(known) / len(known)
        if len(values) == 1:
            return mean, 0.0
        if len(known) == 1:
            return mean, NAN
        return mean, math.sqrt(sum((v - mean) ** 2 for v in known) / (len(known) - 1))

    def total(row):
        known = [w * v for w, v in zip(weights, row, strict=True) if not math.isnan(v)]
        return sum(known) if known else NAN

    members = {g: [i for i, other in enumerate(ids) if other == g] for g in set(ids)}
    if mode == "sum_then_normalize":
        sums = [total(row) for row in rewards]
        batch_std = moments(sums)[1]
        result = []
        for i, g in enumerate(ids):
            mean, std = moments([sums[k] for k in members[g]])
            std = batch_std if scale == "batch" else std
            result.append(sums[i] - mean if scale == "none" else (sums[i] - mean) / (std + 1e-4))
    else:
        normal = [[NAN] * len(weights) for _ in ids]
        for g in members:
            for k in range(len(weights)):
                mean, std = moments([rewards[i][k] for i in members[g]])
                for i in members[g]:
                    normal[i][k] = (rewards[i][k] - mean) / (std + 1e-4)
        sums = [
            NAN
            if all(map(math.isnan, rewards[i]))
            else sum(w * v for w, v in zip(weights, normal[i], strict=True) if not math.isnan(v))
            for i in range(len(ids))
        ]
        mean, std = moments(sums)
        result = [(s - mean) / (std + 1e-4) for s in sums]
    return [0.0 if math.isnan(a) else a for a in result]


def some_rewards(rows, functions, seed, missing=0.2, binary=False):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(rows, functions, generator=generator)
    if binary:
        rewards = (rewards > 0.6).float()
    rewards[torch.rand(rows, functions, generator=generator) < missing] = NAN
    return rewards


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("functions", [1, 3])
@pytest.mark.parametrize("binary", [False, True])
def test_equal_groups_are_trl_to_the_last_bit(scale, mode, functions, binary):
    weights = torch.tensor([0.7, 1.3, 0.1][:functions])
    for seed, group in enumerate([2, 3, 4, 7, 8, 16]):
        rewards = some_rewards(group * 6, functions, seed, missing=0.2 * (seed % 2), binary=binary)
        ids = torch.arange(6).repeat_interleave(group)
        advantages, std = group_advantages(rewards, ids, weights, scale, mode)
        expected, expected_std = trl_advantages(rewards, group, weights, scale, mode)
        assert torch.equal(advantages, expected)
        assert torch.equal(torch.nan_to_num(std, nan=-1), torch.nan_to_num(expected_std, nan=-1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", [[4, 3, 4], [1, 6, 2, 3], [5], [1, 1]])
def test_unequal_groups_match_a_plain_loop(scale, mode, sizes):
    weights = [0.7, 1.3]
    for seed in range(5):
        ids = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]  # rounds interleave groups
        rewards = some_rewards(len(ids), 2, seed)
        advantages, _ = group_advantages(rewards, ids, torch.tensor(weights), scale, mode)
        expected = plain_advantages(rewards.tolist(), ids.tolist(), weights, scale, mode)
        torch.testing.assert_close(advantages, torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", SCALES)
def test_a_group_of_one_and_a_group_all_alike_have_advantage_zero(scale):
    rewards = torch.tensor([5.0, 0.3, 0.1 + 0.2, 0.3, 1.0, 0.0, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]).unsqueeze(1)
    ids = torch.tensor([0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3])
    advantages, std = group_advantages(rewards, ids, torch.ones(1), scale)
    silent = torch.tensor([True, True, True, True, False, False] + [True] * 6)
    assert (advantages[silent] == 0).all()
    assert (advantages[~silent] != 0).all()
    if scale != "batch":
        assert (std[silent] == 0).all()
        assert (std[~silent] > 0.5).all()


def test_float_noise_is_not_signal():
    # float32 rounds the mean of three times 0.1 away from 0.1, so a comparison of the std with 0 would see a signal
    rewards = torch.full((3, 1), 0.1) + torch.tensor([[0.0], [7.5e-9], [-7.5e-9]])
    assert rewards.unique().numel() > 1
    advantages, std = group_advantages(rewards, torch.zeros(3, dtype=torch.long), torch.ones(1), "group")
    assert (advantages == 0).all()
    assert (std == 0).all()


def test_small_differences_of_large_rewards_are_signal():
    rewards = torch.tensor([[1000.0], [1000.1], [1000.0]])
    advantages, _ = group_advantages(rewards, torch.zeros(3, dtype=torch.long), torch.ones(1), "group")
    assert (advantages.abs() > 0.5).all()


def test_normalize_then_sum_leaves_only_rounding_in_a_silent_group():
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]).unsqueeze(1)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    advantages, _ = group_advantages(rewards, ids, torch.ones(1), "group", "normalize_then_sum")
    assert advantages[[0, 1, 2, 6]].abs().max() < 1e-6


def test_a_rollout_without_reward_has_advantage_zero_and_does_not_move_the_others():
    rewards = torch.tensor([[1.0], [NAN], [0.0], [1.0]])
    ids = torch.zeros(4, dtype=torch.long)
    advantages, _ = group_advantages(rewards, ids, torch.ones(1), "none")
    torch.testing.assert_close(advantages, torch.tensor([1 / 3, 0.0, -2 / 3, 1 / 3]))


def test_a_mean_baseline_has_the_mass_sf_over_n_and_scaling_comes_off():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).unsqueeze(1)
    ids = torch.tensor([0, 0, 0, 2, 2, 2, 2])
    plain, _ = group_advantages(rewards, ids, torch.ones(1), "none")
    torch.testing.assert_close(group_masses(plain, ids, 3), torch.tensor([2 / 3, 0.0, 3 / 4]))
    torch.testing.assert_close(unscaled(*group_advantages(rewards, ids, torch.ones(1), "group")), plain)


def test_unknown_modes_are_named():
    rewards, ids = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="scale_rewards='all'"):
        group_advantages(rewards, ids, torch.ones(1), "all")
    with pytest.raises(ValueError, match="multi_objective_aggregation='max'"):
        group_advantages(rewards, ids, torch.ones(1), "group", "max")
