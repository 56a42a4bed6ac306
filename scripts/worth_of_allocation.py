"""How much could any allocation be worth? Equal groups of which size have the utility of the best allocation of 8?

    python scripts/worth_of_allocation.py

prints the tables and writes them to docs/results/worth_of_allocation.md; a minute of processor time, no model. The
starts of the learning benchmark come from its stored runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaroll_trl.markdown import markdown_table
from adaroll_trl.simulation import Difficulty, PassCounts, Setting, difficulty_bound, parse_difficulty, point, rates
from adaroll_trl.simulation.measured import Measured
from adaroll_trl.utilities import Utility, make_utility

ROOT = Path(__file__).parent.parent
GROUP, PROMPTS, LEAST, MOST, LARGEST = 8, 16, 2, 32, 64
KAPPAS = (0.0, 0.5, 2.0, 8.0, np.inf)


def utility_of(kappa: float) -> Utility:
    """`progress`, with its two limits."""
    if kappa == 0:
        return make_utility("mixed")
    return make_utility("mass") if np.isinf(kappa) else make_utility("progress", kappa=kappa)


def starts(results: Path) -> dict[str, Difficulty]:
    """The held-out pass rates of the learning benchmark's starts, over the seeds that are stored."""
    found = {}
    for regime in ("H", "U", "HH"):
        runs = [json.loads(path.read_text()) for path in sorted((results / f"{regime}-grpo").glob("seed*.json"))]
        counts = np.array([[int(digit, 36) for digit in run["right"]["0"]] for run in runs]).ravel()
        if counts.size:
            fitted = PassCounts(counts, np.full(counts.size, 16)).difficulty("mixture")
            found[f"{regime}, {len(runs)} starts"] = fitted
    return found


def difficulties(results: Path) -> dict[str, Difficulty]:
    even = rates((np.arange(100) + 0.5) / 100)
    return {
        "every pass rate alike": even,
        "smollm2-arithmetic": parse_difficulty("smollm2-arithmetic"),
        "demo": parse_difficulty("demo"),
        **starts(results),
    }


def known_rates(difficulty: Difficulty, utility: Utility) -> float:
    """Utility of a prompt where every pass rate is known beforehand: one price, each prompt's best fixed size."""
    points = np.array([low for _, low, _ in difficulty.parts])
    shares = np.array(difficulty.weights)
    values = np.array([expected(point, utility) for point in points])
    sizes = np.arange(LEAST, MOST + 1)
    low, high, best = -1.0, 1.0, np.inf
    for _ in range(60):
        price = 0.5 * (low + high)
        net = values[:, LEAST:] - price * sizes
        chosen = net.argmax(axis=1)
        best = min(best, float(shares @ net.max(axis=1)) + price * GROUP)
        low, high = (price, high) if shares @ sizes[chosen] > GROUP else (low, price)
    return best


def expected(rate: float, utility: Utility) -> NDArray[np.float64]:
    """E[U] after 0 .. MOST rollouts at one pass rate."""
    only = point(rate)
    return np.array([only.expected(utility, n) for n in range(MOST + 1)])


def equal_groups(difficulty: Difficulty, utility: Utility, value: Measured) -> str:
    """The size of equal groups with this utility per prompt, with the standard error of what was simulated."""
    low, size, high = (
        difficulty.equal_groups(utility, value.value + sign * value.error, LARGEST) for sign in (-1, 0, 1)
    )
    if np.isnan(size):
        return f"over {LARGEST}"
    return Measured(GROUP).text(digits=1) if size <= GROUP else Measured(size, (high - low) / 2).text(digits=1)


def rows(difficulty: Difficulty, batches: int) -> Iterator[list[str]]:
    for kappa in KAPPAS:
        utility = utility_of(kappa)
        bounds = [
            difficulty_bound(difficulty, PROMPTS, PROMPTS * GROUP, utility, LEAST, MOST, carried) / PROMPTS
            for carried in (0, GROUP)
        ]
        flat = Setting(difficulty, num_prompts=PROMPTS, utility=utility)
        fitted = replace(flat, prior=difficulty.fitted_prior(GROUP))
        settings = [flat, fitted, replace(fitted, carried=GROUP, rounds=1)]
        played = [setting.play("adaroll", batches, seed=0).utility / PROMPTS for setting in settings]
        cells = [*played, *(Measured(value) for value in (*bounds, known_rates(difficulty, utility)))]
        name = {0.0: "0 (`mixed`)", np.inf: "infinite (`mass`)"}.get(kappa, f"{kappa:g}")
        yield [name, *(equal_groups(difficulty, utility, cell) for cell in cells)]


def page(results: Path, batches: int) -> Iterator[str]:
    yield "# How much could any allocation be worth?\n"
    yield (
        f"Printed by `python scripts/worth_of_allocation.py` on {datetime.date.today()}, 2 CPU cores, no GPU.\n\n"
        f"{PROMPTS} prompts x {GROUP} rollouts, {LEAST} to {MOST} a prompt. If a group of s successes and f failures "
        "is worth m / (m + kappa), m = s f / n (the progress along the mean gradient of a step whose prompts are "
        "weighted best; kappa is the noise of one rollout against the spread between prompts), then an allocation of "
        "8 rollouts a prompt is worth as much as equal groups of the size in the table. Doubling GRPO's rollouts "
        "would be 16. Errors of simulated columns are one standard error.\n\n"
        "- **flat prior**: `adaroll`, 4 rounds, believed Beta(1, 1), simulated; 8.0 where it is no better than equal "
        "groups.\n"
        '- **fitted prior**: the same with the prior that `prior_source="empirical_bayes"` finds.\n'
        "- **8 seen, 1 round**: the same with 8 earlier outcomes of each prompt, and one round.\n"
        "- **nothing known**, **8 known**: bounds; no policy is worth more, however many rounds it has, if it knows "
        "the distribution of the pass rates and 0 or 8 earlier outcomes of each prompt.\n"
        "- **rates known**: every pass rate known exactly before the first rollout, one round.\n"
    )
    for name, difficulty in difficulties(results).items():
        yield f"## {name}\n"
        heads = ["kappa", "flat prior", "fitted prior", "8 seen, 1 round", "nothing known", "8 known", "rates known"]
        yield from markdown_table(heads, rows(difficulty, batches))
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    lines = []
    for line in page(options.results / "learning", options.batches):
        print(line, flush=True)
        lines.append(line)
    (options.results / "worth_of_allocation.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
