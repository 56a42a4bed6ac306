"""How good the allocators are, without a model. One command, about ten minutes on two cores:

    python scripts/allocation_quality.py

Prints four tables and writes them to docs/allocation_quality.md:
1. rounds: the share of the sequential policy's gain over equal groups that plans of 1 to 8 rounds keep;
2. sequential: the index policy against the exact joint optimum, evaluated exactly;
3. priors: what interpolating between tables costs when every prompt has a prior of its own;
4. maximum: what a maximum of rollouts per prompt can cost, by the bound.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np

from adaroll_trl.simulation import gain_share, simulate
from adaroll_trl.solver import lagrangian_bound, plan_round, solve_joint
from adaroll_trl.solver import round_tables as tables
from adaroll_trl.solver.evaluation import sequential_value
from adaroll_trl.utilities import UTILITY_NAMES, as_utility

ROUNDS = (1, 2, 3, 4, 6, 8)
PAPER_SET = ("mixed", "variance", "std", "mass", "std_mass", "balanced")
PROMPTS, BUDGET, LARGEST = 32, 256, 32


def rounds_table(batches: int) -> Iterator[str]:
    heads = ["utility", "uniform", "sequential", "bound", *(f"{k} round{'s' * (k > 1)}" for k in ROUNDS)]
    yield "| " + " | ".join(heads) + " |"
    yield "|---|" + "---:|" * (3 + len(ROUNDS))
    for utility in PAPER_SET:
        options = {"num_batches": batches, "max_rollouts": LARGEST}
        best = simulate("adaroll", PROMPTS, BUDGET, BUDGET, utility, **options)
        bound = lagrangian_bound(PROMPTS, BUDGET, utility, max_rollouts=LARGEST)
        cells = [f"{best.uniform_mean:.3f}", f"{best.mean:.3f} ± {best.standard_error:.3f}", f"{bound:.3f}"]
        for rounds in ROUNDS:
            share, error = gain_share(simulate("adaroll", PROMPTS, BUDGET, rounds, utility, **options), best)
            cells.append(f"{round(100 * share, 1) + 0.0:.1f} ± {100 * error:.1f}")
        yield f"| `{utility}` | " + " | ".join(cells) + " |"


def sequential_table() -> Iterator[str]:
    sizes = ((4, 16), (4, 32), (6, 24))
    yield "| utility | " + " | ".join(f"{n} / {budget}" for n, budget in sizes) + " |"
    yield "|---|" + "---:|" * len(sizes)
    for utility in UTILITY_NAMES:
        losses = []
        for n, budget in sizes:
            loss = 1.0 - sequential_value(n, budget, utility) / solve_joint(n, budget, utility).value
            losses.append(f"{100 * max(loss, 0.0):.4f} %")
        yield f"| `{utility}` | " + " | ".join(losses) + " |"


def priors_table(batches: int) -> Iterator[str]:
    yield "| utility | tables of their own | mesh | difference, paired | relative |"
    yield "|---|---:|---:|---:|---:|"
    for utility in PAPER_SET:
        exact, meshed = (_play_with_priors(utility, batches, limit) for limit in (64, tables.EXACT_PRIORS))
        difference = meshed - exact
        error = difference.std(ddof=1) / np.sqrt(batches)
        yield (
            f"| `{utility}` | {exact.mean():.4f} | {meshed.mean():.4f} | {difference.mean():+.4f} ± {error:.4f} | "
            f"{100 * difference.mean() / exact.mean():+.2f} % |"
        )


def _play_with_priors(utility: str, batches: int, exact_priors: int) -> np.ndarray:
    """Utility of each batch: 16 prompts x 8 in 4 rounds, alpha and beta log-uniform between 0.2 and 8."""
    rng = np.random.default_rng(7)
    alpha, beta = np.exp(rng.uniform(np.log(0.2), np.log(8.0), (2, 16)))
    outcomes = rng.random((batches, 16, LARGEST)) < rng.beta(alpha, beta, (batches, 16))[..., None]
    before, tables.EXACT_PRIORS = tables.EXACT_PRIORS, exact_priors
    values = np.empty(batches)
    for batch in range(batches):
        s, n, left = np.zeros(16, dtype=int), np.zeros(16, dtype=int), 128
        for rounds_left in (4, 3, 2, 1):
            counts = plan_round(s, n - s, left, rounds_left, utility, alpha, beta, max_rollouts=LARGEST)
            s = s + [outcomes[batch, i, n[i] : n[i] + counts[i]].sum() for i in range(16)]
            n, left = n + counts, left - int(counts.sum())
            if left == 0:  # a round before the last may take the rest
                break
        values[batch] = as_utility(utility)(s, n - s).sum()
    tables.EXACT_PRIORS = before
    return values


INTRODUCTION = """# How good the allocators are

