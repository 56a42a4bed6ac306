"""How many batches of 32 prompts x 8 rollouts the simulator plays in a second. One command, no arguments:

    python benchmarks/simulator.py

Everything is compiled, and its tables built, beforehand. The plain loop asks `plan_round` round by round, as the
trainer does, on fewer batches; in compiled code the same batches must get the same counts. Writes
benchmarks/results/simulator.json and prints a table.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from joint import describe_machine

from adaroll_trl.allocators.adaroll import AdaRollAllocator
from adaroll_trl.simulation import simulate

RESULTS = Path(__file__).parent / "results" / "simulator.json"
PROMPTS, BUDGET, MAXIMUM, MINIMUM = 32, 256, 32, 2
BATCHES, PLAIN_BATCHES, REPETITIONS = 20_000, 400, 3


class Plain(AdaRollAllocator):
    """Not the class that the simulator plays in compiled code."""


def measure(rounds: int, utility: str) -> dict[str, object]:
    options = {"utility": utility, "min_rollouts": MINIMUM, "max_rollouts": MAXIMUM}

    def rate(allocator: str | AdaRollAllocator, batches: int) -> tuple[float, float, np.ndarray]:
        start, cpu = time.perf_counter(), time.process_time()
        result = simulate(allocator, PROMPTS, BUDGET, rounds, num_batches=batches, **options)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        return batches / seconds, batches / cpu_seconds, result.rollouts

    rate("adaroll", 1000)
    plain, plain_cpu, asked = rate(Plain(utility), PLAIN_BATCHES)
    same = np.array_equal(rate("adaroll", PLAIN_BATCHES)[2], asked)
    runs = [rate("adaroll", BATCHES) for _ in range(REPETITIONS)]
    fast, fast_cpu = (max(run[which] for run in runs) for which in (0, 1))
    return {
        "case": f"adaroll, {utility}, {rounds} rounds",
        "per_second": fast,
        "per_cpu_second": fast_cpu,
        "plain_per_second": plain,
        "ratio": fast / plain,
        "ratio_of_cpu_time": fast_cpu / plain_cpu,
        "same_counts": same,
    }


def main() -> None:
    cases = [measure(rounds, utility) for utility in ("mixed", "std") for rounds in (2, 4)]
    RESULTS.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=2) + "\n")
    print("| case | batches/s | per CPU second | plain loop, batches/s | ratio | of CPU time | same counts |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for case in cases:
        print(
            f"| {case['case']} | {case['per_second']:,.0f} | {case['per_cpu_second']:,.0f} | "
            f"{case['plain_per_second']:,.0f} | {case['ratio']:.0f} | {case['ratio_of_cpu_time']:.0f} | "
            f"{'yes' if case['same_counts'] else 'NO'} |"
        )


if __name__ == "__main__":
    main()
