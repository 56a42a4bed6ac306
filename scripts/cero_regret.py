"""The regret of allocator `cero` under fixed utilities, against the best allocation in hindsight.

    python scripts/cero_regret.py

Prompts have fixed values v_i and all of them come in every step. After k steps a prompt's mean allocation is x_i, and
the average utility of the run so far is sum_i v_i tau (1 - exp(-x_i / tau)). The offline optimum maximises it over
all x within the bounds that add up to the budget: a convex programme, solved by scipy. The average regret is the
difference. CERO's bound of order sqrt(k) on the regret says that sqrt(k) times the average regret stays bounded; its
slope over log k need not be -1/2 everywhere. Prints both, and where the mean allocation passes the optimum. Writes
docs/results/cero_regret.png. A minute of processor time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from adaroll_trl.allocators import AllocationState
from adaroll_trl.allocators.cero import CeroAllocator

LOW, HIGH = 2, 32  # bounds on a prompt's rollouts per step


class Run(NamedTuple):
    """What a run shows after 1, 2, ... steps: float arrays of shape (steps,).

    Attributes:
        regret: average regret.
        overshoot: how far the mean allocation is from equal groups on the way to the optimum, less 1, by the curvature
            of the utility: -1 for equal groups, 0 near the optimum, above 0 past it.
    """

    regret: NDArray[np.float64]
    overshoot: NDArray[np.float64]


def offline_optimum(values: NDArray[np.float64], tau: float, budget: int) -> NDArray[np.float64]:
    """The allocation of the largest average utility in hindsight, shape (prompts,)."""
    n = values.size
    solution = minimize(
        lambda x: -(values * tau * (1 - np.exp(-x / tau))).sum(),
        np.full(n, budget / n),
        jac=lambda x: -values * np.exp(-x / tau),
        bounds=[(LOW, HIGH)] * n,
        constraints={"type": "eq", "fun": lambda x: x.sum() - budget, "jac": lambda x: np.ones(n)},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    if not solution.success:
        raise RuntimeError(f"scipy did not solve the offline problem: {solution.message}")
    return np.asarray(solution.x)


def run(num_prompts: int, rollouts: int, tau: float, steps: int, seed: int, step: float = 0.3) -> Run:
    """Play `steps` steps.

    Args:
        num_prompts, rollouts (`int`): prompts of a step, and rollouts per prompt on average.
        tau, step (`float`): of `CeroAllocator`.
        steps (`int`): how many.
        seed (`int`): of the prompts' beliefs, which stay what they are.
    """
    alpha, beta = np.random.default_rng(seed).gamma(1.0, 2.0, (2, num_prompts)) + 0.3
    values = alpha * beta / ((alpha + beta) * (alpha + beta + 1))
    budget = num_prompts * rollouts
    allocator = CeroAllocator(tau, step)
    nothing = np.zeros(num_prompts)
    state = AllocationState(nothing, nothing, alpha, beta, min_rollouts=LOW, max_rollouts=HIGH)
    counts = np.array([allocator.allocate(state, budget, 1) for _ in range(steps)])
    mean = counts.cumsum(axis=0) / np.arange(1, steps + 1)[:, None]
    best = offline_optimum(values, tau, budget)

    def utility(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((values * tau * (1 - np.exp(-x / tau))).sum(axis=-1))

    curvature, way = values * np.exp(-best / tau), best - rollouts
    overshoot = (mean - best) @ (curvature * way) / (curvature @ way**2)
    return Run(utility(best) - utility(mean), overshoot)


def last_crossing(values: NDArray[np.float64]) -> int:
    """The first step from which on `values` keep their sign."""
    other = np.flatnonzero(np.sign(values) != np.sign(values[-1]))
    return int(other[-1]) + 2 if other.size else 1


def log_log_slope(regret: NDArray[np.float64], start: int = 50) -> float:
    """Slope of log regret over log step, by least squares on steps from `start` on, even in the logarithm."""
    steps = np.unique(np.geomspace(start, regret.size, 60).astype(int))
    return float(np.polyfit(np.log(steps), np.log(np.maximum(regret[steps - 1], 1e-12)), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a step")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts per prompt on average")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=8, help="draws of the prompts' values")
    parser.add_argument("--output", type=Path, default=Path("docs/results/cero_regret.png"))
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    steps = np.arange(1, options.steps + 1)
    for tau in (4.0, 8.0, 16.0):
        runs = [run(options.prompts, options.rollouts, tau, options.steps, seed) for seed in range(options.seeds)]
        mean = np.mean([played.regret for played in runs], axis=0)
        slopes = [log_log_slope(played.regret) for played in runs]
        bounded = np.sqrt(steps) * mean
        print(
            f"tau {tau:g}: average regret {mean[9]:.4f} after 10 steps, {mean[99]:.5f} after 100, {mean[-1]:.6f} "
            f"after {options.steps:,}\n"
            f"    sqrt(k) x average regret: {bounded[9]:.4f} at step 10, at most {bounded[49:].max():.4f} from 50 on\n"
            f"    slope {log_log_slope(mean):.2f} from step 50 on ({min(slopes):.2f} to {max(slopes):.2f} over "
            f"{options.seeds} draws), {log_log_slope(mean, options.steps // 3):.2f} in the last two thirds\n"
            f"    the mean allocation keeps to one side of the optimum from step "
            f"{np.median([last_crossing(played.overshoot) for played in runs]):.0f} on (median of the draws)"
        )
        axes.loglog(steps, mean, label=f"tau = {tau:g}")
        if tau == 8.0:
            axes.loglog(steps, mean[9] * np.sqrt(10 / steps), "k--", linewidth=1, label="1 / sqrt(k)")
    axes.set_xlabel("steps k")
    axes.set_ylabel("average regret")
    axes.set_title(f"cero, {options.prompts} prompts x {options.rollouts} rollouts, fixed utilities")
    axes.legend()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=120, bbox_inches="tight")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
