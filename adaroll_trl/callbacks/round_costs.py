"""What rounds cost in time.

A round of m rollouts takes about a + b m seconds, and a, its fixed cost, is what one more round adds: deciding,
starting the generation, waiting for the longest completion while the device runs empty, reward functions' latency.
Rounds differ in size, so a and b are the least squares fit, neither below 0, to the rounds of the latest batches. A
batch of R rounds would then be (R - 1) a seconds shorter as one round. Where rounds hardly differ in size nothing is
estimated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

if TYPE_CHECKING:
    from ..batch import GenerationBatch

BATCHES = 50  # of which the latest are kept
LEAST_BATCHES = 10
IGNORED = 2  # batches at the start, which compile and warm up
_LEAST_SPREAD = 0.1  # standard deviation of rounds' sizes over their mean


@dataclass(frozen=True)
class RoundCost:
    """Medians of a batch's rounds and of its seconds with its training; `fixed` seconds of a round of any size."""

    rounds: float
    fixed: float
    period: float

    @property
    def slowdown(self) -> float:
        """A batch's time, with its training, over that which one round would leave; at least 1."""
        extra = (self.rounds - 1) * self.fixed
        return self.period / max(self.period - extra, 1e-3 * self.period)


class RoundCosts:
    """Times the rounds of batches; to be told when each begins.

    Args:
        clock (callable): seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began: float | None = None  # the batch, and the one before it
        self._before: float | None = None
        self._marks: list[float] = []
        self._seen = 0
        self._rounds: deque[list[tuple[int, float]]] = deque(maxlen=BATCHES)  # rollouts and seconds
        self._periods: deque[float] = deque(maxlen=BATCHES)

    def round_begins(self, batch: GenerationBatch) -> None:
        now = self._clock()
        if not batch.rounds:
            self._before, self._began, self._marks = self._began, now, []
        self._marks.append(now)

    def batch_ends(self, batch: GenerationBatch) -> None:
        self._seen += 1
        if len(self._marks) != len(batch.rounds) or self._began is None or self._seen <= IGNORED:
            return
        ends = [*self._marks[1:], self._clock()]
        seconds = [end - start for start, end in zip(self._marks, ends, strict=True)]
        self._rounds.append([(round_.rows, spent) for round_, spent in zip(batch.rounds, seconds, strict=True)])
        if self._before is not None:
            self._periods.append(self._began - self._before)

    def estimate(self) -> RoundCost | None:
        """None while there are too few batches, or rounds of one size only."""
        if len(self._rounds) < LEAST_BATCHES or len(self._periods) < LEAST_BATCHES:
            return None
        sizes, seconds = np.array([one for rounds in self._rounds for one in rounds], dtype=np.float64).T
        rounds = float(np.median([len(one) for one in self._rounds]))
        if rounds <= 1 or sizes.std() < _LEAST_SPREAD * sizes.mean():
            return None
        (fixed, _), _ = nnls(np.stack([np.ones(sizes.size), sizes], axis=1), seconds)
        return RoundCost(rounds, float(fixed), float(np.median(self._periods)))
