"""Which belief_decay suits which drift of the policy, and what a wrong one costs.

    python scripts/belief_drift.py

Simulates runs of several epochs over the same prompts (`adaroll_trl.simulation.simulate_epochs`) for every
combination of drift, decay, rounds, minimum and prior. Results are stored cell by cell in
docs/results/belief_drift.json, so that a second call goes on where the first one ended; the table goes to
docs/results/belief_drift.md and the figure to docs/results/belief_drift.png.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from adaroll_trl.simulation.epochs import DRIFTS, simulate_epochs

RESULTS = Path(__file__).parent.parent / "docs" / "results"
DECAYS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
ROUNDS = (1, 2, 4)
MINIMA = (0, 2)
SOURCES = ("fixed", "empirical_bayes")
SIZES = {"num_prompts": 192, "batch_size": 32, "num_generations": 8, "epochs": 6, "repeats": 4, "seed": 0}

Cell = tuple[str, int, str, float, int]


def cells() -> list[Cell]:
    order = product(SOURCES, MINIMA, DRIFTS, ROUNDS, DECAYS)
    return [(drift, rounds, source, decay, minimum) for source, minimum, drift, rounds, decay in order]


def name_of(cell: Cell) -> str:
    drift, rounds, source, decay, minimum = cell
    return f"drift={drift} rounds={rounds} prior={source} decay={decay:g} min_rollouts={minimum}"


def play(cell: Cell) -> dict[str, Any]:
    """Means by repeat, over all epochs but the first, in which beliefs know nothing yet."""
    drift, rounds, source, decay, minimum = cell
    start = time.process_time()
    result = simulate_epochs(
        "adaroll", rounds=rounds, drift=drift, decay=decay, prior_source=source, min_rollouts=minimum, **SIZES
    )

    def by_repeat(values: np.ndarray) -> list[float]:
        return [round(float(value), 6) for value in values[:, 1:].mean(axis=(1, 2))]

    return {
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
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(stored, indent=0) + "\n")
        os.replace(temporary, path)
        print(f"{number}/{len(cells())} {name_of(cell)}: {found['seconds']} s", flush=True)
    return stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where results are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    fill(folder / "belief_drift.json")


if __name__ == "__main__":
    main()
