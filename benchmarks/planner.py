"""Times the index table and `plan_round`. One command, no arguments:

    python benchmarks/planner.py

Everything is compiled on a tiny problem first; each figure is the best of several repetitions. Writes
benchmarks/results/planner.json and prints a table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from joint import describe_machine

from adaroll_trl.solver import lagrangian_bound, plan_round
from adaroll_trl.solver.index import IndexTable, solve_index
from adaroll_trl.utilities import as_utility

RESULTS = Path(__file__).parent / "results" / "planner.json"
PROMPTS, BUDGET = 1024, 8192


def best_of(repetitions: int, call: Callable[[], object]) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def index_cases() -> list[dict[str, object]]:
    solve_index(2)  # compiles
    cases: list[dict[str, object]] = []
    for size, target, repetitions in ((64, 0.05, 3), (256, 2.0, 1)):
        for utility in ("mixed", "balanced", "progress", "variance", "std", "mass", "std_mass"):
            u = as_utility(utility)
            seconds = best_of(repetitions, lambda u=u, size=size: IndexTable(size, u, (1.0, 1.0)))
            cases.append({"case": f"index table, {size} rollouts, {utility}", "seconds": seconds, "target": target})
    return cases


def plan_cases() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    cases: list[dict[str, object]] = []
    for label, alpha, beta in (
        ("one prior", np.ones(PROMPTS), np.ones(PROMPTS)),
        ("1,024 priors", rng.uniform(0.2, 8.0, PROMPTS), rng.uniform(0.2, 8.0, PROMPTS)),
    ):
        for utility in ("mixed", "mass"):
            cases += _play(rng, label, alpha, beta, utility)
        for utility in ("mixed", "mass"):

            def one_shot(u: str = utility, a: np.ndarray = alpha, b: np.ndarray = beta) -> np.ndarray:
                return plan_round([0] * PROMPTS, [0] * PROMPTS, BUDGET, 1, u, a, b, 2, 32)

            seconds = best_of(5, one_shot)
            cases.append({"case": f"whole batch in one round, {utility}, {label}", "seconds": seconds, "target": 0.2})
    return cases


def _play(
    rng: np.random.Generator, label: str, alpha: np.ndarray, beta: np.ndarray, utility: str
) -> list[dict[str, object]]:
    """One batch of 1,024 prompts in 4 rounds; every round timed on warm tables."""
    cases: list[dict[str, object]] = []
    probs = rng.beta(alpha, beta)
    s, n, left = np.zeros(PROMPTS, dtype=int), np.zeros(PROMPTS, dtype=int), BUDGET
    for rounds_left in (4, 3, 2, 1):

        def plan(s: np.ndarray = s, n: np.ndarray = n, left: int = left, rounds_left: int = rounds_left) -> np.ndarray:
            return plan_round(s, n - s, left, rounds_left, utility, alpha, beta, 2, 32)

        start = time.perf_counter()
        counts = plan()
        first = time.perf_counter() - start
        case = f"plan_round, {rounds_left} rounds left, {left:,} rollouts, {utility}, {label}"
        target = 0.2 if rounds_left == 1 else 0.02
        cases.append({"case": case, "seconds": best_of(9, plan), "cold": first, "target": target})
        s, n, left = s + rng.binomial(counts, probs), n + counts, left - int(counts.sum())
    return cases


def bound_cases() -> list[dict[str, object]]:
    lagrangian_bound(2, 2)
    priors = np.random.default_rng(0).uniform(0.2, 8.0, (PROMPTS, 2))
    one = best_of(5, lambda: lagrangian_bound(PROMPTS, BUDGET, max_rollouts=32))
    many = best_of(3, lambda: lagrangian_bound(PROMPTS, BUDGET, prior=priors, max_rollouts=32))
    return [
        {"case": "lagrangian_bound, one prior", "seconds": one, "target": None},
        {"case": "lagrangian_bound, 1,024 priors", "seconds": many, "target": None},
    ]


def main() -> None:
    plan_round([0] * 6, [0] * 6, 6, 2, prior_alpha=1.0 + np.arange(6), max_rollouts=2)  # compiles
    cases = index_cases() + plan_cases() + bound_cases()
    RESULTS.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=2) + "\n")
    print("| case | time | target | first call |\n|---|---:|---:|---:|")
    for case in cases:
        target = "" if case["target"] is None else f"{1e3 * case['target']:.0f} ms"
        cold = f"{1e3 * case['cold']:.0f} ms" if "cold" in case else ""
        print(f"| {case['case']} | {1e3 * case['seconds']:.2f} ms | {target} | {cold} |")


if __name__ == "__main__":
    main()
