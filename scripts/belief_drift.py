"""Which belief_decay suits which drift of the policy, and what a wrong one costs.

    python scripts/belief_drift.py

Simulates runs of several epochs over the same prompts (`adaroll_trl.simulation.simulate_epochs`) for every
combination of drift, decay, rounds, minimum and prior, and for the library's default. Results are stored cell by cell in
docs/results/belief_drift.json, so that a second call goes on where the first one ended; the table goes to
docs/results/belief_drift.md and the figure to docs/results/belief_drift.png.
"""

from __future__ import annotations

# ruff: noqa: E501 (a paragraph of the page is a line)
import argparse
import datetime
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaroll_trl.files import write_json
from adaroll_trl.markdown import markdown_table
from adaroll_trl.simulation.epochs import DRIFTS, simulate_epochs

RESULTS = Path(__file__).parent.parent / "docs" / "results"
DECAYS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
HEADS = [f"{decay:g}" for decay in DECAYS]
ROUNDS = (1, 2, 4)
MINIMA = (0, 2)
SOURCES = ("fixed", "empirical_bayes")
SIZES = {"num_prompts": 192, "batch_size": 32, "num_generations": 8, "epochs": 6, "repeats": 4, "seed": 0}


class Cell(NamedTuple):
    drift: str
    rounds: int
    source: str
    decay: float
    minimum: int
    utility: str = "mixed"


def cells() -> list[Cell]:
    order = product(SOURCES, MINIMA, DRIFTS, ROUNDS, DECAYS)
    found = [Cell(drift, rounds, source, decay, minimum) for source, minimum, drift, rounds, decay in order]
    return found + [cell for drift in DRIFTS for cell in default_row(drift)]


def name_of(cell: Cell) -> str:
    utility = "" if cell.utility == "mixed" else f" utility={cell.utility}"
    return (
        f"drift={cell.drift} rounds={cell.rounds} prior={cell.source} decay={cell.decay:g} "
        f"min_rollouts={cell.minimum}{utility}"
    )


def play(cell: Cell) -> dict[str, Any]:
    """Means by repeat, over all epochs but the first, in which beliefs know nothing yet."""
    start = time.process_time()
    result = simulate_epochs(
        "adaroll",
        rounds=cell.rounds,
        utility=cell.utility,
        drift=cell.drift,
        decay=cell.decay,
        prior_source=cell.source,
        min_rollouts=cell.minimum,
        **SIZES,
    )

    def by_repeat(values: np.ndarray) -> list[float]:
        return [round(float(value), 6) for value in values[:, 1:].mean(axis=(1, 2))]

    worth = {"utility": by_repeat(result.utilities), "uniform_utility": by_repeat(result.uniform_utilities)}
    return {
        **({} if cell.utility == "mixed" else worth),  # of which signal is the utility
        "signal": by_repeat(result.signal),
        "uniform": by_repeat(result.uniform_signal),
        "rollouts_signal": by_repeat(result.rollouts_signal),
        "predicted": by_repeat(result.predicted),
        "realised": by_repeat(result.realised),
        "seconds": round(time.process_time() - start, 2),
    }


def fill(path: Path) -> dict[str, Any]:
    stored = json.loads(path.read_text()) if path.exists() else {"sizes": SIZES, "cells": {}}
    if stored["sizes"] != SIZES:
        raise SystemExit(f"{path} was made with other sizes, {stored['sizes']}: remove it to start afresh.")
    for number, cell in enumerate(cells(), 1):
        if name_of(cell) in stored["cells"]:
            continue
        stored["cells"][name_of(cell)] = found = play(cell)
        stored["date"] = datetime.date.today().isoformat()
        write_json(path, stored, indent=0)
        print(f"{number}/{len(cells())} {name_of(cell)}: {found['seconds']} s", flush=True)
    return stored


