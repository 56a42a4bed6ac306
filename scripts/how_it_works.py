"""The figures of docs/how_it_works.md, from coins: no model, a quarter of a minute on two cores.

    python scripts/how_it_works.py

Writes docs/how_it_works/{batch,rates,price,rounds}.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from adaroll_trl.plots import COLOURS, save_figure, tidy
from adaroll_trl.simulation import simulate
from adaroll_trl.solver import plan_round

ROOT = Path(__file__).resolve().parents[1]
EACH, LEAST, MOST = 8, 2, 32  # rollouts of a prompt: on average, at least, at most
PROMPTS = 32  # of the simulated batches
SHADES = ("#08306B", "#2171B5", "#6BAED6", "#C6DBEF")  # of the rounds


def batch_figure(seed: int) -> Figure:
    """One batch of 16 prompts: the rollouts of each, by round, and how many succeeded."""
    rates = np.array([0, 0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1])
    draws = np.random.default_rng(seed)
    place = np.arange(rates.size)
    successes, failures = np.zeros((2, rates.size), dtype=int)
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    left = rates.size * EACH
    for number, shade in enumerate(SHADES):
        before = successes + failures
        counts = plan_round(successes, failures, left, len(SHADES) - number, min_rollouts=LEAST, max_rollouts=MOST)
        right = draws.binomial(counts, rates)
        successes, failures, left = successes + right, failures + counts - right, left - counts.sum()
        axes.bar(place, counts, bottom=before, color=shade, width=0.8, label=f"round {number + 1}")
    axes.axhline(EACH, color="black", linestyle="--", linewidth=1, label="GRPO")
    for x, height, right in zip(place, successes + failures, successes, strict=True):
        axes.annotate(str(right), (x, height), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(place, [f"{rate:g}" for rate in rates], rotation=60, fontsize=8)
    axes.set_ylim(0, 1.35 * (successes + failures).max())
    axes.locator_params(axis="y", integer=True)
    axes.set_xlabel("true pass rate of the prompt (the policy does not know it)")
    axes.set_ylabel("rollouts; above a bar, successes")
    axes.legend(frameon=False, ncols=3, loc="upper center")
    tidy([axes])
    return figure


def rates_figure(batches: int) -> Figure:
    """Mean rollouts, and the weight in the update, of prompts by their pass rate."""
    rates = np.linspace(0.05, 0.95, 19)
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    for name, colour in zip(("GRPO", "mixed", "progress", "mass"), ("#222222", *COLOURS), strict=False):
        allocator, utility = ("uniform", "mixed") if name == "GRPO" else ("adaroll", name)
        played = simulate(
            *(allocator, PROMPTS, PROMPTS * EACH, 4, utility, rates),
            **{"num_batches": batches, "min_rollouts": LEAST, "max_rollouts": MOST},
        )
        s, n = played.successes, played.rollouts
        of_rate = [played.success_probs == rate for rate in rates]
        upper.plot(rates, [n[part].mean() for part in of_rate], color=colour, label=name)
        # E[s f / n] / (p (1 - p)) is n - 1 for a group of fixed size n
        masses = np.array([(s * (n - s) / n)[part].mean() for part in of_rate])
        lower.plot(rates, masses / (rates * (1 - rates)) / (EACH - 1), color=colour)
    upper.set_ylabel("rollouts")
    upper.legend(frameon=False, ncols=2, loc="upper center")
    lower.set_ylabel("weight in the update\n(GRPO: 1)")
    lower.set_xlabel("pass rate of the prompt")
    tidy([upper, lower])
    return figure


def price_figure(price: float) -> Figure:
    """What each further rollout of a prompt adds to its chance of both outcomes, in the last round, prior (1, 1)."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    more = np.arange(13)
    for failures, colour in zip((2, 4, 8), COLOURS, strict=False):
        none = (failures + 1) / (failures + 1 + more)  # that none of so many further rollouts succeeds
        axes.plot(more[1:], -np.diff(none), color=colour, marker="o", ms=4, label=f"{failures} failures so far")
    axes.plot(more[1:], np.zeros(12), color=COLOURS[3], marker="o", ms=4, label="both outcomes seen")
    axes.axhline(price, color="black", linestyle="--", linewidth=1, label="price of a rollout")
    axes.set_xlabel("further rollouts of the prompt")
    axes.set_ylabel("chance of a signal that each adds")
    axes.legend(frameon=False)
    tidy([axes])
    return figure


def rounds_figure(batches: int) -> Figure:
    """The gain over equal groups by the number of rounds, in percent of that of deciding rollout by rollout."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    budget, rounds = PROMPTS * EACH, (1, 2, 3, 4, 6, 8)
    bounds = {"num_batches": batches, "min_rollouts": 0, "max_rollouts": MOST}
    for utility, colour in zip(("mixed", "std", "mass"), COLOURS, strict=False):
        gains = []
        for number in (*rounds, budget):
            played = simulate("adaroll", PROMPTS, budget, number, utility, **bounds)
            gains.append(played.mean - played.uniform_mean)
        axes.plot(rounds, 100 * np.array(gains[:-1]) / gains[-1], color=colour, marker="o", ms=4, label=utility)
    axes.set_xlabel("rounds")
    axes.set_ylabel("gain over equal groups, %\n(100: rollout by rollout)")
    axes.legend(frameon=False, loc="lower right")
    tidy([axes])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000, help="simulated batches of each line")
    parser.add_argument("--seed", type=int, default=1, help="of the one batch that is drawn")
    parser.add_argument(
        "--output_dir", type=Path, default=ROOT / "docs" / "how_it_works", help="where the pictures go"
    )
    options = parser.parse_args()
    figures = {
        "batch": batch_figure(options.seed),
        "rates": rates_figure(options.batches),
        "price": price_figure(price=0.03),
        "rounds": rounds_figure(options.batches),
    }
    for name, figure in figures.items():
        save_figure(figure, options.output_dir / f"{name}.png")


if __name__ == "__main__":
    main()
