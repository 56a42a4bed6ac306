"""Simulation: play allocators on batches of Bernoulli prompts, without a model."""

from .play import SimulationResult, gain_share, simulate

__all__ = ["SimulationResult", "gain_share", "simulate"]
