"""Exact value of the sequential policy: forward over the distribution of batch states, no sampling.

Prompts are exchangeable under a common prior, so a state is the sorted list of the prompts' (n, s). Starting from no
rollouts, each layer's states and their probabilities follow from the last one's under the policy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..utilities import Utility, UtilityFunction, as_utility
from .compiled import compile_once, kernel
from .index import check_prior, solve_index, utility_by_n, whole_number
from .sequential import choose, endgame_moves
from .threads import run_ranges


@kernel(nogil=True)
def _choices(
    s: NDArray,
    n: NDArray,
    a: float,
    b: float,
    index: NDArray,
    left: int,
    by_n: NDArray,
    first: NDArray,
    drawn: NDArray,
    after: NDArray,
    begin: int,
    end: int,
    chosen: NDArray,
) -> None:
    """The policy's prompt in the states begin .. end - 1, shape (states, prompts) -> (states,)."""
    size = by_n.shape[0] - 1
    alpha, beta = np.full(s.shape[1], a), np.full(s.shape[1], b)
    for i in range(begin, end):
        chosen[i] = choose(index[i], s[i], n[i], alpha, beta, size - n[i], left, by_n, first, drawn, after)


def _choose_all(
    s: NDArray[np.int64],
    n: NDArray[np.int64],
    prior: tuple[float, float],
    index: NDArray[np.float64],
    left: int,
    by_n: NDArray[np.float64],
) -> NDArray[np.int64]:
    chosen = np.empty(len(s), dtype=np.int64)

    def choose_some(first: int, end: int) -> None:
        _choices(s, n, prior[0], prior[1], index, left, by_n, *endgame_moves(), first, end, chosen)

    run_ranges(choose_some, len(s), 64)
    return chosen


def _run_kernels() -> None:
    sequential_value(2, 2)


def sequential_value(
    num_prompts: int,
    budget: int,
    utility: str | UtilityFunction | Utility = "mixed",
    prior: tuple[float, float] = (1.0, 1.0),
    max_rollouts: int | None = None,
) -> float:
    """Expected terminal utility, summed over prompts, of the index policy with its endgame, exactly.

    Args:
        num_prompts, budget (`int`): prompts, and rollouts in all. The number of states grows steeply with both.
        utility, prior, max_rollouts: as for `solve_joint`.

    Raises:
        ValueError: if an argument is out of range, or the budget does not fit under the maximum.

    >>> round(sequential_value(4, 16), 10)  # the joint optimum is 2.738324996
    2.738324996
    """
    num_prompts, budget = whole_number("num_prompts", num_prompts, 1), whole_number("budget", budget, 0)
    most = budget if max_rollouts is None else whole_number("max_rollouts", max_rollouts, 1)
    if num_prompts * most < budget:
        raise ValueError(f"budget={budget} cannot be spent: num_prompts * max_rollouts = {num_prompts * most}.")
    compile_once(_run_kernels)
    utility, (a, b) = as_utility(utility), check_prior(prior)
    size = max(1, min(most, budget))
    table, by_n = solve_index(size, utility, (a, b)), utility_by_n(utility.table(size))
    states = np.zeros((1, num_prompts), dtype=np.int64)  # n (size + 1) + s of each prompt, ascending
    chance: NDArray[np.float64] = np.ones(1)
    for left in range(budget, 0, -1):
        n, s = states // (size + 1), states % (size + 1)
        index = table.index(s, n - s, np.minimum(left, size - n))
        chosen = _choose_all(s, n, (a, b), index, left, by_n)
        row = np.arange(len(states))
        q = (a + s[row, chosen]) / (a + b + n[row, chosen])
        won, lost = states.copy(), states.copy()
        won[row, chosen] += size + 2
        lost[row, chosen] += size + 1
        states, member = np.unique(np.sort(np.concatenate([won, lost]), axis=1), axis=0, return_inverse=True)
        chance = np.bincount(member.ravel(), np.concatenate([chance * q, chance * (1.0 - q)])).astype(np.float64)
    n, s = states // (size + 1), states % (size + 1)
    return float(chance @ by_n[n, s].sum(axis=1))
