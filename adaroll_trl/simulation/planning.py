"""What to expect of adaptive allocation on prompts of a known difficulty, before any of it is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..solver.index import check_prior
from ..utilities import Utility, UtilityFunction, as_utility, make_utility
from ..values import integer
from .compare import Setting
from .difficulty import ROUNDING, Difficulty
from .difficulty_text import parse_difficulty
from .measured import Measured
from .play import SimulationResult

EDGES = (0.0, 0.02, 0.1, 0.3, 0.7, 0.9, 0.98, 1.0)  # of the bins by pass rate


@dataclass(frozen=True)
class Match:
    """Which number of rollouts under the allocator expects as much as equal groups of G do.

    Attributes:
        equal_at (`Measured`): rollouts per prompt of the allocator, between whole numbers by linear interpolation;
            nan if none up to G is enough.
        num_generations (`int`, *optional*): the next whole number: what to set.
        saving (`Measured`): share of rollouts saved, 1 - equal_at / G.
    """

    equal_at: Measured
    num_generations: int | None
    saving: Measured


@dataclass(frozen=True)
class Expectation:
    """What to expect of a prompt: the chance of a signal (both outcomes), or the utility.

    Attributes:
        uniform (`float`): of equal groups, exact.
        adaptive (`Measured`): of the allocator.
        gain (`Measured`): their difference, paired.
        bound (`float`): no policy within the bounds can expect more.
        equal_groups (`Measured`): the size of equal groups that expect as much as the allocator, between whole
            numbers by linear interpolation; nan if none up to the maximum of rollouts does.
        match (`Match`): the other way round, the rollouts of the allocator that expect as much as `uniform`.
    """

    uniform: float
    adaptive: Measured
    gain: Measured
    bound: float
    equal_groups: Measured
    match: Match


@dataclass(frozen=True)
class PlanRow:
    """One number of rollouts per prompt, in one number of rounds.

    Attributes:
        num_generations, rounds (`int`): of the setting.
        signal, utility (`Expectation`): of prompts with signal, and of the utility; the same for `mixed`.
        rollouts_with_signal (`Measured`): share of rollouts in groups with signal; in equal groups `signal.uniform`.
        rollouts (tuple of `Measured`): rollouts of a prompt, by bin of pass rate (`EDGES`); nan for an empty bin.
        largest_group (`int`): of the simulated batches.
    """

    num_generations: int
    rounds: int
    signal: Expectation
    utility: Expectation
    rollouts_with_signal: Measured
    rollouts: tuple[Measured, ...]
    largest_group: int


@dataclass(frozen=True)
class ExpectedRollouts:
    """What `plan` returns.

    Attributes:
        setting (`Setting`): what the rows have in common: difficulty, prior, utility, what is known beforehand.
        rows (tuple of `PlanRow`): one for every pair of `num_generations` and `rounds`.
        bin_masses (tuple of `float`): the share of prompts in each bin of pass rates.
    """

    setting: Setting
    rows: tuple[PlanRow, ...]
    bin_masses: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """Flat, for a CSV file: a row for each setting, each estimate with its standard error in `<name>_se`."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: PlanRow) -> dict[str, Any]:
        flat: dict[str, Any] = {"utility_name": as_utility(self.setting.utility).key, "carried": self.setting.carried}
        flat |= {"num_generations": row.num_generations, "rounds": row.rounds, "largest_group": row.largest_group}
        estimates = {"rollouts_with_signal": row.rollouts_with_signal}
        for name in ("signal", "utility"):
            found: Expectation = getattr(row, name)
            flat |= {f"{name}_uniform": found.uniform, f"{name}_bound": found.bound}
            estimates |= {f"{name}_{key}": getattr(found, key) for key in ("adaptive", "gain", "equal_groups")}
            estimates |= {f"{name}_{key}": getattr(found.match, key) for key in ("equal_at", "saving")}
        estimates |= {
            f"rollouts_{low:g}_{high:g}": one for (low, high), one in zip(pairwise(EDGES), row.rollouts, strict=True)
        }
        for name, value in estimates.items():
            flat |= {name: value.value, f"{name}_se": value.error}
        return flat


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
    carried: int = 0,
    carried_decay: float = 1.0,
    on_play: Callable[[], None] | None = None,
) -> ExpectedRollouts:
    """Expect signal, utility, rollouts by pass rate and saving of `adaroll` on prompts of this difficulty.

    Args:
        difficulty (`Difficulty` or `str`): of the prompts, see `parse_difficulty`.
        num_prompts (`int`): of a generation batch.
        num_generations, rounds (sequences of `int`): rollouts per prompt on average, at least 2, and generation
            rounds: every pair.
        utility (`str`, callable or `Utility`): what the allocator maximises.
        prior (pair of `float`, *optional*): what it believes of a prompt; the trainer's default is (1, 1). None:
            fitted to the difficulty, as `prior_source="empirical_bayes"` would (`Difficulty.fitted_prior`).
        num_batches, seed (`int`): of the simulations.
        min_rollouts, max_rollouts (`int`): per prompt. None as maximum: 4 times `num_generations`, as in the trainer.
        carried (`int`), carried_decay (`float`): outcomes of each prompt that are known from before the batch, as from
            earlier epochs, and what each counts; see `simulate`. As many whatever `num_generations` is.
        on_play (callable, *optional*): called before each simulation.

    Raises:
        ValueError: if an argument is out of range.
    """
    for generations in num_generations:
        integer("num_generations", generations, 2)
    difficulty = parse_difficulty(difficulty) if isinstance(difficulty, str) else difficulty
    base = Setting(
        difficulty,
        num_prompts,
        utility=as_utility(utility),
        prior=difficulty.fitted_prior() if prior is None else check_prior(prior),
        min_rollouts=min_rollouts,
        max_rollouts=max_rollouts,
        carried=carried,
        carried_decay=carried_decay,
    )
    played: dict[Setting, SimulationResult] = {}

    def play(setting: Setting) -> SimulationResult:
        if setting not in played:
            if on_play is not None:
                on_play()
            played[setting] = setting.play("adaroll", num_batches, seed)
        return played[setting]

    settings = [replace(base, num_generations=one, rounds=several) for one in num_generations for several in rounds]
    rows = tuple(_row(setting, play) for setting in settings)
    return ExpectedRollouts(base, rows, tuple(difficulty.bin_masses(EDGES).tolist()))


