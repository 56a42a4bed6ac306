"""`StreamPlanner`: one rollout at a time while others are in flight. The rule is in `stream_kernels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .compiled import compile_once
from .index import whole_number
from .memory import available_bytes, format_bytes
from .round_batch import RoundBatch
from .round_tables import price_grid, round_tables
from .stream_kernels import PENDING, Stream, end_one, start_next

_PRICES = 160
_TABLE_BYTES = 64 * 2**20  # of stopping values that are kept at a time; beyond it, prices are tabulated again
_FEWEST_SLOTS = 4  # what one decision looks at: the price, its neighbours, and the one `TIE_STEP` above
_WHOLE, _BOOL = (int, np.integer), (bool, np.bool_)  # made once: `record` has microseconds


class StreamPlanner:
    """Spends a budget on a batch, rollout by rollout, before the outcomes of those in flight are known.

    Args:
        successes, failures, prior_alpha, prior_beta, min_rollouts, max_rollouts, utility, rollouts: as `plan_round`
            takes them. Every prior has tables of its own: nothing is interpolated.
        budget (`int`): rollouts to start; at least 1.
        in_flight (`int`): the most that are pending at once; at least 1.

    Raises:
        ValueError: as `plan_round` does, or if the tables of that many priors do not fit into memory.

    A decision and the record of an outcome take 20 to 40 microseconds together with 256 prompts
    (benchmarks/streaming.py). Tables take 64 MiB at most, or four for each prior if that is more, which is 1 MB a
    prior for groups of up to 256.

    >>> planner = StreamPlanner([0, 1], [0, 1], budget=2, in_flight=1)
    >>> planner.next_prompt()  # the second has both outcomes already
    0
    >>> planner.record(0, True)
    """

    def __init__(
        self,
        successes: ArrayLike,
        failures: ArrayLike,
        budget: int,
        in_flight: int,
        utility: str | UtilityFunction | Utility = "mixed",
        prior_alpha: ArrayLike = 1.0,
        prior_beta: ArrayLike = 1.0,
        min_rollouts: int = 0,
        max_rollouts: int | None = None,
        *,
        rollouts: ArrayLike | None = None,
    ) -> None:
        budget, in_flight = whole_number("budget", budget, 1), whole_number("in_flight", in_flight, 1)
        batch = RoundBatch(successes, failures, rollouts, prior_alpha, prior_beta, min_rollouts, max_rollouts)
        batch.check(budget, name="budget")
        compile_once(_run_kernels)
        size = max(batch.maximum, int(batch.spent.max()))
        self._left = budget
        self.stream = make_stream(as_utility(utility), size, batch.a, batch.b)
        self.stream.prompts[:, :4] = np.stack([batch.s, batch.n, np.zeros_like(batch.n), batch.spent], axis=1)
        self.stream.numbers[:4] = budget, in_flight, batch.minimum, batch.maximum

    def next_prompt(self) -> int:
        """The number of the prompt that the next rollout is of.

        Raises:
            ValueError: if the budget is spent.
        """
        if self._left == 0:
            raise ValueError("next_prompt() was called more often than the budget has rollouts.")
        self._left -= 1
        return int(start_next(self.stream))

    def record(self, prompt: int, success: bool | None) -> None:
        """A rollout of `prompt` has ended.

        Args:
            prompt (`int`): its number, 0 to n - 1.
            success (`bool` or `None`): None for a rollout without a reward.

        Raises:
            ValueError: if no rollout of it is pending, or `success` is anything else: a reward is no success.
        """
        if not isinstance(prompt, _WHOLE):
            raise ValueError(f"prompt={prompt!r} must be the whole number that next_prompt() gave.")
        if not (success is None or isinstance(success, _BOOL)):
            raise ValueError(f"success={success!r} must be True or False, or None for a rollout without a reward.")
        if not 0 <= prompt < len(self.stream.prompts) or self.stream.prompts[prompt, PENDING] == 0:
            raise ValueError(f"prompt={prompt!r} has no rollout in flight.")
        end_one(self.stream, prompt, -1 if success is None else int(success))


def make_stream(utility: Utility, size: int, alpha: NDArray[np.float64], beta: NDArray[np.float64]) -> Stream:
    """A batch of prompts without rollouts, whose `numbers` are still to be filled in.

    `size` is the most rollouts of a prompt. As many prices have tables at a time as 64 MiB hold, and no fewer than a
    decision looks at.

    Raises:
        ValueError: if the tables would take more memory than is free.
    """
    priors, table = np.unique(np.stack([alpha, beta], axis=1), axis=0, return_inverse=True)
    by_n, prices = round_tables(utility, size).by_n, price_grid(utility, size, _PRICES)
    states, n = (size + 1) * (size + 2) // 2, alpha.size
    bytes_of_slot = 8 * states * len(priors)
    slots = max(_FEWEST_SLOTS, min(prices.size, _TABLE_BYTES // bytes_of_slot))
    free = available_bytes()
    if free is not None and slots * bytes_of_slot > free:
        raise ValueError(
            f"prior_alpha, prior_beta: a stream over {len(priors):,} different priors with groups of up to {size} "
            f"rollouts needs {format_bytes(slots * bytes_of_slot)} of tables, where {format_bytes(free)} are free. "
            "Lower max_rollouts, or give fewer different priors."
        )
    prompts = np.zeros((n, 5), dtype=np.int64)
    prompts[:, 4] = table.ravel()
    numbers = np.zeros(7, dtype=np.int64)
    numbers[4:6] = -1
    largest = n * (float(np.abs(by_n).max()) + float(prices[-1]) * size) + 1e-300
    return Stream(
        prompts=prompts,
        numbers=numbers,
        priors=priors,
        prices=prices,
        by_n=by_n,
        slot_of=np.full(prices.size, -1, dtype=np.int64),
        price_of=np.full(slots, -1, dtype=np.int64),
        tables=np.empty((slots, len(priors), states)),
        changed=np.zeros(n, dtype=np.int64),
        stamp=np.full((slots, n), -1, dtype=np.int64),
        value=np.zeros((slots, n), dtype=np.int64),
        slope=np.zeros((slots, n)),
        unit=np.array([largest / 2**52]),
        pmf=np.zeros(size + 2),
    )


def _run_kernels() -> None:
    planner = StreamPlanner([0, 0], [0, 0], 2, 1, max_rollouts=2)
    planner.record(planner.next_prompt(), True)
