"""Thompson sampling: pass rates drawn from the beliefs, groups as large as the drawn standard deviation."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np

from ..values import integer
from .base import AllocationState, Allocator
from .integers import IntArray, bounds, in_proportion, round_total


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

    Args:
        seed (`int`): where the randomness starts.
    """

    name = "thompson"

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
        name = f"{self.seed} {self.step} {key}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(name, digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "little")).betavariate(float(alpha), float(beta))

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = integer("step", self.known_state(state, ("step",)).get("step", 0), 0)
