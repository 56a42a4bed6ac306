"""Thompson sampling: pass rates drawn from the beliefs, groups as large as the drawn standard deviation."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np

from ..values import MOST_COUNTED, integer
from .base import AllocationState, Allocator, RolloutStream
from .integers import IntArray, bounds, in_proportion, round_total
from .ranked import Rank, RankedStream


class ThompsonAllocator(Allocator):
    """A simple strong baseline of this project's own, after Thompson (1933): act on one draw from the belief.

    Each round draws p_i ~ Beta(a_i + s_i, b_i + f_i) for every prompt, and makes the groups' sizes n_i, with what they
    have already, proportional to sqrt(p_i (1 - p_i)) within the bounds, by largest remainders: the allocation that
    minimises sum p_i (1 - p_i) / n_i (Neyman 1934) if the draw were the truth. Every round spends an equal share of
    what is left.

    A draw depends on the seed, the number of decisions made so far and the prompt's id only, not on the other prompts
    or their order. The number of decisions is in the checkpoint. Without prompt ids a prompt's place in the batch
    takes the id's place.

    Works with any number of rounds (the user's `rounds`), and better with carried beliefs: in the first round of
    prompts never seen it is noise.

    **In a stream** (ours): the next rollout goes where it lessens sum p_i (1 - p_i) / n_i most if the draws are the
    truth, to the prompt with the largest p_i (1 - p_i) / (n_i (n_i + 1)); to prompts without a rollout first. Given
    the draws this is the best there is in whole rollouts, since the sum is convex in each n_i (Wright 2012: Neyman's
    allocation in whole numbers). A rollout in flight counts in n_i and not yet in the belief. A prompt draws anew when
    its belief has changed, and all prompts do after every max(in_flight, n) decisions, as in a round of that many, so
    that no low draw bars a prompt from the rest of the batch. With all in flight there is one draw, as in one round.
    A draw then also depends on how many outcomes the prompt has and how often all have drawn: the decisions are the
    same whenever rollouts end in the same order.

    Args:
        seed (`int`): where the randomness starts.
    """

    name = "thompson"
    streams = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = integer("seed", seed, 0)
        self.step = 0

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        spent = np.asarray(state.rollouts, dtype=np.int64)
        total = round_total(rollouts_left / rounds_left, low, state, rollouts_left, rounds_left)
        alpha, beta = state.posterior
        p = np.array([self._draw(key, a, b) for key, a, b in zip(state.keys, alpha, beta, strict=True)])
        self.step += 1
        weights = np.sqrt(p * (1 - p))
        return in_proportion(weights, total + int(spent.sum()), spent + low, spent + np.minimum(high, total)) - spent

    def _draw(self, key: str, alpha: float, beta: float) -> float:
        return _draw(f"{self.seed} {self.step}", key, alpha, beta)

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        stream = _ThompsonStream(state, budget, in_flight, f"{self.seed} {self.step}")
        self.step += 1
        return stream

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        step = self.known_state(state, ("step",)).get("step", 0)
        self.step = integer("step", step, 0, MOST_COUNTED)


def _draw(where: str, key: str, alpha: float, beta: float) -> float:
    """A draw from Beta(alpha, beta) that depends on the two names only."""
    digest = hashlib.blake2b(f"{where} {key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little")).betavariate(float(alpha), float(beta))


class _ThompsonStream(RankedStream):
    """`where` names the decision, so that every batch has draws of its own."""

    def __init__(self, state: AllocationState, budget: int, in_flight: int, where: str) -> None:
        n = state.num_prompts
        self._where, self._keys = where, state.keys
        self._prior_alpha, self._prior_beta = state.prior_alpha.tolist(), state.prior_beta.tolist()  # type: ignore[union-attr]
        self._every, self._started, self._looks = max(in_flight, n), 0, 0
        self._drawn: list[tuple[tuple[int, float], float]] = [((-1, -1.0), 0.0)] * n  # from what, and p (1 - p)
        super().__init__(state, budget)

    def next_prompt(self) -> int:
        if self._started == self._every:
            self._started, self._looks = 0, self._looks + 1
            self.rank_all()
        self._started += 1
        return super().next_prompt()

    def rank(self, prompt: int) -> Rank:
        n, variance = self.spent[prompt], self._variance(prompt)
        return (n > 0, -variance / (n * (n + 1)) if n else -variance)

    def _variance(self, prompt: int) -> float:
        """p (1 - p) of the prompt's draw, which is made again where what it was made from has changed."""
        successes, failures = self.successes[prompt], self.failures[prompt]
        known = (self._looks, successes + failures)
        before, variance = self._drawn[prompt]
        if known == before:
            return variance
        alpha, beta = self._prior_alpha[prompt] + successes, self._prior_beta[prompt] + failures
        p = _draw(f"{self._where}/{self._looks}/{known[1]:g}", self._keys[prompt], alpha, beta)
        self._drawn[prompt] = known, p * (1 - p)
        return p * (1 - p)
