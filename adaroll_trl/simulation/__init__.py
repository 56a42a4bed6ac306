"""Simulation: play allocators on batches of Bernoulli prompts, without a model."""

from .bound import difficulty_bound
from .compare import Row, Setting, compare
from .difficulty import Difficulty, beta, histogram, mixture, point, rates
from .difficulty_text import DifficultyError, parse_difficulty
from .measured import Measured
from .pass_counts import PassCounts, read_difficulty, read_pass_counts
from .planning import ExpectedRollouts, plan
from .play import SimulationResult, gain_share, simulate

__all__ = [
    "Difficulty",
    "DifficultyError",
    "ExpectedRollouts",
    "Measured",
    "PassCounts",
    "Row",
    "Setting",
    "SimulationResult",
    "beta",
    "compare",
    "difficulty_bound",
    "gain_share",
    "histogram",
    "mixture",
    "parse_difficulty",
    "plan",
    "point",
    "rates",
    "read_difficulty",
    "read_pass_counts",
    "simulate",
]
