"""The weight that a sampling plan gives to a prompt of pass rate p, exactly, and how to make it 1 for every p.

A plan decides on a prompt's rollouts from the prompt's own outcomes: in round r, with s successes and f failures so
far, it draws counts(s, f, r) more. An outcome sequence that ends with (s, f) has probability p^s (1 - p)^f, so with
K(s, f) sequences that the plan admits,

    P(s, f) = K(s, f) p^s (1 - p)^f

Given the rewards, completions are independent draws from the model's right and from its wrong answers. So the expected
update of a group is mass / (p (1 - p)) times the gradient of p, where the mass is half its summed absolute advantage:

    mean baseline           s f / n
    divided by the std      s f / n / (std + 1e-4), Bessel (TRL) or of the population

and the prompt's weight is w(p) = E[mass] / (p (1 - p)), or of mass / n where each prompt counts alike. For n rollouts
fixed beforehand and a mean baseline it is n - 1.

Unbiased weights (Girshick, Mosteller and Savage 1946). The first two rollouts are a success and then a failure with
probability p (1 - p). Given (s, f) all admitted sequences are alike, so

    T(s, f) = (sequences to (s, f) that begin with a success and a failure) / (all sequences to (s, f))

has expectation p (1 - p), and the factor T / (s f / n) on a group with a mean baseline makes w(p) = 1 for every p. It
needs a plan that never ends with a single success (or never with a single failure: then the two are drawn the other
way round). For n fixed, T = s f / (n (n - 1)): the factor is 1 / (n - 1).

T is no better than the first two rollouts let it be. "Stop when mixed" has T = 1/2 at (1, 1) and 0 everywhere else, so
all signal that was found later is thrown away; with a fixed number of rollouts first, T uses those. Such plans have
other unbiased masses, since E[h] = p (1 - p) has more unknowns than equations: `least_noise_masses` halves the noise
of this one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Ends", "StoppingPlan", "implied_weight", "least_noise_masses", "masses", "unbiased_masses"]

FloatArray = NDArray[np.float64]
Estimator = Literal["mean", "std", "population_std"]

_EPSILON = 1e-4  # what TRL adds to a std before it divides by it


@dataclass(frozen=True)
class StoppingPlan:
    """How many rollouts a prompt gets, from its own outcomes.

    Args:
        counts (callable): from successes, failures and the round's number (from 0) to the rollouts of this round.
        rounds (`int`): rounds at most, at least 1.

    >>> plan = StoppingPlan.until(lambda s, f: s > 0 and f > 0, cap=3)
    >>> [(s, f, plan.ends.sequences[i]) for i, (s, f) in enumerate(plan.ends.pairs())]
    [(0, 3, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (3, 0, 1)]
    """

    counts: Callable[[int, int, int], int]
    rounds: int

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds!r} of a plan must be at least 1.")

    @classmethod
    def fixed(cls, rollouts: int) -> StoppingPlan:
        """So many rollouts, whatever they show."""
        return cls(lambda s, f, r: rollouts, 1)

    @classmethod
    def until(cls, stop: Callable[[int, int], bool], cap: int, first: int = 1) -> StoppingPlan:
        """`first` rollouts at once, then one at a time until `stop(s, f)`, at most `cap` in all, `first` at least."""
        if cap < first:
            raise ValueError(f"cap={cap!r} must be at least first={first!r}: those are drawn at once.")
        return cls(lambda s, f, r: first if r == 0 else int(s + f < cap and not stop(s, f)), cap - first + 1)

    @cached_property
    def ends(self) -> Ends:
        """Where the plan can end, and by how many outcome sequences. All exact."""
        now = {(0, 0, ""): 1}
        for round_ in range(self.rounds):
            after: dict[tuple[int, int, str], int] = defaultdict(int)
            for (s, f, begin), sequences in now.items():
                for end, ways in _draw(s, f, begin, _checked(self.counts(s, f, round_), s, f, round_)).items():
                    after[end] += sequences * ways
            now = after
        return _summed(now)

    def end_of(self, rounds: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The (s, f) that the plan ends with on a prompt with these successes and failures in each round.

        Rollouts in rounds for which the plan has none do not count.

        Raises:
            ValueError: if another round has not the rollouts of the plan.
        """
        s = f = 0
        for round_ in range(self.rounds):
            wanted = self.counts(s, f, round_)
            if wanted == 0:
                continue
            right, wrong = rounds[round_] if round_ < len(rounds) else (0, 0)
            if right + wrong != wanted:
                raise ValueError(
                    f"round {round_ + 1}: the plan wants {wanted} rollouts after {s} successes and {f} failures, and "
                    f"the prompt has {right + wrong} with a reward."
                )
            s, f = s + right, f + wrong
        return s, f


@dataclass(frozen=True)
class Ends:
    """Where a plan can end, in the order of (s, f).

    Attributes:
        successes, failures (float arrays of shape (ends,)): the outcomes there.
        sequences (tuple of `int`): outcome sequences that end there.
        begun (mapping from "SF" and "FS" to tuples of `int`): those that begin with a success and a failure, and with
            a failure and a success.
    """

    successes: FloatArray
    failures: FloatArray
    sequences: tuple[int, ...]
    begun: dict[str, tuple[int, ...]]

    def pairs(self) -> list[tuple[int, int]]:
        """(successes, failures) of each end."""
        return [(int(s), int(f)) for s, f in zip(self.successes, self.failures, strict=True)]

    def probabilities(self, p: ArrayLike) -> FloatArray:
        """Chance of each end at pass rate p; shape (*p.shape, ends)."""
        p = np.asarray(p, dtype=np.float64)[..., None]
        ways = np.array([float(count) for count in self.sequences])
        return ways * p**self.successes * (1 - p) ** self.failures

    def unbiased(self) -> FloatArray:
        """T(s, f) at each end, see the module's text.

        Raises:
            ValueError: if the plan may end with a single success and with a single failure, or without any rollout.
        """
        pairs = set(self.pairs())
        order = next((order for order, single in (("SF", (1, 0)), ("FS", (0, 1))) if single not in pairs), None)
        if order is None or (0, 0) in pairs:
            raise ValueError(
                "No unbiased weight: the plan may end after no rollout at all, or after a single success and after a "
                "single failure, so its ends do not tell p (1 - p). Let it draw at least 2 rollouts."
            )
        return np.array([begun / all_ for begun, all_ in zip(self.begun[order], self.sequences, strict=True)])


def masses(successes: ArrayLike, failures: ArrayLike, estimator: Estimator = "mean") -> FloatArray:
    """Half the summed |advantage| of groups, 0 for groups all alike; shape of the arguments."""
    s, f = np.asarray(successes, dtype=np.float64), np.asarray(failures, dtype=np.float64)
    n = np.maximum(s + f, 1.0)
    mass = s * f / n
    if estimator == "mean":
        return mass
    if estimator not in ("std", "population_std"):
        raise ValueError(f"estimator={estimator!r} is not known. Use 'mean', 'std' or 'population_std'.")
    spread = mass / np.maximum(n - 1, 1.0) if estimator == "std" else mass / n
    return mass / (np.sqrt(spread) + _EPSILON)


def implied_weight(
    plan: StoppingPlan, p: ArrayLike, estimator: Estimator = "mean", each: Literal["rollout", "prompt"] = "rollout"
) -> FloatArray:
    """w(p), exactly: the expected update of a prompt in units of the gradient of its pass rate.

    Args:
        plan (`StoppingPlan`): how many rollouts it gets.
        p (float array in (0, 1)): pass rates.
        estimator (`str`): "mean" for scale_rewards="none", "std" for "group" as TRL has it (Bessel), or
            "population_std".
        each (`str`): "rollout" sums over the rollouts; "prompt" takes their mean.

    Returns:
        float array of the shape of `p`.

    >>> implied_weight(StoppingPlan.fixed(8), [0.02, 0.5]).round(9).tolist()
    [7.0, 7.0]
    """
    p = np.asarray(p, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all():
        raise ValueError(f"p={p.tolist()} must be above 0 and below 1: elsewhere p has no weight.")
    if each not in ("rollout", "prompt"):
        raise ValueError(f"each={each!r} is not known. Use 'rollout' or 'prompt'.")
    ends = plan.ends
    mass = masses(ends.successes, ends.failures, estimator)
    if each == "prompt":
        mass = mass / np.maximum(ends.successes + ends.failures, 1.0)
    return np.asarray(ends.probabilities(p) @ mass / (p * (1 - p)))


def unbiased_masses(plan: StoppingPlan) -> dict[tuple[int, int], float]:
    """T(s, f) by where the plan ends, see the module's text. Raises ValueError where there is none."""
    return dict(zip(plan.ends.pairs(), plan.ends.unbiased().tolist(), strict=True))


def least_noise_masses(plan: StoppingPlan, prior: tuple[float, float] = (1.0, 1.0)) -> dict[tuple[int, int], float]:
    """Masses h(s, f) that make w(p) = 1 for every p with the least noise, by where the plan ends.

    T is one solution of E[h] = p (1 - p), which is linear in h: written in the Bernstein polynomials of the longest
    sequence's degree it is one equation a coefficient. A group that is given the mass h has a gradient noise of about
    h^2 (1 / s + 1 / f); of all solutions this one has the least, on average over Beta(*prior) pass rates. Some masses
    may be negative. For a fixed number of rollouts there is only one solution, T.

    Raises:
        ValueError: if no masses are unbiased, see `Ends.unbiased`.
    """
    ends = plan.ends
    ends.unbiased()  # raises where there is none
    alpha, beta = prior
    degree = int((ends.successes + ends.failures).max())
    rows = np.zeros((degree + 1, len(ends.sequences)))
    noise = np.ones(len(ends.sequences))
    for column, ((s, f), sequences) in enumerate(zip(ends.pairs(), ends.sequences, strict=True)):
        if s == 0 or f == 0:
            continue
        for more in range(degree - s - f + 1):
            rows[s + more, column] = sequences * math.comb(degree - s - f, more) / math.comb(degree, s + more)
        chance = math.log(sequences) + _log_beta(alpha + s, beta + f) - _log_beta(alpha, beta)
        noise[column] = math.exp(chance) * (1 / s + 1 / f)
    k = np.arange(degree + 1)
    wanted = k * (degree - k) / (degree * (degree - 1))  # of p (1 - p), as rows are scaled
    scaled, *_ = np.linalg.lstsq(rows / np.sqrt(noise), wanted, rcond=1e-13)
    return dict(zip(ends.pairs(), (scaled / np.sqrt(noise)).tolist(), strict=True))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _draw(s: int, f: int, begin: str, rollouts: int) -> dict[tuple[int, int, str], int]:
    """Where so many rollouts lead, by how many sequences; `begin` are the first two outcomes, as far as they are."""
    if rollouts == 0:
        return {(s, f, begin): 1}
    if len(begin) < 2:
        after: dict[tuple[int, int, str], int] = defaultdict(int)
        for right in (0, 1):
            first = begin + ("S" if right else "F")
            for end, ways in _draw(s + right, f + 1 - right, first, rollouts - 1).items():
                after[end] += ways
        return after
    return {(s + x, f + rollouts - x, begin): math.comb(rollouts, x) for x in range(rollouts + 1)}


def _summed(now: dict[tuple[int, int, str], int]) -> Ends:
    pairs = sorted({(s, f) for s, f, _ in now})
    by_begin = {
        order: tuple(now.get((s, f, order), 0) for s, f in pairs) for order in ("", "S", "F", "SS", "SF", "FS", "FF")
    }
    return Ends(
        np.array([s for s, _ in pairs], dtype=np.float64),
        np.array([f for _, f in pairs], dtype=np.float64),
        tuple(sum(counts) for counts in zip(*by_begin.values(), strict=True)),
        {order: by_begin[order] for order in ("SF", "FS")},
    )


def _checked(count: int, s: int, f: int, round_: int) -> int:
    if count < 0 or count != int(count):
        raise ValueError(
            f"counts({s}, {f}, {round_}) is {count}: a plan's counts are whole numbers of rollouts, at least 0."
        )
    return int(count)
