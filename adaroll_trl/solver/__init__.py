"""Solvers for rollout allocation: numpy and numba only, no torch and no trl.

solve_joint        the exact optimum of a small batch, with its policy        (joint)
solve_index        a price index per prompt: any batch, any budget            (index)
plan_round         counts for the next round of a batch                       (rounds)
StreamPlanner      the next rollout while others are in flight                (streaming)
lagrangian_bound   an upper bound on every policy                             (bound)
"""

from ..utilities import UTILITY_NAMES, Utility, as_utility, make_utility
from .bound import lagrangian_bound
from .index import IndexTable, solve_index
from .joint import JointTable, solve_joint
from .rounds import plan_round
from .streaming import StreamPlanner

__all__ = [
    "UTILITY_NAMES",
    "IndexTable",
    "JointTable",
    "StreamPlanner",
    "Utility",
    "as_utility",
    "lagrangian_bound",
    "make_utility",
    "plan_round",
    "solve_index",
    "solve_joint",
]
