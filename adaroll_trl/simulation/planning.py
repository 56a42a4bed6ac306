"""What to expect of adaptive allocation on prompts of a known difficulty, before any of it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..utilities import Utility, UtilityFunction
from .compare import Setting
from .difficulty import Difficulty
from .difficulty_text import parse_difficulty
from .measured import Measured
from .play import SimulationResult

EDGES = (0.0, 0.02, 0.1, 0.3, 0.7, 0.9, 0.98, 1.0)  # of the bins by pass rate


@dataclass(frozen=True)
class PlanRow:
    """One number of rollouts per prompt, in one number of rounds.

    Attributes:
        num_generations, rounds (`int`): of the setting.
        uniform (`float`): share of prompts with signal (both outcomes) for equal groups, exact.
        adaptive (`Measured`): the same for the allocator.
        gain (`Measured`): their difference, paired.
        bound (`float`): no policy within the bounds can expect more.
        rollouts_with_signal (`Measured`): share of rollouts in such groups; for equal groups it is `uniform`.
        rollouts (tuple of `Measured`): rollouts of a prompt, by bin of pass rate (`EDGES`); nan for an empty bin.
        largest_group (`int`): of the simulated batches.
    """

    num_generations: int
    rounds: int
    uniform: float
    adaptive: Measured
    gain: Measured
    bound: float
    rollouts_with_signal: Measured
    rollouts: tuple[Measured, ...]
    largest_group: int


@dataclass(frozen=True)
class Match:
    """Which number of rollouts under the allocator shows as many prompts with signal as equal groups do.

    Attributes:
        uniform_generations, rounds (`int`): equal groups of that size, and the allocator's rounds.
        equal_at (`Measured`): rollouts per prompt of the allocator, between whole numbers by linear interpolation;
            nan if none up to `uniform_generations` is enough.
        num_generations (`int`, *optional*): the next whole number: what to set.
        saving (`Measured`): share of rollouts saved, 1 - equal_at / uniform_generations.
    """

    uniform_generations: int
    rounds: int
    equal_at: Measured
    num_generations: int | None
    saving: Measured


@dataclass(frozen=True)
class ExpectedRollouts:
    """What `plan` returns.

    Attributes:
        difficulty (`Difficulty`): of the prompts.
        prior (pair of `float`): planned with.
        rows, matches (`tuple`): of `PlanRow` and of `Match`, one of each for every setting.
        bin_masses (`tuple` of `float`): the share of prompts in each bin of pass rates.
    """

    difficulty: Difficulty
    prior: tuple[float, float]
    rows: tuple[PlanRow, ...]
    matches: tuple[Match, ...]
    bin_masses: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """Flat, for a CSV file: a row for each setting, each estimate with its standard error in `<name>_se`."""
        found = []
        for row, match in zip(self.rows, self.matches, strict=True):
            flat: dict[str, Any] = {"num_generations": row.num_generations, "rounds": row.rounds}
            flat |= {"uniform": row.uniform, "bound": row.bound, "largest_group": row.largest_group}
            estimates = {"adaptive": row.adaptive, "gain": row.gain, "rollouts_with_signal": row.rollouts_with_signal}
            estimates |= {"equal_at": match.equal_at, "saving": match.saving}
            names = [f"rollouts_{low:g}_{high:g}" for low, high in pairwise(EDGES)]
            for name, value in (estimates | dict(zip(names, row.rollouts, strict=True))).items():
                flat |= {name: value.value, f"{name}_se": value.error}
            found.append(flat)
        return found


def plan(
    difficulty: Difficulty | str,
    num_prompts: int = 32,
    num_generations: Sequence[int] = (4, 8, 16),
    rounds: Sequence[int] = (2, 4),
    utility: str | UtilityFunction | Utility = "mixed",
    prior: tuple[float, float] | None = (1.0, 1.0),
    num_batches: int = 4000,
    seed: int = 0,
    *,
    min_rollouts: int = 2,
    max_rollouts: int | None = None,
    on_play: Callable[[], None] | None = None,
) -> ExpectedRollouts:
    """Expect the signal, the rollouts by pass rate and the saving of `adaroll` on prompts of this difficulty.

    Args:
        difficulty (`Difficulty` or `str`): of the prompts, see `parse_difficulty`.
        num_prompts (`int`): of a generation batch.
        num_generations, rounds (sequences of `int`): rollouts per prompt on average, and generation rounds:
            every pair.
        utility (`str`, callable or `Utility`): what the allocator maximises.
        prior (pair of `float`, *optional*): what it believes of a prompt; the trainer's default is (1, 1). None: the
            Beta of the difficulty's mean and variance.
        num_batches, seed (`int`): of the simulations.
        min_rollouts, max_rollouts (`int`): per prompt. None as maximum: 4 times `num_generations`, as in the trainer.
        on_play (callable, *optional*): called before each simulation.

    Raises:
        ValueError: if an argument is out of range.
    """
    difficulty = parse_difficulty(difficulty) if isinstance(difficulty, str) else difficulty
    believed = difficulty.nearest_beta() if prior is None else prior
    base = Setting(
        difficulty,
        num_prompts,
        utility=utility,
        prior=believed,
        min_rollouts=min_rollouts,
        max_rollouts=max_rollouts,
    )
    played: dict[tuple[int, int], SimulationResult] = {}

    def play(generations: int, in_rounds: int) -> SimulationResult:
        key = (generations, in_rounds)
        if key not in played:
            if on_play is not None:
                on_play()
            setting = replace(base, num_generations=generations, rounds=in_rounds)
            played[key] = setting.play("adaroll", num_batches, seed)
        return played[key]

    rows, matches = [], []
    for generations in num_generations:
        for in_rounds in rounds:
            setting = replace(base, num_generations=generations, rounds=in_rounds)
            rows.append(_row(setting, play(generations, in_rounds)))
            matches.append(_match(difficulty, generations, in_rounds, play))
    return ExpectedRollouts(
        difficulty, believed, tuple(rows), tuple(matches), tuple(difficulty.bin_masses(EDGES).tolist())
    )


def _row(setting: Setting, result: SimulationResult) -> PlanRow:
    return PlanRow(
        num_generations=setting.num_generations,
        rounds=setting.rounds,
        uniform=result.uniform_signal,
        adaptive=result.signal,
        gain=result.signal_gain,
        bound=setting.bound("mixed"),
        rollouts_with_signal=result.rollouts_with_signal,
        rollouts=tuple(rollouts_by_rate(result)),
        largest_group=int(result.rollouts.max()),
    )


def rollouts_by_rate(result: SimulationResult, edges: Sequence[float] = EDGES) -> list[Measured]:
    """Rollouts of a prompt in each bin of pass rate, over the batches that have some: a ratio of sums, its standard
    error over batches (prompts of a batch share a budget)."""
    which = np.clip(np.searchsorted(edges, result.success_probs, side="right") - 1, 0, len(edges) - 2)
    found = []
    for number in range(len(edges) - 1):
        inside = which == number
        prompts, rollouts = inside.sum(axis=1), (result.rollouts * inside).sum(axis=1)
        if prompts.sum() < 2:
            found.append(Measured(float("nan"), float("nan")))
            continue
        mean = rollouts.sum() / prompts.sum()
        residual = rollouts - mean * prompts
        found.append(Measured(float(mean), float(residual.std(ddof=1) * np.sqrt(residual.size) / prompts.sum())))
    return found


def _match(
    difficulty: Difficulty, generations: int, rounds: int, play: Callable[[int, int], SimulationResult]
) -> Match:
    """By bisection over whole numbers: more rollouts, more prompts with signal."""
    wanted = difficulty.signal(generations)
    low, high = 1, generations  # one rollout never shows both outcomes
    unknown = Measured(float("nan"), float("nan"))
    if wanted <= 0.0 or play(generations, rounds).signal.value < wanted:
        return Match(generations, rounds, unknown, None, unknown)
    while high - low > 1:
        middle = (low + high) // 2
        if play(middle, rounds).signal.value >= wanted:
            high = middle
        else:
            low = middle
    enough = play(high, rounds).signal
    short = play(low, rounds).signal if low > 1 else Measured(0.0)
    slope = enough.value - short.value
    share = (wanted - short.value) / slope
    error = float(np.hypot(share * enough.error, (1 - share) * short.error)) / slope
    equal_at = Measured(low + share, error)
    return Match(generations, rounds, equal_at, high, Measured(1 - equal_at.value / generations, error / generations))
