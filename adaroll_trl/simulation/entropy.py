"""Relative gain of adaptive allocation against the entropy of the difficulty, simulated and from finished runs.

The paper (AdaRoll-GRPO, October 2026) has such a figure, its fourth; how it defines entropy and gain is not public.
Here

    entropy         of the histogram of pass rates over equal bins (10 by default), in nats: 0 where all prompts fall
                    into one bin, log(bins) where they are spread evenly
    relative gain   utility of a batch above that of equal groups, as a share of the latter; for finished runs, the
                    same of a number that both measured, such as the share of groups with both outcomes or an accuracy
                    (`adaroll_trl.report.gain` reads them)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .compare import Setting
from .difficulty import Difficulty
from .measured import Measured
from .pass_counts import PassCounts


@dataclass(frozen=True)
class GainPoint:
    """One difficulty: its entropy in nats, and the relative gain there."""

    label: str
    entropy: float
    gain: Measured


def simulated_gain(setting: Setting, num_batches: int = 4000, seed: int = 0, bins: int = 10) -> GainPoint:
    """The gain of `adaroll` over equal groups in a setting (`Setting`), paired on the same outcomes."""
    result = setting.play("adaroll", num_batches, seed)
    difficulty: Difficulty = setting.difficulty
    gain = result.gain / result.uniform_mean if result.uniform_mean > 0 else Measured(float("nan"), float("nan"))
    return GainPoint(difficulty.label, difficulty.entropy(bins), gain)


def measured_gain(
    label: str, counts: PassCounts, base: Measured, other: Measured, fit: str = "beta", bins: int = 10
) -> GainPoint:
    """The gain of what one run measured, `other`, over what another did, `base`, with independent errors.

    Args:
        label (`str`): of the point.
        counts (`PassCounts`): of prompts, whose pass rates have the entropy.
        base, other (`Measured`): a number that both runs measured. A `base` of 0 has no relative gain.
        fit (`str`), bins (`int`): of the pass rates (`PassCounts.difficulty`) and their entropy.
    """
    gain = Measured(float("nan"), float("nan"))
    if base.value:
        ratio = other.value / base.value
        gain = Measured(ratio - 1.0, float(np.hypot(other.error, ratio * base.error)) / abs(base.value))
    return GainPoint(label, counts.difficulty(fit).entropy(bins), gain)
