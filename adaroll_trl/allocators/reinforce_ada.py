"""Reinforce-Ada: prompts take part until they have enough successes, or enough of both kinds."""

from __future__ import annotations

from ..values import choice, integer
from .base import AllocationState, Allocator, RolloutStream
from .integers import IntArray, bounds, round_total, share_evenly
from .ranked import Rank, RankedStream


class ReinforceAdaAllocator(Allocator):
    """Reinforce-Ada (Xiong et al., arXiv 2510.04996): successive elimination.

    All prompts start active. A round gives the active ones equally many rollouts; afterwards those leave that have

        mode "pos"        at least k successes (k = 1)
        mode "balance"    at least k successes and k failures (k = 2)

    From the paper: rounds of equal size per active prompt and the two exit rules (in "balance", half of the group that
    is trained on; k = 2 is ours). Ours: the budget. There a round costs as much as prompts are active, and the total
    is open; here every round spends an equal share of what is left, so that the active prompts get more as others
    leave, and what they have no room for goes to the others.

    Takes any number of rounds (the user's `rounds`; 4 in the paper). Needs no beliefs and reads none.

    **In a stream** (ours): rounds of one rollout. The next one goes to the active prompt with the fewest, those in
    flight included, and once no active prompt has room, to the others in the same way. A rollout in flight is not yet
    an outcome: a prompt stays active until the outcomes that are known suffice, even where those in flight may bring
    what it lacks. With one in flight a prompt leaves at the very rollout that suffices; with all in flight nothing is
    known before the last one, and groups are equal, as in one round.

    Args:
        mode (`str`): "pos" or "balance".
        k (`int`, *optional*): see above.
    """

    name = "reinforce_ada"
    streams = True

    def __init__(self, mode: str = "balance", k: int | None = None) -> None:
        self.mode = choice("mode", mode, ("pos", "balance"))
        self.k = integer("k", {"pos": 1, "balance": 2}[self.mode] if k is None else k, 1)

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        low, high = bounds(state, rollouts_left)
        total = round_total(rollouts_left / rounds_left, low, state, rollouts_left, rounds_left)
        active = state.successes < self.k
        if self.mode == "balance":
            active |= state.failures < self.k
        return share_evenly(total, low, high, [active])

    def stream(self, state: AllocationState, budget: int, in_flight: int) -> RolloutStream:
        return _ReinforceAdaStream(state, budget, self.k, self.k if self.mode == "balance" else 0)


class _ReinforceAdaStream(RankedStream):
    """A prompt leaves with these many successes and failures."""

    def __init__(self, state: AllocationState, budget: int, successes: int, failures: int) -> None:
        self._enough = successes, failures
        super().__init__(state, budget)

    def rank(self, prompt: int) -> Rank:
        successes, failures = self._enough
        return (self.successes[prompt] >= successes and self.failures[prompt] >= failures,)