Play: TypeAlias = Callable[[Setting], SimulationResult]


def _row(setting: Setting, play: Play) -> PlanRow:
    result, chosen, mixed = play(setting), as_utility(setting.utility), make_utility("mixed")
    signal = utility = _expectation(setting, mixed, play, lambda played: played.signal)
    if chosen != mixed:
        utility = _expectation(setting, chosen, play, lambda played: played.utility / setting.num_prompts)
    return PlanRow(
        num_generations=setting.num_generations,
        rounds=setting.rounds,
        signal=signal,
        utility=utility,
        rollouts_with_signal=result.rollouts_with_signal,
        rollouts=tuple(rollouts_by_rate(result)),
        largest_group=int(result.rollouts.max()),
    )


def _expectation(
    setting: Setting, utility: Utility, play: Play, of: Callable[[SimulationResult], Measured]
) -> Expectation:
    """`of` is the mean `utility` of a prompt in a simulation."""
    difficulty, adaptive = setting.difficulty, of(play(setting))
    uniform = difficulty.expected(utility, setting.num_generations)
    size = difficulty.equal_groups(utility, adaptive.value, setting.maximum)
    error = math.nan
    if math.isfinite(size):
        above = math.ceil(size)
        error = adaptive.error / (difficulty.expected(utility, above) - difficulty.expected(utility, above - 1))
    return Expectation(
        uniform=uniform,
        adaptive=adaptive,
        gain=Measured(adaptive.value - uniform, adaptive.error),
        bound=setting.bound(utility),
        equal_groups=Measured(size, error),
        match=_match(setting, uniform, lambda generations: of(play(replace(setting, num_generations=generations)))),
    )


def _match(setting: Setting, wanted: float, expect: Callable[[int], Measured]) -> Match:
    """By bisection over whole numbers: more rollouts, more of the utility; no rollouts have none."""
    generations, unknown = setting.num_generations, Measured(math.nan, math.nan)
    low, high = 0, generations
    if wanted <= ROUNDING or expect(generations).value < wanted - ROUNDING:
        return Match(unknown, None, unknown)
    while high - low > 1:
        middle = (low + high) // 2
        if expect(middle).value >= wanted - ROUNDING:
            high = middle
        else:
            low = middle
    enough, short = expect(high), expect(low) if low else Measured(0.0)
    slope = enough.value - short.value
    share = min((wanted - short.value) / slope, 1.0)
    error = float(np.hypot(share * enough.error, (1 - share) * short.error)) / slope
    equal_at = Measured(low + share, error)
    return Match(equal_at, high, Measured(1 - equal_at.value / generations, error / generations))


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