def worth(stored: dict[str, Any], cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Mean utility of a prompt by repeat, and that of equal groups; of `mixed`, the shares of prompts with signal."""
    found = stored["cells"][name_of(cell)]
    keys = ("signal", "uniform") if cell.utility == "mixed" else ("utility", "uniform_utility")
    return np.array(found[keys[0]]), np.array(found[keys[1]])


def gain(stored: dict[str, Any], cell: Cell) -> tuple[float, float]:
    """Utility over that of equal groups, less 1, in per cent, and its standard error."""
    ours, equal = worth(stored, cell)
    ratio = ours.mean() / equal.mean()
    error = (ours - ratio * equal).std(ddof=1) / equal.mean() / np.sqrt(len(ours))
    return 100 * (ratio - 1), 100 * error


def cost(stored: dict[str, Any], cells_of_row: list[Cell], index: int) -> tuple[float, float]:
    """What the row's decay number `index` loses against its best one, in points, paired, and its standard error."""
    gains = [gain(stored, cell)[0] for cell in cells_of_row]
    (best, equal), (this, _) = (worth(stored, cells_of_row[k]) for k in (int(np.argmax(gains)), index))
    lost = best - this
    return 100 * lost.mean() / equal.mean(), 100 * lost.std(ddof=1) / equal.mean() / np.sqrt(len(lost))


def row(drift: str, rounds: int, source: str, minimum: int) -> list[Cell]:
    return [Cell(drift, rounds, source, decay, minimum) for decay in DECAYS]


def default_row(drift: str) -> list[Cell]:
    """The library's default, but for the decay."""
    return [Cell(drift, 1, "fixed", decay, 2, "progress") for decay in DECAYS]


def table(stored: dict[str, Any], source: str, minimum: int) -> Iterator[str]:
    rows = []
    for drift, rounds in product(DRIFTS, ROUNDS):
        found = [gain(stored, cell) for cell in row(drift, rounds, source, minimum)]
        best = max(value for value, _ in found)
        shown = [f"**{value:.1f}**" if value == best else f"{value:.1f}" for value, _ in found]
        rows.append([drift, f"{rounds}", *shown, f"{max(error for _, error in found):.1f}"])
    return markdown_table(["drift", "rounds", *HEADS, "±"], rows)


def cost_table(stored: dict[str, Any]) -> Iterator[str]:
    rows = []
    for source, drift in product(SOURCES, DRIFTS):
        cells_of_row = row(drift, 4, source, 0)
        gains = [gain(stored, cell)[0] for cell in cells_of_row]
        costs = [cost(stored, cells_of_row, index) for index in range(len(DECAYS))]
        shown = [f"{value:.1f} ± {error:.1f}" if value else "0" for value, error in costs]
        rows.append([f"`{source}`", drift, f"{DECAYS[int(np.argmax(gains))]:g}", *shown])
    return markdown_table(["prior", "drift", "best", *HEADS], rows, texts=2)


def rollouts_table(stored: dict[str, Any]) -> Iterator[str]:
    rows = []
    for source, drift in product(SOURCES, DRIFTS):
        cells_of_row = [stored["cells"][name_of(cell)] for cell in row(drift, 4, source, 0)]
        shown = [f"{100 * np.mean(cell['rollouts_signal']):.0f} %" for cell in cells_of_row]
        equal = 100 * np.mean(cells_of_row[0]["uniform"])
        rows.append([f"`{source}`", drift, f"{equal:.0f} %", *shown])
    return markdown_table(["prior", "drift", "equal groups", *HEADS], rows, texts=2)


def default_table(stored: dict[str, Any]) -> Iterator[str]:
    rows = []
    for drift in DRIFTS:
        found = [gain(stored, cell) for cell in default_row(drift)]
        rows.append([drift, "utility, gain in %", *(f"{value:+.1f} ± {error:.1f}" for value, error in found)])
        costs = [cost(stored, default_row(drift), index) for index in range(len(DECAYS))]
        rows.append(
            ["", "lost against the best", *(f"{value:.1f} ± {error:.1f}" if value else "0" for value, error in costs)]
        )
        played = [stored["cells"][name_of(cell)] for cell in default_row(drift)]
        shares = [f"{100 * np.mean(cell['rollouts_signal']):.0f} %" for cell in played]
        equal = f"{100 * np.mean(played[0]['uniform']):.0f} %"
        rows.append(["", f"rollouts with signal (equal groups: {equal})", *shares])
    return markdown_table(["drift", "", *HEADS], rows, texts=2)


def page(stored: dict[str, Any]) -> str:
    sizes = stored["sizes"]
    seconds = sum(cell["seconds"] for cell in stored["cells"].values())
    text = [
        "# Beliefs over epochs when the policy drifts",
        "",
        f"`python scripts/belief_drift.py`, {stored['date']}, 2 CPU cores, 24 GiB, no GPU; {seconds / 60:.0f} minutes of "
        "one core. Every number is in [belief_drift.json](belief_drift.json).",
        "",
        f"A simulation, not a training run: {sizes['num_prompts']} prompts come back in each of {sizes['epochs']} epochs, "
        f"{sizes['batch_size']} a batch with {sizes['num_generations']} rollouts each on average, {sizes['repeats']} "
        "repeats. A prompt's log odds of success are the policy's ability less the prompt's difficulty, which has mean 1 "
        "and standard deviation 2. Ability starts at 0 and by drift gains over the run: none 0; slow 1.5 log odds, and "
        "each prompt walks by 0.2 an epoch; fast 5, and 0.5; jump 2.5 all at once in the middle. What is learned does "
        "not depend on the allocation here, so this says how well carried beliefs steer, not what it does to accuracy.",
        "",
        'The numbers are for `allocator="adaroll"`, `utility="mixed"`, from the second epoch on: by how many per cent '
        "more prompts have signal (both a success and a failure) than with equal groups on the same outcomes. Columns "
        "are `belief_decay`; the last one is the largest standard error of the row. Best of a row in bold.",
    ]
    for source, minimum in product(SOURCES, MINIMA):
        text += ["", f'## `prior_source="{source}"`, `min_rollouts={minimum}`', "", *table(stored, source, minimum)]
    text += [
        "",
        "## The default: one round, `progress`",
        "",
        '`utility="progress"` (kappa 2), one round, `min_rollouts=2`, the prior Beta(1, 1). Its utility is s f / n over '
        "s f / n + kappa, not the share of prompts with signal; ± standard error. Decay 0 is equal groups.",
        "",
        *default_table(stored),
        "",
        "## What a wrong decay costs",
        "",
        "Points of the tables above lost against the row's best decay, 4 rounds, `min_rollouts=0`, ± standard error of "
        "the paired difference. (The best was picked from the same runs, so small costs are partly luck.)",
        "",
        *cost_table(stored),
        "",
        "## Rollouts with signal",
        "",
        "Share of rollouts, not of prompts, that belong to a prompt with signal, 4 rounds, `min_rollouts=0`:",
        "",
        *rollouts_table(stored),
        "",
        "![Gain by decay](belief_drift.png)",
        "",
    ]
    return "\n".join(text)


def draw(stored: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(DRIFTS), figsize=(12, 3.2), sharey=True, layout="constrained")
    for axis, drift in zip(axes, DRIFTS, strict=True):
        for source, rounds in product(SOURCES, ROUNDS):
            found = [gain(stored, cell) for cell in row(drift, rounds, source, 0)]
            values, errors = zip(*found, strict=True)
            style = {"fixed": "-", "empirical_bayes": "--"}[source]
            label = f"{rounds} round{'s' * (rounds > 1)}, {source}"
            colour = f"C{ROUNDS.index(rounds)}"
            axis.errorbar(DECAYS, values, errors, fmt=style, color=colour, capsize=2, label=label)
        axis.set(title=f"drift: {drift}", xlabel="belief_decay")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("more prompts with signal (%)")
    axes[-1].legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    stored = fill(folder / "belief_drift.json")
    text = page(stored)
    print(text)
    (folder / "belief_drift.md").write_text(text)
    draw(stored, folder / "belief_drift.png")


if __name__ == "__main__":
    main()
