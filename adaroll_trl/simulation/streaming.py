"""Simulation of streams and rounds on an engine: what they gain, and how many of its steps they take.

The engine has room for as many requests as it gets. In a step each of them grows by a token, so equal groups, and a
round, take as many steps as their longest completion has tokens, and a stream of C in flight refills C places as they
become free. Scoring takes no time. Outcomes and lengths belong to a prompt's j-th rollout, whoever asks for it: all
policies meet the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..solver.compiled import compile_once
from ..solver.rounds import plan_round
from ..solver.stream_playout import play_in_order, play_stream
from ..solver.streaming import make_stream
from ..utilities import Utility

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_CELLS = 50  # of pass rates
Lengths = Callable[[np.random.Generator, FloatArray, IntArray], IntArray]


def even_lengths(rng: np.random.Generator, rates: FloatArray, outcomes: IntArray) -> IntArray:
    """4 to 128 tokens, all alike."""
    return rng.integers(4, 129, outcomes.shape)


def lengths_with_tails(rng: np.random.Generator, rates: FloatArray, outcomes: IntArray) -> IntArray:
    """4 to 128 tokens, and one in ten 129 to 512."""
    long = rng.random(outcomes.shape) < 0.1
    return np.where(long, rng.integers(129, 513, outcomes.shape), rng.integers(4, 129, outcomes.shape))


def lengths_by_difficulty(rng: np.random.Generator, rates: FloatArray, outcomes: IntArray) -> IntArray:
    """4 to 128 tokens; prompts of pass rate p around 128 - 100 p, give or take 24."""
    middle = 128 - 100 * rates[:, :, None]
    return np.clip(np.rint(middle + rng.uniform(-24, 24, outcomes.shape)), 4, 128).astype(np.int64)


def lengths_by_success(rng: np.random.Generator, rates: FloatArray, outcomes: IntArray) -> IntArray:
    """Right answers 4 to 88 tokens, wrong ones 44 to 128."""
    return rng.integers(4, 89, outcomes.shape) + 40 * (1 - outcomes)


LENGTHS: dict[str, Lengths] = {
    "even": even_lengths,
    "tails": lengths_with_tails,
    "difficulty": lengths_by_difficulty,
    "success": lengths_by_success,
}


@dataclass(frozen=True)
class DrawnBatches:
    """What would happen to each prompt's j-th rollout.

    Args:
        rates (float array of shape (batches, prompts)): pass rates.
        outcomes (int array of shape (batches, prompts, most)): 0 or 1.
        lengths (int array of the same shape): tokens.
    """

    rates: FloatArray
    outcomes: IntArray
    lengths: IntArray

    @classmethod
    def draw(
        cls,
        lengths: Lengths,
        prompts: int,
        most: int,
        batches: int,
        prior: tuple[float, float] = (1.0, 1.0),
        seed: int = 0,
    ) -> DrawnBatches:
        """Pass rates from Beta(prior), up to `most` rollouts of each prompt."""
        rng = np.random.default_rng(seed)
        rates = rng.beta(*prior, (batches, prompts))
        outcomes = (rng.random((batches, prompts, most)) < rates[:, :, None]).astype(np.int64)
        return cls(rates, outcomes, lengths(rng, rates, outcomes))


@dataclass(frozen=True)
class StreamResult:
    """Of each batch.

    Args:
        successes, rollouts (int arrays of shape (batches, prompts)): at the end.
        steps (int array of shape (batches,)): the engine's.
    """

    successes: IntArray
    rollouts: IntArray
    steps: IntArray

    def utilities(self, utility: Utility) -> FloatArray:
        """Summed over prompts; shape (batches,)."""
        failures = (self.rollouts - self.successes).astype(np.float64)
        return np.asarray(utility(self.successes.astype(np.float64), failures).sum(axis=1))


def stream_batches(
    batches: DrawnBatches,
    utility: Utility,
    budget: int,
    in_flight: int,
    min_rollouts: int = 0,
    in_order: bool = False,
    prior: tuple[float | FloatArray, float | FloatArray] = (1.0, 1.0),
) -> StreamResult:
    """Play the stream of `adaroll`, in compiled code.

    Args:
        batches (`DrawnBatches`): the maximum of rollouts is as many as were drawn.
        utility (`Utility`): what is maximised.
        budget, in_flight, min_rollouts (`int`): as in `StreamPlanner`.
        in_order (`bool`): outcomes become known in the order of starts (`stream_order="start"`).
        prior (pair of `float`, or of float arrays of shape (prompts,)): the belief about every prompt.
    """
    compile_once(_run_kernels)
    return _play(batches, utility, budget, in_flight, min_rollouts, in_order, prior)


def _play(
    batches: DrawnBatches,
    utility: Utility,
    budget: int,
    in_flight: int,
    min_rollouts: int,
    in_order: bool,
    prior: tuple[float | FloatArray, float | FloatArray],
) -> StreamResult:
    count, prompts, most = batches.outcomes.shape
    successes, rollouts = np.zeros((count, prompts), np.int64), np.zeros((count, prompts), np.int64)
    steps = np.zeros(count, np.int64)
    stream = make_stream(utility, most, np.full(prompts, prior[0]), np.full(prompts, prior[1]))
    play = play_in_order if in_order else play_stream
    bounds = (budget, in_flight, min_rollouts, most)
    play(stream, batches.outcomes, batches.lengths, *bounds, 0, count, successes, rollouts, steps)
    return StreamResult(successes, rollouts, steps)


def _run_kernels() -> None:
    drawn = DrawnBatches.draw(even_lengths, 2, 3, 1)
    utility = Utility("mixed", lambda s, f: np.minimum(s * f, 1.0))
    for in_order in (False, True):
        _play(drawn, utility, 4, 2, 0, in_order, (1.0, 1.0))


def play_in_rounds(
    batches: DrawnBatches,
    utility: Utility,
    budget: int,
    rounds: int,
    min_rollouts: int = 0,
    prior: tuple[float, float] = (1.0, 1.0),
) -> StreamResult:
    """The planner of `adaroll` in rounds, on the same engine. With one round and no beliefs: equal groups."""
    count, prompts, most = batches.outcomes.shape
    successes, rollouts = np.zeros((count, prompts), np.int64), np.zeros((count, prompts), np.int64)
    steps = np.zeros(count, np.int64)
    place = np.arange(most)
    bounds = {"min_rollouts": min_rollouts, "max_rollouts": most, "prior_alpha": prior[0], "prior_beta": prior[1]}
    for batch in range(count):
        s, n = successes[batch], rollouts[batch]
        for left in range(rounds, 0, -1):
            if n.sum() == budget:
                break
            counts = plan_round(s, n - s, budget - int(n.sum()), left, utility, **bounds)
            new = (place >= n[:, None]) & (place < (n + counts)[:, None])
            s += (batches.outcomes[batch] * new).sum(axis=1)
            n += counts
            steps[batch] += batches.lengths[batch][new].max()
    return StreamResult(successes, rollouts, steps)


def length_tilt(batches: DrawnBatches, result: StreamResult) -> tuple[FloatArray, FloatArray]:
    """How much more a long completion weighs in the gradient than a short one with the same prompt and outcome.

    A completion's weight is its absolute advantage with a mean baseline. Long is above the median of the completions
    of one fiftieth of pass rates and one outcome, among all that were drawn; in each such cell the weights of long and
    short ones are compared. Where an allocation does not look at lengths, both are alike.

    Returns:
        For failures and successes: the tilt (mean weight of long over short completions, less 1), and its standard
        error, by batches.
    """
    n = result.rollouts[:, :, None]
    generated = np.arange(batches.outcomes.shape[2]) < n
    rate = result.successes[:, :, None] / np.maximum(n, 1)
    weights = np.abs(batches.outcomes - rate) * generated
    place = np.minimum((_CELLS * batches.rates).astype(np.int64), _CELLS - 1)[:, :, None]
    tilts, errors = np.zeros(2), np.zeros(2)
    for outcome in (0, 1):
        sums = np.zeros((2, 2, batches.rates.shape[0], _CELLS))  # weight and number; short and long; batch; cell
        for cell in range(_CELLS):
            here = (batches.outcomes == outcome) & (place == cell)
            middle = np.median(batches.lengths[here]) if here.any() else 0.0
            for long in (0, 1):
                mine = here & generated & ((batches.lengths > middle) == bool(long))
                sums[:, long, :, cell] = (weights * mine).sum(axis=(1, 2)), mine.sum(axis=(1, 2))
        tilts[outcome], errors[outcome] = _tilt(sums)
    return tilts, errors


def _tilt(sums: FloatArray) -> tuple[float, float]:
    """Weighted over cells by the short ones' weight; the error by a jackknife over blocks of batches."""

    def ratio(part: FloatArray) -> float:
        (short, long), (shorts, longs) = part.sum(axis=2)
        used = (shorts > 0) & (longs > 0) & (short > 0)
        share = short[used] / short[used].sum()
        return float((share * (long[used] / longs[used]) / (short[used] / shorts[used])).sum() - 1)

    blocks = np.array_split(np.arange(sums.shape[2]), min(20, sums.shape[2]))
    left_out = np.array([ratio(np.delete(sums, block, axis=2)) for block in blocks])
    return ratio(sums), float(np.sqrt((len(blocks) - 1) / len(blocks) * ((left_out - left_out.mean()) ** 2).sum()))
