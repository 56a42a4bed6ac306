"""Simulation: play an allocator on batches of Bernoulli prompts, without a model.

Every allocator that is compared under one seed reads the same success probabilities and the same outcomes: rollout j
of prompt i in batch t succeeds or not whoever asks for it. Differences between allocators are therefore paired, and
uniform allocation, whose expectations are known exactly, serves as a control variate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..allocators import Allocator, make_allocator
from ..allocators.adaroll import AdaRollAllocator
from ..solver.index import check_prior, whole_number
from ..solver.memory import available_bytes, format_bytes
from ..solver.round_tables import EXACT_PRIORS
from ..utilities import Utility, UtilityFunction, as_utility
from ..values import choice
from .batches import Batches, Played
from .compiled_play import play_adaroll
from .difficulty import Difficulty, beta, rates
from .difficulty_text import parse_difficulty
from .measured import Measured, controlled, mean_of
from .plain_play import play_allocator
from .stream_play import check_streams, draw_lengths, play_streams
from .streaming import LENGTHS

_CHUNK, _CHUNK_BYTES = 2048, 2**28  # batches that are drawn and played at once, at most, and their outcomes' memory
_BYTES_OF_OUTCOME = 5  # while it is drawn: float32 and int8
_BYTES_OF_STREAMED = 40  # with its length, and as compiled code wants them
_BYTES_OF_PROMPT = 120  # what is kept of each prompt of each batch: probabilities, beliefs, results, their products


@dataclass(frozen=True)
class SimulationResult:
    """What happened to the batches of one simulation.

    Attributes:
        successes, rollouts (int arrays of shape (batches, prompts)): at the end of each batch.
        success_probs (float array of shape (batches, prompts)): the true probabilities.
        utilities (float array of shape (batches,)): terminal utility, summed over the prompts of a batch.
        uniform_utilities (float array of shape (batches,)): the same for equal groups on the same outcomes.
        uniform_mean (`float`): exact expectation of `uniform_utilities`.
        uniform_signals (float array of shape (batches,)): share of prompts with both outcomes for equal groups.
        uniform_signal (`float`): exact expectation of `uniform_signals`.
    """

    successes: NDArray[np.int64]
    rollouts: NDArray[np.int64]
    success_probs: NDArray[np.float64]
    utilities: NDArray[np.float64]
    uniform_utilities: NDArray[np.float64]
    uniform_mean: float
    uniform_signals: NDArray[np.float64]
    uniform_signal: float

    @property
    def controlled(self) -> NDArray[np.float64]:
        """`utilities` less what the control variate explains: same expectation, smaller variance."""
        return controlled(self.utilities, self.uniform_utilities, self.uniform_mean)

    @property
    def mean(self) -> float:
        """Mean utility per batch."""
        return self.utility.value

    @property
    def standard_error(self) -> float:
        """Of the mean utility of a batch."""
        return self.utility.error

    @property
    def utility(self) -> Measured:
        """Mean utility per batch, summed over its prompts."""
        return mean_of(self.controlled)

    @property
    def gain(self) -> Measured:
        """Utility per batch above that of equal groups, paired."""
        return Measured(self.utility.value - self.uniform_mean, self.utility.error)

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """Which groups show both outcomes, shape (batches, prompts)."""
        return np.asarray((self.successes > 0) & (self.successes < self.rollouts))

    @property
    def signal(self) -> Measured:
        """Share of prompts with at least one success and one failure."""
        return mean_of(controlled(self.mixed.mean(axis=1), self.uniform_signals, self.uniform_signal))

    @property
    def signal_gain(self) -> Measured:
        """`signal` above that of equal groups, paired."""
        return Measured(self.signal.value - self.uniform_signal, self.signal.error)

    @property
    def rollouts_with_signal(self) -> Measured:
        """Share of rollouts in groups with both outcomes: only these have an advantage other than 0."""
        shares = (self.rollouts * self.mixed).sum(axis=1) / self.rollouts.sum(axis=1)
        return mean_of(controlled(shares, self.uniform_signals, self.uniform_signal))

    @property
    def frac_prompts_mixed(self) -> float:
        """Share of prompts with at least one success and one failure."""
        return float(self.mixed.mean())

    def __repr__(self) -> str:
        return (
            f"SimulationResult({self.utilities.size} batches: utility {self.mean:.4f} +- {self.standard_error:.4f}, "
            f"{self.frac_prompts_mixed:.1%} of prompts mixed)"
        )


def gain_share(result: SimulationResult, best: SimulationResult) -> Measured:
    """Share of the gain over uniform of `best` that `result` keeps, and its standard error (delta method).

    Both must come from simulations with the same seed, prompts, budget, utility, difficulty and bounds. Without a gain
    to share (none, or within its own standard error) the answer is nan.
    """
    gain = best.mean - best.uniform_mean
    if abs(gain) <= 1e-9 + best.standard_error:
        return Measured(float("nan"), float("nan"))
    share = (result.mean - best.uniform_mean) / gain
    residual = (result.controlled - best.uniform_mean) - share * (best.controlled - best.uniform_mean)
    return Measured(float(share), float(residual.std(ddof=1) / abs(gain) / np.sqrt(residual.size)))


def simulate(
    allocator: str | Allocator,
    num_prompts: int,
    budget: int,
    rounds: int,
    utility: str | UtilityFunction | Utility = "mixed",
    success_probs: ArrayLike | None = None,
    prior: tuple[float, float] = (1.0, 1.0),
    num_batches: int = 1000,
    seed: int = 0,
    *,
    difficulty: Difficulty | str | None = None,
    min_rollouts: int = 0,
    max_rollouts: int | None = None,
    carried: int = 0,
    carried_decay: float = 1.0,
    in_flight: int | None = None,
    lengths: str = "even",
) -> SimulationResult:
    """Play `allocator` on `num_batches` batches, one after the other, of prompts that do not come again.

    Args:
        allocator (`str` or `Allocator`): a name for `make_allocator`, or an allocator of your own.
        num_prompts, budget, rounds (`int`): prompts of a batch, rollouts in all, and rounds to spend them in. With as
            many rounds as rollouts, "adaroll" plays its sequential policy.
        utility (`str`, callable or `Utility`): what is measured, and what named allocators maximise.
        success_probs (float array, *optional*): pass rates to draw each prompt's from, with replacement.
        prior (pair of `float`): the belief that the allocator starts from, right or wrong.
        num_batches, seed (`int`): how many, and where the randomness starts.
        difficulty (`Difficulty` or `str`, *optional*): the distribution of the true pass rates, see
            `parse_difficulty`. None, without `success_probs`: the prior, which is then right.
        min_rollouts, max_rollouts (`int`): bounds per prompt. None as maximum means 4 * budget / num_prompts.
        carried (`int`): outcomes of each prompt that are known from before the batch, at its pass rate.
        carried_decay (`float`): what each of them counts in the belief, from 0 to 1.
        in_flight (`int`, *optional*): play streams instead of rounds, with this many rollouts in flight, at most the
            budget. `rounds` then plays no part.
        lengths (`str`): of a stream's completions in tokens, which decide the order in which they end: one of
            `simulation.streaming.LENGTHS`.

    Returns:
        `SimulationResult`.

    Raises:
        ValueError: if an argument is out of range, the results would not fit into memory, or `in_flight` is given for
            an allocator that does not stream.
    """
    rounds = whole_number("rounds", rounds, 1)
    num_prompts, budget = whole_number("num_prompts", num_prompts, 1), whole_number("budget", budget, 1)
    carried = whole_number("carried", carried, 0)
    min_rollouts = whole_number("min_rollouts", min_rollouts, 0)
    if max_rollouts is not None:
        max_rollouts = whole_number("max_rollouts", max_rollouts, 1)
    prior = check_prior(prior)
    if max_rollouts is not None and num_prompts * max_rollouts < budget:
        raise ValueError(
            f"budget={budget} cannot be spent: max_rollouts={max_rollouts} for {num_prompts} prompts admits "
            f"{num_prompts * max_rollouts}."
        )
    if num_batches < 2 or budget < num_prompts * max(min_rollouts, 1):
        raise ValueError(
            f"num_prompts={num_prompts}, num_batches={num_batches}, budget={budget}, min_rollouts={min_rollouts}: "
            "need at least 2 batches, and a budget of at least 1 rollout and min_rollouts for each prompt."
        )
    if not 0.0 <= carried_decay <= 1.0:
        raise ValueError(f"carried_decay={carried_decay!r} must be between 0 (forget) and 1 (keep).")
    lengths = choice("lengths", lengths, tuple(LENGTHS))
    if in_flight is not None:
        in_flight = min(whole_number("in_flight", in_flight, 1), budget)
        check_streams(allocator, in_flight)
    truth = _truth(difficulty, success_probs, prior)
    utility = as_utility(utility)
    maximum = -(-4 * budget // num_prompts) if max_rollouts is None else max_rollouts
    outcome_bytes = _BYTES_OF_OUTCOME if in_flight is None else _BYTES_OF_STREAMED
    _check_memory(num_batches, num_prompts, maximum, outcome_bytes)
    rng, rng_of_lengths = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    probs = truth.sample(rng, (num_batches, num_prompts))
    alpha, beta = np.full((1, num_prompts), prior[0]), np.full((1, num_prompts), prior[1])
    if carried and carried_decay > 0:
        before = rng.binomial(carried, probs)
        alpha, beta = prior[0] + carried_decay * before, prior[1] + carried_decay * (carried - before)
    chosen = make_allocator(allocator, utility=utility) if isinstance(allocator, str) else allocator
    equal = np.full(num_prompts, budget // num_prompts) + (np.arange(num_prompts) < budget % num_prompts)
    successes, spent, wins = (np.zeros(probs.shape, dtype=np.int64) for _ in range(3))
    step = max(1, min(_CHUNK, _CHUNK_BYTES // (outcome_bytes * num_prompts * maximum)))
    for first in range(0, num_batches, step):
        part = slice(first, first + step)
        some = probs[part, :, None]
        outcomes = (rng.random((*some.shape[:2], maximum), dtype=np.float32) < some).view(np.int8)
        beliefs = (alpha[part], beta[part]) if len(alpha) > 1 else (alpha, beta)
        batches = Batches(outcomes, budget, rounds, *beliefs, min_rollouts, maximum, first)
        if in_flight is None:
            successes[part], spent[part] = _play(chosen, batches)
        else:
            tokens = draw_lengths(rng_of_lengths, lengths, probs[part], outcomes)
            successes[part], spent[part] = play_streams(chosen, batches, probs[part], tokens, in_flight)
        for i, n in enumerate(equal.tolist()):
            wins[part, i] = outcomes[:, i, :n].sum(axis=1, dtype=np.int64)
    table = utility.table(maximum)
    sizes = equal.tolist()
    expected = {size: (truth.expected(utility, size), truth.signal(size)) for size in set(sizes)}
    return SimulationResult(
        successes=successes,
        rollouts=spent,
        success_probs=probs,
        utilities=table[successes, spent - successes].sum(axis=1),
        uniform_utilities=table[wins, equal - wins].sum(axis=1),
        uniform_mean=sum(expected[size][0] for size in sizes),
        uniform_signals=((wins > 0) & (wins < equal)).mean(axis=1),
        uniform_signal=sum(expected[size][1] for size in sizes) / num_prompts,
    )


def _truth(
    difficulty: Difficulty | str | None, success_probs: ArrayLike | None, prior: tuple[float, float]
) -> Difficulty:
    if difficulty is not None and success_probs is not None:
        raise ValueError(f"difficulty={difficulty!r} and success_probs both say how hard the prompts are. Give one.")
    if success_probs is not None:
        return rates(success_probs)
    if isinstance(difficulty, str):
        return parse_difficulty(difficulty)
    return beta(*prior) if difficulty is None else difficulty


def _check_memory(batches: int, prompts: int, maximum: int, outcome_bytes: int) -> None:
    """Refuse what cannot fit: results of every prompt, outcomes of one batch, and a table of the utility."""
    largest = max(batches * prompts * _BYTES_OF_PROMPT, prompts * maximum * outcome_bytes, 40 * (maximum + 1) ** 2)
    free = available_bytes()
    if free is not None and largest > free:
        raise ValueError(
            f"num_batches={batches:,} of num_prompts={prompts:,} with max_rollouts={maximum:,} need about "
            f"{format_bytes(largest)} of memory, where {format_bytes(free)} are free: give smaller numbers."
        )


def _play(allocator: Allocator, batches: Batches) -> Played:
    """The planner in compiled code, wherever that gives the same; everybody else by asking."""
    successes, spent = batches.nothing_played()
    plain = np.arange(len(batches))
    if type(allocator) is AdaRollAllocator:
        fast = plain
        if not batches.alike and batches.rounds < batches.budget:
            pairs = zip(batches.alpha, batches.beta, strict=True)
            kinds = np.array([np.unique(np.stack(pair), axis=1).shape[1] for pair in pairs])
            fast = plain[kinds > EXACT_PRIORS]
        spent[:] = -1
        if fast.size:
            successes[fast], spent[fast] = play_adaroll(batches.part(fast), allocator.utility)
        plain = plain[spent[:, 0] < 0]  # where the planner looks at a batch in another way than most
    if plain.size:
        successes[plain], spent[plain] = play_allocator(allocator, batches.part(plain))
    return successes, spent
