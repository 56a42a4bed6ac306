"""The figures of docs/how_it_works.md, from the solvers and the simulator alone; no model. One command, no arguments:

    python scripts/how_it_works.py

Writes docs/how_it_works/{batch,price,rounds,rates}.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaroll_trl.plots import COLOURS, require_matplotlib, save_figure, tidy
from adaroll_trl.simulation import gain_share, simulate
from adaroll_trl.solver import plan_round

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).parent.parent / "docs" / "how_it_works"
MINIMUM, MAXIMUM, AVERAGE = 2, 32, 8  # the trainer's defaults for num_generations=8
SIZES = {"batch": 4.0, "price": 3.6, "rounds": 3.6, "rates": 5.4}  # heights in inches
ROUND_COLOURS = ("#08306B", "#2171B5", "#6BAED6", "#C6DBEF")  # the first round darkest


def play(pass_rates: NDArray[np.float64], rounds: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One batch of coins: counts of shape (rounds, prompts), and each prompt's successes in the end."""
    draws = np.random.default_rng(seed)
    successes, failures = np.zeros((2, pass_rates.size), dtype=np.int64)
    left, counts = AVERAGE * pass_rates.size, []
    for rounds_left in range(rounds, 0, -1):
        planned = plan_round(successes, failures, left, rounds_left, min_rollouts=MINIMUM, max_rollouts=MAXIMUM)
        wins = draws.binomial(planned, pass_rates)
        successes, failures, left = successes + wins, failures + planned - wins, left - int(planned.sum())
        counts.append(planned)
    return np.array(counts), successes


def draw_batch(axes: Axes) -> None:
    pass_rates = np.array([0, 0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1])
    counts, successes = play(pass_rates, rounds=len(ROUND_COLOURS), seed=3)
    places, below = np.arange(pass_rates.size), np.zeros(pass_rates.size, dtype=np.int64)
    for number, (planned, colour) in enumerate(zip(counts, ROUND_COLOURS, strict=True), 1):
        axes.bar(places, planned, bottom=below, color=colour, width=0.8, label=f"round {number}")
        below += planned
    for place, total, right in zip(places, below, successes, strict=True):
        axes.text(place, total + 0.3, f"{right}", ha="center", fontsize="small")
    axes.axhline(AVERAGE, color="#222222", linestyle="--", linewidth=1, label="GRPO")
    axes.set_xticks(places, [f"{rate:g}" for rate in pass_rates], rotation=60, fontsize="small")
    axes.set_xlabel("true pass rate of the prompt (the policy does not know it)")
    axes.set_ylabel("rollouts; above a bar, successes")
    axes.set_ylim(0, below.max() * 1.35)
    axes.locator_params(axis="y", integer=True)
    axes.legend(frameon=False, ncols=3, loc="upper center")


def draw_price(axes: Axes) -> None:
    further, price = np.arange(1, 13), 0.03
    for failures, colour in zip((2, 4, 8), COLOURS, strict=False):
        # A group with failures only has a signal once it has a success; of none among the next m, under the belief
        # Beta(1, 1 + failures), the chance is (failures + 1) / (failures + 1 + m).
        none = (failures + 1) / (failures + 1 + np.arange(further.size + 1))
        axes.plot(further, -np.diff(none), color=colour, marker="o", ms=4, label=f"{failures} failures so far")
    axes.plot(further, np.zeros(further.size), color=COLOURS[3], marker="o", ms=4, label="both outcomes seen")
    axes.axhline(price, color="#222222", linestyle="--", linewidth=1, label="price of a rollout")
    axes.set_xlabel("further rollouts of the prompt")
    axes.set_ylabel("chance of a signal that each adds")
    axes.legend(frameon=False)


def draw_rounds(axes: Axes, batches: int) -> None:
    prompts, rounds = 32, (1, 2, 3, 4, 6, 8)
    for utility, colour in zip(("mixed", "std", "mass"), COLOURS, strict=False):
        common = {"utility": utility, "num_batches": batches, "max_rollouts": MAXIMUM}
        best = simulate("adaroll", prompts, prompts * AVERAGE, prompts * AVERAGE, **common)
        played = [simulate("adaroll", prompts, prompts * AVERAGE, number, **common) for number in rounds]
        shares = [100 * gain_share(result, best).value for result in played]
        axes.plot(rounds, shares, color=colour, marker="o", ms=4, label=utility)
    axes.set_xlabel("rounds")
    axes.set_ylabel("gain over equal groups, %\n(100: rollout by rollout)")
    axes.legend(frameon=False)


def draw_rates(rollouts: Axes, weights: Axes, batches: int) -> None:
    pass_rates = np.linspace(0.05, 0.95, 19)
    bounds = {"min_rollouts": MINIMUM, "max_rollouts": MAXIMUM}
    for name, colour in zip(("GRPO", "mixed", "progress", "mass"), ("#222222", *COLOURS), strict=False):
        allocator, utility = ("uniform", "mixed") if name == "GRPO" else ("adaroll", name)
        played = simulate(allocator, 32, 32 * AVERAGE, 4, utility, pass_rates, num_batches=batches, **bounds)
        s, n = played.successes, played.rollouts
        of_rate = [np.isclose(played.success_probs, rate) for rate in pass_rates]
        rollouts.plot(pass_rates, [n[part].mean() for part in of_rate], color=colour, label=name)
        mass = np.array([(s * (n - s) / n)[part].mean() for part in of_rate])
        weights.plot(pass_rates, mass / (pass_rates * (1 - pass_rates)) / (AVERAGE - 1), color=colour)
    rollouts.set_ylabel("rollouts")
    rollouts.legend(frameon=False, ncols=2)
    weights.set_ylabel("weight in the update\n(GRPO: 1)")
    weights.set_xlabel("pass rate of the prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000, help="simulated batches of a line (default: 2000)")
    parser.add_argument("--output-dir", type=Path, default=FOLDER, help="default: docs/how_it_works")
    options = parser.parse_args()
    require_matplotlib()
    from matplotlib.figure import Figure

    figures = {name: Figure(figsize=(6.4, height), layout="constrained") for name, height in SIZES.items()}
    draw_batch(figures["batch"].subplots())
    draw_price(figures["price"].subplots())
    draw_rounds(figures["rounds"].subplots(), options.batches)
    draw_rates(*figures["rates"].subplots(2, sharex=True), options.batches)
    for name, figure in figures.items():
        tidy(figure.axes)
        save_figure(figure, options.output_dir / f"{name}.png")


if __name__ == "__main__":
    main()