Printed by `python scripts/allocation_quality.py --batches {batches}` on {date};
{machine}.
Nothing here needs a model: prompts are coins with unknown bias. More utility is not yet more learning.

## Rounds

{prompts} prompts, {budget} rollouts, uniform prior, at most {largest} rollouts a prompt and no minimum,
{batches} batches. `uniform` (equal groups) is exact and serves as control variate; `sequential` is the index policy,
one rollout at a time; `bound` is above every policy. The other columns: percent of the gain of `sequential` over
`uniform` that a plan of so many rounds keeps, with its standard error.
"""
SEQUENTIAL = """
One round spends everything before a reward is seen, so under one common prior `mixed`, `variance`, `std` and
`balanced` can do no better than equal groups. `mass` and `std_mass` do not saturate: their one-shot plan piles the
budget on few prompts drawn blindly, and a second round adds most of what there is to gain.

## One rollout at a time

Loss of the index policy with its endgame against the exact joint optimum, evaluated exactly, prior (1, 1).
Prompts / rollouts:
"""
PRIORS = """
## A prior for each prompt

16 prompts with priors log-uniform between 0.2 and 8, 128 rollouts, 4 rounds, 2,000 batches on the same outcomes:
tables solved for every prior against the mesh of ratio 2 that is used from 2 distinct priors on.
"""


MAXIMUM = """
## A maximum of rollouts per prompt

The Lagrangian bound on every policy, 32 prompts, 256 rollouts, uniform prior, by the maximum. Where two columns agree,
no policy gains by going beyond the smaller one. `plan_round` without a maximum of its own searches groups of up to 64.
"""


def maximum_table() -> Iterator[str]:
    maxima = (16, 32, 64, 128, 256)
    yield "| utility | " + " | ".join(str(m) for m in maxima) + " | 64 loses at most |"
    yield "|---|" + "---:|" * (len(maxima) + 1)
    for utility in UTILITY_NAMES:
        bounds = [lagrangian_bound(PROMPTS, BUDGET, utility, max_rollouts=m) for m in maxima]
        loss = max(1.0 - bounds[maxima.index(64)] / bounds[-1], 0.0)
        yield f"| `{utility}` | " + " | ".join(f"{bound:.3f}" for bound in bounds) + f" | {100 * loss:.2f} % |"


def report(batches: int) -> Iterator[str]:
    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"numba {numba.__version__}, numpy {np.__version__}"
    )
    yield INTRODUCTION.format(
        batches=batches, date=datetime.date.today(), machine=machine, prompts=PROMPTS, budget=BUDGET, largest=LARGEST
    )
    yield from rounds_table(batches)
    yield SEQUENTIAL
    yield from sequential_table()
    yield PRIORS
    yield from priors_table(2000)
    yield MAXIMUM
    yield from maximum_table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20_000, help="simulated batches for the rounds table")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "allocation_quality.md")
    args = parser.parse_args()
    lines = []
    for line in report(args.batches):
        print(line, flush=True)
        lines.append(line)
    args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
