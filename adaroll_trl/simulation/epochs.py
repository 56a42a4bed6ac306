"""Simulation of training over epochs: prompts come back, the policy drifts, beliefs are carried over.

In epoch e, batch t (of T in the run) a rollout of prompt i succeeds with probability

    p_i(t) = sigmoid(ability(t / T) + walk_i(e) - difficulty_i)

where ability is what the policy has learned, the same for all prompts, and walk_i a random walk of each prompt's own.
The policy improves whatever the allocation: what is studied is how well carried beliefs steer it, not what is learned.
Beliefs are `adaroll_trl.beliefs.Beliefs`, used as the trainer does. Outcomes come from the seed alone: rollout j of a
prompt's visit e is the same whoever asks for it, so that two allocators, decays or priors under one seed are paired,
and so is each with equal groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..allocators import Allocator, make_allocator
from ..beliefs import PRIOR_STRENGTH, Beliefs
from ..solver.index import whole_number
from ..utilities import Utility, UtilityFunction, as_utility
from .batches import Batches
from .plain_play import play_batch

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """How the policy changes over a run.

    Attributes:
        ability (callable): from the share of the run that is over, in [0, 1], to log odds gained on every prompt.
        walk (`float`): standard deviation of each prompt's own step in log odds from one epoch to the next.
    """

    ability: Callable[[float], float]
    walk: float = 0.0


DRIFTS: dict[str, Drift] = {
    "none": Drift(lambda done: 0.0),
    "slow": Drift(lambda done: 1.5 * done, walk=0.2),
    "fast": Drift(lambda done: 5.0 * done, walk=0.5),
    "jump": Drift(lambda done: 2.5 if done >= 0.5 else 0.0),
}


@dataclass(frozen=True)
class EpochsResult:
    """What happened in the batches of simulated runs.

    Attributes:
        utilities, uniform_utilities (float arrays of shape (repeats, epochs, batches per epoch)): terminal utility per
            prompt, of the allocator and of equal groups on the same outcomes.
        signal, uniform_signal (same shape): share of prompts with at least one success and one failure.
        rollouts_signal (same shape): share of rollouts that went to such prompts.
        predicted, realised (same shape): calibration of the first round, as the trainer logs it.
        priors (float array of shape (repeats, epochs, batches per epoch, 2)): the common prior in use.
    """

    utilities: FloatArray
    uniform_utilities: FloatArray
    signal: FloatArray
    uniform_signal: FloatArray
    rollouts_signal: FloatArray
    predicted: FloatArray
    realised: FloatArray
    priors: FloatArray

    def gain(self, first_epoch: int = 0) -> tuple[float, float]:
        """Mean of `signal` over that of equal groups, less 1, from `first_epoch` on, and its standard error.

        The error is that of a ratio over the repeats (delta method); nan with one repeat.
        """
        ours, equal = (values[:, first_epoch:].mean(axis=(1, 2)) for values in (self.signal, self.uniform_signal))
        ratio = float(ours.mean() / equal.mean())
        if len(ours) < 2:
            return ratio - 1.0, float("nan")
        residual = ours - ratio * equal
        return ratio - 1.0, float(residual.std(ddof=1) / equal.mean() / np.sqrt(len(ours)))


def simulate_epochs(
    allocator: str | Allocator | Callable[[], Allocator],
    num_prompts: int = 256,
    batch_size: int = 32,
    num_generations: int = 8,
    epochs: int = 6,
    rounds: int = 2,
    drift: str | Drift = "slow",
    decay: float = 0.7,
    *,
    prior: tuple[float, float] = (1.0, 1.0),
    prior_source: str = "fixed",
    prior_strength: float | None = None,
    utility: str | UtilityFunction | Utility = "mixed",
    difficulty: tuple[float, float] = (1.0, 2.0),
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    seed: int = 0,
    repeats: int = 4,
) -> EpochsResult:
    """Play `allocator` over `epochs` passes through the same prompts, with beliefs carried from one to the next.

    Args:
        allocator (`str`, `Allocator` or callable): a name for `make_allocator`, one of your own, or what makes one;
            all but an instance start afresh with each repeat. It is given the prompts' names as `prompt_ids`.
        num_prompts, batch_size (`int`): prompts in all and per batch; an epoch leaves out those that fill no batch.
        num_generations (`int`): rollouts per prompt on average.
        epochs, rounds (`int`): passes through the prompts, and rounds per batch.
        drift (`str` or `Drift`): one of `DRIFTS`, or your own.
        decay, prior, prior_source: of the beliefs, as `belief_decay`, `prior_alpha` and `prior_beta`, `prior_source`.
        prior_strength (`float`, *optional*): if given, each prompt has its pass rate before training as a column
            would (`prior_column`), with this strength.
        utility (`str`, callable or `Utility`): what is measured, and what named allocators maximise.
        difficulty (pair of `float`): mean and standard deviation of a prompt's difficulty in log odds.
        min_rollouts, max_rollouts (`int`): bounds per prompt. None as maximum means 4 * num_generations.
        seed, repeats (`int`): where the randomness starts, and how many runs.

    Returns:
        `EpochsResult`.

    Raises:
        ValueError: if an argument is out of range.
    """
    sizes = {"num_prompts": num_prompts, "batch_size": batch_size, "num_generations": num_generations}
    for name, value in {**sizes, "epochs": epochs, "rounds": rounds, "repeats": repeats}.items():
        whole_number(name, value, 1)
    if batch_size > num_prompts:
        raise ValueError(f"batch_size={batch_size} is more than num_prompts={num_prompts}.")
    if isinstance(drift, str) and drift not in DRIFTS:
        raise ValueError(f"drift={drift!r} is not known. Use one of {', '.join(map(repr, DRIFTS))}, or a Drift.")
    maximum = 4 * num_generations if max_rollouts is None else max_rollouts
    if not min_rollouts <= num_generations <= maximum:
        raise ValueError(
            f"min_rollouts={min_rollouts}, num_generations={num_generations}, max_rollouts={maximum}: must ascend."
        )
    utility = as_utility(utility)
    setting = _Setting(batch_size, num_generations, rounds, utility, min_rollouts, maximum)
    of_drift = DRIFTS[drift] if isinstance(drift, str) else drift
    runs = []
    for repeat in range(repeats):
        rng = np.random.default_rng([seed, repeat])
        run = _Prompts.draw(rng, num_prompts, batch_size, epochs, maximum, of_drift, difficulty)
        beliefs = Beliefs(*prior, decay, prior_source, PRIOR_STRENGTH if prior_strength is None else prior_strength)
        rates = None if prior_strength is None else run.rates_before
        runs.append(setting.play(_allocator(allocator, utility), run, beliefs, rates))
    names = ("utilities", "uniform_utilities", "signal", "uniform_signal", "rollouts_signal", "predicted", "realised")
    values = {name: np.array([[[b[name] for b in epoch] for epoch in run] for run in runs]) for name in names}
    return EpochsResult(**values, priors=np.array([[[b["prior"] for b in epoch] for epoch in run] for run in runs]))


def _allocator(given: str | Allocator | Callable[[], Allocator], utility: Utility) -> Allocator:
    if isinstance(given, str):
        return make_allocator(given, utility=utility)
    return given if isinstance(given, Allocator) else given()


@dataclass(frozen=True)
class _Prompts:
    """The randomness of a run: each epoch's batches, and all outcomes that might be asked for."""

    batches: NDArray[np.int64]  # (epochs, batches, batch_size)
    outcomes: NDArray[np.bool_]  # (epochs, prompts, maximum)
    rates_before: FloatArray  # (prompts,)

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        num_prompts: int,
        batch_size: int,
        epochs: int,
        maximum: int,
        drift: Drift,
        difficulty: tuple[float, float],
    ) -> _Prompts:
        per_epoch = num_prompts // batch_size
        level = -rng.normal(*difficulty, size=num_prompts)
        before = _sigmoid(level)
        batches = np.empty((epochs, per_epoch, batch_size), dtype=np.int64)
        outcomes = np.zeros((epochs, num_prompts, maximum), dtype=bool)
        for epoch in range(epochs):
            batches[epoch] = rng.permutation(num_prompts)[: per_epoch * batch_size].reshape(per_epoch, batch_size)
            if epoch:
                level = level + drift.walk * rng.normal(size=num_prompts)
            chances = rng.random((num_prompts, maximum))
            for number, members in enumerate(batches[epoch]):
                ability = drift.ability((epoch * per_epoch + number) / (epochs * per_epoch))
                outcomes[epoch, members] = chances[members] < _sigmoid(ability + level[members])[:, None]
        return cls(batches, outcomes, before)


