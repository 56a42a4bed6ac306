"""Allocators side by side on the same batches, with equal groups and the bound beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..allocators import ALLOCATOR_NAMES, Allocator
from ..allocators.contract import name_of
from ..utilities import Utility, UtilityFunction, as_utility
from .bound import difficulty_bound
from .difficulty import Difficulty
from .measured import Measured
from .play import SimulationResult, gain_share, simulate
from .stream_play import check_streams

SEQUENTIAL, BOUND = "one at a time", "bound"
_SLOWER = {"adaroll_joint": 20}  # a decision takes milliseconds: it plays a 20th of the batches
_FEWEST = 20
ONE_PRIOR = frozenset({"adaroll_joint"})  # these refuse prompts with different beliefs


@dataclass(frozen=True)
class Setting:
    """What the allocators of a comparison have in common.

    Attributes:
        difficulty (`Difficulty`): of the prompts.
        num_prompts, num_generations (`int`): prompts of a batch, and rollouts per prompt on average.
        rounds (`int`): generation rounds.
        utility (`str`, callable or `Utility`): measured, and maximised by those that maximise one.
        prior (pair of `float`): what allocators believe of a prompt.
        min_rollouts (`int`), max_rollouts (`int`, *optional*): bounds. None as maximum: 4 * num_generations.
        carried (`int`), carried_decay (`float`): see `simulate`.
        in_flight (`int`, *optional*), lengths (`str`): streams instead of rounds, see `simulate`.
    """

    difficulty: Difficulty
    num_prompts: int = 32
    num_generations: int = 8
    rounds: int = 4
    utility: str | UtilityFunction | Utility = "mixed"
    prior: tuple[float, float] = (1.0, 1.0)
    min_rollouts: int = 2
    max_rollouts: int | None = None
    carried: int = 0
    carried_decay: float = 1.0
    in_flight: int | None = None
    lengths: str = "even"

    @property
    def budget(self) -> int:
        """Rollouts of a batch."""
        return self.num_prompts * self.num_generations

    @property
    def maximum(self) -> int:
        """The most rollouts of a prompt."""
        return 4 * self.num_generations if self.max_rollouts is None else self.max_rollouts

    @property
    def beliefs(self) -> bool:
        """Whether prompts differ in what is believed of them before the batch."""
        return self.carried > 0 and self.carried_decay > 0

    @property
    def known(self) -> str:
        """What is known before the batch, as the end of a title; empty for nothing."""
        faded = f" (each counts {self.carried_decay:g})" if self.carried_decay < 1 else ""
        return f", {self.carried} earlier outcomes of each prompt known{faded}" if self.carried else ""

    @property
    def text(self) -> str:
        """The utility, how the budget is spent, and what is known before."""
        way = f"{self.rounds} round{'s' * (self.rounds > 1)}"
        if self.in_flight is not None:
            way = f"a stream with {self.in_flight} in flight, lengths {self.lengths}"
        return f"{as_utility(self.utility).key}, {way}{self.known}"

    def play(
        self, allocator: str | Allocator, num_batches: int, seed: int, rounds: int | None = None
    ) -> SimulationResult:
        """`simulate` in this setting; `rounds` instead of its own, or of its stream."""
        return simulate(
            allocator,
            self.num_prompts,
            self.budget,
            rounds or self.rounds,
            self.utility,
            prior=self.prior,
            num_batches=num_batches,
            seed=seed,
            difficulty=self.difficulty,
            min_rollouts=min(self.min_rollouts, self.num_generations),
            max_rollouts=self.maximum,
            carried=self.carried,
            carried_decay=self.carried_decay,
            in_flight=None if rounds else self.in_flight,
            lengths=self.lengths,
        )

    def bound(self, utility: str | UtilityFunction | Utility | None = None) -> float:
        """What no policy can exceed, per prompt, of its own utility or another."""
        limits = (min(self.min_rollouts, self.num_generations), self.maximum)
        chosen = as_utility(self.utility if utility is None else utility)
        carried = self.carried if self.beliefs else 0
        return difficulty_bound(self.difficulty, self.num_prompts, self.budget, chosen, *limits, carried) / (
            self.num_prompts
        )


@dataclass(frozen=True)
class Row:
    """An allocator's expectations. Utilities are per prompt; nan where something is not known.

    Attributes:
        allocator (`str`): its name.
        batches (`int`): played; 0 for what is exact.
        signal, rollouts_with_signal: shares of prompts and rollouts in groups with both outcomes.
        signal_gain: `signal` above equal groups, paired.
        utility, gain, relative_gain: the utility, above equal groups (paired), and that as a share of theirs.
        sequential_share: share of the gain of the policy that decides one rollout at a time; not known where that is
            none, or not beyond its noise.
    """

    allocator: str
    batches: int
    signal: Measured
    signal_gain: Measured
    rollouts_with_signal: Measured
    utility: Measured
    gain: Measured
    relative_gain: Measured
    sequential_share: Measured

    def record(self) -> dict[str, Any]:
        """Flat, for a CSV file: each estimate with its standard error in `<name>_se`."""
        flat: dict[str, Any] = {"allocator": self.allocator, "batches": self.batches}
        for name, value in vars(self).items():
            if isinstance(value, Measured):
                flat |= {name: value.value, f"{name}_se": value.error}
        return flat


_UNKNOWN = Measured(float("nan"), float("nan"))


def compare(
    setting: Setting,
    allocators: Sequence[str | Allocator] = ALLOCATOR_NAMES,
    num_batches: int = 1000,
    seed: int = 0,
    on_row: Callable[[str], None] | None = None,
) -> list[Row]:
    """Play allocators on the same batches.

    Args:
        setting (`Setting`): what they have in common.
        allocators (sequence of `str` or `Allocator`): names, or allocators of your own.
        num_batches (`int`): batches of each. "adaroll_joint", which is slow, plays a 20th of them.
        seed (`int`): decides everything.
        on_row (callable, *optional*): called with the name of what is played next.

    Returns:
        list of `Row`: the allocators in the order given, then the policy that decides one rollout at a time (the
        price index for the same utility and prior), then the bound on every policy. "uniform" is exact, not played.
        Standard errors are over batches; an allocator that keeps a state over batches makes them dependent, and
        its errors approximate.

    Raises:
        ValueError: if an argument is out of range, or an allocator does not stream where the setting is a stream.
    """
    if setting.in_flight is not None:
        for allocator in allocators:
            check_streams(allocator, setting.in_flight)
    played: dict[int, SimulationResult] = {}

    def reference(batches: int) -> SimulationResult:
        if batches not in played:
            played[batches] = setting.play("adaroll", batches, seed, rounds=setting.budget)
        return played[batches]

    if on_row is not None:
        on_row(SEQUENTIAL)
    best = reference(num_batches)
    sequential = _row(SEQUENTIAL, setting, best, gain_share(best, best))
    rows = []
    for allocator in allocators:
        name = allocator if isinstance(allocator, str) else name_of(allocator)
        if on_row is not None:
            on_row(name)
        if allocator == "uniform":
            no_share = Measured(0.0) if math.isfinite(sequential.sequential_share.value) else _UNKNOWN
            rows.append(replace(_uniform_row(setting), sequential_share=no_share))
            continue
        batches = max(min(_FEWEST, num_batches), num_batches // _SLOWER.get(name, 1))
        result = setting.play(allocator, batches, seed)
        rows.append(_row(name, setting, result, gain_share(result, reference(batches))))
    return [*rows, sequential, _bound_row(setting)]


def _row(name: str, setting: Setting, result: SimulationResult, share: Measured) -> Row:
    gain = result.gain / setting.num_prompts
    uniform = result.uniform_mean / setting.num_prompts
    return Row(
        allocator=name,
        batches=result.utilities.size,
        signal=result.signal,
        signal_gain=result.signal_gain,
        rollouts_with_signal=result.rollouts_with_signal,
        utility=result.utility / setting.num_prompts,
        gain=gain,
        relative_gain=gain / uniform if uniform else _UNKNOWN,
        sequential_share=share,
    )


def _uniform_row(setting: Setting) -> Row:
    signal = Measured(setting.difficulty.signal(setting.num_generations))
    utility = setting.difficulty.expected(as_utility(setting.utility), setting.num_generations)
    nothing = Measured(0.0)
    return Row("uniform", 0, signal, nothing, signal, Measured(utility), nothing, nothing, _UNKNOWN)


def _bound_row(setting: Setting) -> Row:
    uniform = _uniform_row(setting)
    signal, utility = setting.bound("mixed"), setting.bound()
    gain = utility - uniform.utility.value
    return Row(
        allocator=BOUND,
        batches=0,
        signal=Measured(signal),
        signal_gain=Measured(signal - uniform.signal.value),
        rollouts_with_signal=_UNKNOWN,
        utility=Measured(utility),
        gain=Measured(gain),
        relative_gain=Measured(gain) / uniform.utility.value if uniform.utility.value else _UNKNOWN,
        sequential_share=_UNKNOWN,
    )
