"""Times the joint solver, beside QuantEcon and a plain numpy solver of the same problem. One command, no arguments:

    python benchmarks/joint.py

Every case runs in a process of its own: compilation on a tiny problem first, then the best of a few repetitions, then
that process's peak memory. The sizes are prompts / budget. Writes benchmarks/results/joint.json and prints a table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "joint.json"
# solver, prompts, budget, utility, reductions, repetitions, target
CASES: list[tuple[str, int, int, str, str, int, str]] = [
    ("adaroll_trl", 4, 32, "mixed", "none", 5, "0.5 s"),
    ("adaroll_trl", 8, 32, "mixed", "none", 2, "20 s, 1 GB"),
    ("adaroll_trl", 8, 32, "mixed", "auto", 5, "1 s"),
    ("adaroll_trl", 8, 32, "variance", "auto", 3, ""),
    ("adaroll_trl", 4, 64, "mixed", "none", 2, "30 s"),
    ("adaroll_trl", 4, 64, "mass", "auto", 2, ""),
    ("adaroll_trl", 8, 64, "mixed", "auto", 1, ""),
    ("numpy", 4, 32, "mixed", "none", 1, ""),
    ("quantecon", 4, 32, "mixed", "none", 1, ""),
]


class PlainLayers:
    """All states of each layer as rows of sorted pair codes, found by growing layer after layer; numpy only.

    A pair (s, f) of size m has the code m (m + 1) / 2 + s; a row of codes, packed into an int64, is a state's key.
    `children(t, j)` are the numbers, in layer t + 1, of the states after a failure and a success of prompt j of a row.
    """

    def __init__(self, num_prompts: int, budget: int) -> None:
        self.num_prompts, self.budget = num_prompts, budget
        codes = (budget + 1) * (budget + 2) // 2
        self.size = np.repeat(np.arange(budget + 1), np.arange(budget + 1) + 1)
        self.success = np.arange(codes) - self.size * (self.size + 1) // 2
        self.bits = int(codes).bit_length()
        if self.bits * num_prompts > 63:
            raise ValueError("the keys do not fit in 64 bits")
        self.layers = [np.zeros((1, num_prompts), dtype=np.int64)]
        self.keys = [np.zeros(1, dtype=np.int64)]
        for _ in range(budget):
            self._grow()

    def _pack(self, rows: np.ndarray) -> np.ndarray:
        return (rows << (np.arange(self.num_prompts) * self.bits)).sum(axis=1)

    def _grown(self, rows: np.ndarray, place: int, won: int) -> np.ndarray:
        after = rows.copy()
        after[:, place] += self.size[rows[:, place]] + 1 + won
        return self._pack(np.sort(after, axis=1))

    def _grow(self) -> None:
        rows = self.layers[-1]
        keys = np.unique(
            np.concatenate([self._grown(rows, j, won) for j in range(self.num_prompts) for won in (0, 1)])
        )
        mask = (1 << self.bits) - 1
        self.layers.append((keys[:, None] >> (np.arange(self.num_prompts) * self.bits)) & mask)
        self.keys.append(keys)

    def children(self, t: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        down, up = (np.searchsorted(self.keys[t + 1], self._grown(self.layers[t], place, won)) for won in (0, 1))
        return down, up

    def chance(self, t: int, place: int) -> np.ndarray:
        code = self.layers[t][:, place]
        return (1.0 + self.success[code]) / (2.0 + self.size[code])

    def terminal(self, utility: str) -> np.ndarray:
        from adaroll_trl.utilities import as_utility

        table = as_utility(utility).table(self.budget)
        rows = self.layers[-1]
        return table[self.success[rows], self.size[rows] - self.success[rows]].sum(axis=1)


def solve_numpy(num_prompts: int, budget: int, utility: str) -> tuple[float, int, float]:
    """Value, states, seconds: the whole of enumerating the layers, finding the successors and going backward."""
    started = time.perf_counter()
    space = PlainLayers(num_prompts, budget)
    values = space.terminal(utility)
    for t in range(budget - 1, -1, -1):
        best = np.full(len(space.layers[t]), -np.inf)
        action = np.zeros(len(best), dtype=np.int8)
        for place in range(num_prompts):
            down, up = space.children(t, place)
            q = space.chance(t, place)
            value = q * values[up] + (1 - q) * values[down]
            better = value > best
            best[better], action[better] = value[better], place
        values = best
    return float(values[0]), sum(map(len, space.layers)), time.perf_counter() - started


def solve_quantecon(num_prompts: int, budget: int, utility: str) -> tuple[float, int, float]:
    """Value, states, seconds: `backward_induction` alone; what it is given is built beforehand, outside the clock."""
    from quantecon.markov import DiscreteDP, backward_induction
    from scipy.sparse import csr_matrix

    space = PlainLayers(num_prompts, budget)
    first = np.concatenate([[0], np.cumsum([len(layer) for layer in space.layers])])
    states = int(first[-1])
    state, action, columns, chances = [], [], [], []
    for t in range(budget):
        rows = space.layers[t]
        for place in range(num_prompts):
            # One action for each distinct pair, as in the solver.
            mine = np.flatnonzero(rows[:, place] != rows[:, place - 1]) if place else np.arange(len(rows))
            down, up = (child[mine] + first[t + 1] for child in space.children(t, place))
            q = space.chance(t, place)[mine]
            state.append(mine + first[t])
            action.append(np.full(len(mine), place))
            columns.append(np.stack([down, up], axis=1).astype(np.int32))
            chances.append(np.stack([1 - q, q], axis=1))
    last = np.arange(first[-2], states)
    columns.append(np.stack([last, last], axis=1).astype(np.int32))
    chances.append(np.full((len(last), 2), 0.5))
    s, a = np.concatenate([*state, last]), np.concatenate([*action, np.zeros_like(last)])
    order = np.lexsort((a, s))
    column, chance = np.concatenate(columns)[order].ravel(), np.concatenate(chances)[order].ravel()
    indptr = np.arange(len(s) + 1) * 2
    transitions = csr_matrix((chance, column, indptr), shape=(len(s), states))
    problem = DiscreteDP(np.zeros(len(s)), transitions, 1.0, s[order], a[order])
    terminal = np.zeros(states)
    terminal[last] = space.terminal(utility)
    started = time.perf_counter()
    values, _ = backward_induction(problem, budget, terminal)
    return float(values[0, 0]), states, time.perf_counter() - started


def solve_ours(num_prompts: int, budget: int, utility: str, reductions: str) -> tuple[float, int, float]:
    """Value, states, seconds of one call of `solve_joint`."""
    from adaroll_trl.solver.joint import solve_joint

    started = time.perf_counter()
    table = solve_joint(num_prompts, budget, utility, reductions=reductions, progress=False)
    return table.value, table.num_states, time.perf_counter() - started


def run_case(solver: str, num_prompts: int, budget: int, utility: str, reductions: str, repetitions: int) -> dict:
    """One case in this process, compiled beforehand: its best time, and the peak memory of the process."""
    solve: Callable[..., tuple[float, int, float]] = {"numpy": solve_numpy, "quantecon": solve_quantecon}.get(
        solver, lambda n, b, u: solve_ours(n, b, u, reductions)
    )
    started = time.perf_counter()
    solve(2, 4, utility)
    warm_up = time.perf_counter() - started
    runs = [solve(num_prompts, budget, utility) for _ in range(repetitions)]
    value, states, _ = runs[0]
    seconds = min(run[2] for run in runs)
    return {
        "solver": solver,
        "size": f"{num_prompts} / {budget}",
        "utility": utility,
        "reductions": reductions,
        "value": value,
        "states": states,
        "seconds": round(seconds, 4),
        "states_per_second": round(states / seconds),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
        "warm_up_seconds": round(warm_up, 2),
    }


def describe_machine() -> dict[str, Any]:
    import numba
    import quantecon

    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": numba.config.NUMBA_NUM_THREADS,
        "processor": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "quantecon": quantecon.__version__,
    }


def print_table(cases: list[dict[str, Any]]) -> None:
    print("\n| solver | prompts / budget | utility | reductions | states | seconds | states/s | peak RSS | target |")
    print("|---|---|---|---|---:|---:|---:|---:|---|")
    for case in cases:
        print(
            f"| {case['solver']} | {case['size']} | {case['utility']} | {case['reductions']} | {case['states']:,} | "
            f"{case['seconds']:.3g} | {case['states_per_second'] / 1e6:.3g} M | {case['peak_rss_gb']:.2f} GB | "
            f"{case['target']} |"
        )


def ratios(cases: list[dict[str, Any]]) -> dict[str, float]:
    """How many times longer the others take than `solve_joint` without reductions on the same size."""
    ours = {case["size"]: case["seconds"] for case in cases if case["reductions"] == "none" and _is_ours(case)}
    others = [case for case in cases if not _is_ours(case)]
    return {f"{case['solver']} {case['size']}": round(case["seconds"] / ours[case["size"]], 1) for case in others}


def _is_ours(case: dict[str, Any]) -> bool:
    return bool(case["solver"] == "adaroll_trl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, help="run one case in this process and print it as JSON (used internally)")
    chosen = parser.parse_args().case
    if chosen is not None:
        print(json.dumps(run_case(*CASES[chosen][:-1])))
        return
    cases = []
    for number, case in enumerate(CASES):
        print(f"{case[0]} {case[1]} / {case[2]} {case[3]}, reductions {case[4]} ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-W", "ignore", __file__, "--case", str(number)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cases.append({**json.loads(output.splitlines()[-1]), "target": case[-1]})
    report = {"machine": describe_machine(), "cases": cases, "times_as_long_as_adaroll_trl": ratios(cases)}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print_table(cases)
    for name, ratio in report["times_as_long_as_adaroll_trl"].items():
        print(f"\n{name}: {ratio} times as long as adaroll_trl without reductions.")
    print("QuantEcon's time leaves out building its transition matrix.")


if __name__ == "__main__":
    main()