def _sigmoid(x: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


@dataclass(frozen=True)
class _Setting:
    batch_size: int
    num_generations: int
    rounds: int
    utility: Utility
    minimum: int
    maximum: int

    def play(
        self, allocator: Allocator, prompts: _Prompts, beliefs: Beliefs, rates: FloatArray | None
    ) -> list[list[dict[str, object]]]:
        return [
            [
                self._batch(allocator, members, outcomes[members], beliefs, None if rates is None else rates[members])
                for members in batches
            ]
            for batches, outcomes in zip(prompts.batches, prompts.outcomes, strict=True)
        ]

    def _batch(
        self,
        allocator: Allocator,
        members: NDArray[np.int64],
        outcomes: NDArray[np.bool_],
        beliefs: Beliefs,
        rates: FloatArray | None,
    ) -> dict[str, object]:
        keys = [str(number) for number in members.tolist()]
        beliefs.common = beliefs.fit()
        alpha, beta = beliefs.prior(keys, rates)
        budget, limits = len(keys) * self.num_generations, (self.minimum, self.maximum)
        batch = Batches(outcomes[None].view(np.int8), budget, self.rounds, alpha[None], beta[None], *limits)
        wins, spent, first = play_batch(allocator, batch, 0, keys)
        equal = outcomes[:, : self.num_generations].sum(axis=1).astype(np.float64)
        at_first = (outcomes * (np.arange(outcomes.shape[1]) < first[:, None])).sum()
        beliefs.update(keys, wins, spent - wins, rates)
        mixed = (wins > 0) & (wins < spent)
        return {
            "utilities": float(self.utility(wins.astype(np.float64), (spent - wins).astype(np.float64)).mean()),
            "uniform_utilities": float(self.utility(equal, self.num_generations - equal).mean()),
            "signal": float(mixed.mean()),
            "uniform_signal": float(((equal > 0) & (equal < self.num_generations)).mean()),
            "rollouts_signal": float(spent[mixed].sum() / spent.sum()),
            "predicted": float(first @ (alpha / (alpha + beta)) / first.sum()),
            "realised": float(at_first / first.sum()),
            "prior": beliefs.common,
        }
