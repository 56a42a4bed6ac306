"""How long a stream's decisions take: one `next_prompt` and one `record`, in processor time. One command:

    python benchmarks/streaming.py

Everything is compiled beforehand. The plain rule asks `plan_round` for one round of the rollouts that are left, for
each rollout anew. Writes benchmarks/results/streaming.json and prints a table.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from joint import describe_machine

from adaroll_trl.markdown import markdown_table
from adaroll_trl.solver import StreamPlanner, plan_round

RESULTS = Path(__file__).parent / "results" / "streaming.json"
ROLLOUTS, PLAIN = 8, 50  # for a prompt; decisions of the plain rule that are timed
CASES = [
    *((utility, 256, 256, "one") for utility in ("mixed", "std", "mass", "progress")),
    ("mixed", 256, 128, "one"),
    ("mixed", 256, 256, "256 different"),
    ("mixed", 1024, 512, "one"),
]


def measure(utility: str, prompts: int, in_flight: int, priors: str) -> dict[str, object]:
    rng = np.random.default_rng(0)
    alpha, beta = (np.ones(prompts),) * 2 if priors == "one" else np.round(1 + 8 * rng.random((2, prompts)), 2)
    rates, budget, limits = rng.beta(alpha, beta), prompts * ROLLOUTS, (2, 4 * ROLLOUTS)
    planner = StreamPlanner(np.zeros(prompts), np.zeros(prompts), budget, in_flight, utility, alpha, beta, *limits)
    open_: list[int] = []
    seconds, worst = 0.0, 0.0
    for _ in range(budget):
        before = time.process_time()
        if len(open_) == in_flight:
            prompt = open_.pop(int(rng.integers(in_flight)))
            success = bool(rng.random() < rates[prompt])
            before = time.process_time()
            planner.record(prompt, success)
        open_.append(planner.next_prompt())
        took = time.process_time() - before
        seconds, worst = seconds + took, max(worst, took)
    successes = np.zeros(prompts)
    plan_round(successes, successes, budget, 1, utility, alpha, beta, *limits)
    before = time.process_time()
    for _ in range(PLAIN):
        plan_round(successes, successes, budget, 1, utility, alpha, beta, *limits)
    plain = (time.process_time() - before) / PLAIN
    return {
        "case": f"{utility}, {prompts} prompts, {priors} prior{'s' * (priors != 'one')}, {in_flight} in flight",
        "microseconds": 1e6 * seconds / budget,
        "worst_milliseconds": 1e3 * worst,
        "ratio": plain * budget / seconds,
    }


def main() -> None:
    measure("mixed", 4, 2, "one")
    cases = [measure(*case) for case in CASES]
    RESULTS.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=2) + "\n")
    rows = [
        [str(c["case"]), f"{c['microseconds']:.1f}", f"{c['worst_milliseconds']:.2f}", f"{c['ratio']:.0f}"]
        for c in cases
    ]
    print("\n".join(markdown_table(["", "µs a decision", "the longest, ms", "plain / this"], rows)))


if __name__ == "__main__":
    main()
