"""How long a stream's decisions take: one `next_prompt` and one `record`, in processor time. One command:

    python benchmarks/streaming.py

Everything is compiled beforehand. For `adaroll` the plain rule asks `plan_round` for one round of the rollouts that
are left, for each rollout anew. Writes benchmarks/results/streaming.json and prints a table.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from joint import describe_machine

from adaroll_trl.allocators import AllocationState, make_allocator
from adaroll_trl.markdown import markdown_table
from adaroll_trl.solver import plan_round

RESULTS = Path(__file__).parent / "results" / "streaming.json"
ROLLOUTS, PLAIN = 8, 50  # for a prompt; decisions of the plain rule that are timed
TARGETS = {256: 50}  # prompts: microseconds a decision
CASES = [
    *(("adaroll", utility, 256, 256, "one") for utility in ("mixed", "std", "mass", "progress")),
    ("adaroll", "mixed", 256, 128, "one"),
    ("adaroll", "mixed", 256, 256, "256 different"),
    ("adaroll", "mixed", 1024, 512, "one"),
    *((name, "", prompts, prompts // 2, "one") for name in ("reinforce_ada", "thompson") for prompts in (256, 1024)),
]


def measure(name: str, utility: str, prompts: int, in_flight: int, priors: str) -> dict[str, object]:
    rng = np.random.default_rng(0)
    alpha, beta = (np.ones(prompts),) * 2 if priors == "one" else np.round(1 + 8 * rng.random((2, prompts)), 2)
    rates, budget, limits = rng.beta(alpha, beta), prompts * ROLLOUTS, (2, 4 * ROLLOUTS)
    state = AllocationState(
        np.zeros(prompts), np.zeros(prompts), alpha, beta, min_rollouts=limits[0], max_rollouts=limits[1]
    )
    stream = make_allocator(name, utility=utility or "mixed").stream(state, budget, in_flight)
    open_: list[int] = []
    seconds, worst = 0.0, 0.0
    for _ in range(budget):
        before = time.process_time()
        if len(open_) == in_flight:
            prompt = open_.pop(int(rng.integers(in_flight)))
            success = bool(rng.random() < rates[prompt])
            before = time.process_time()
            stream.record(prompt, success)
        open_.append(stream.next_prompt())
        took = time.process_time() - before
        seconds, worst = seconds + took, max(worst, took)
    rule = f"`{name}`" + f" {utility}" * (utility != "")
    return {
        "case": f"{rule}, {prompts} prompts, {priors} prior{'s' * (priors != 'one')}, {in_flight} in flight",
        "microseconds": 1e6 * seconds / budget,
        "target": TARGETS.get(prompts),
        "worst_milliseconds": 1e3 * worst,
        "ratio": _plain(budget, utility, alpha, beta, limits) * budget / seconds if name == "adaroll" else None,
    }


def _plain(budget: int, utility: str, alpha: np.ndarray, beta: np.ndarray, limits: tuple[int, int]) -> float:
    """Seconds of a plan of all that is left."""
    nothing = np.zeros(alpha.size)
    plan_round(nothing, nothing, budget, 1, utility, alpha, beta, *limits)
    before = time.process_time()
    for _ in range(PLAIN):
        plan_round(nothing, nothing, budget, 1, utility, alpha, beta, *limits)
    return (time.process_time() - before) / PLAIN


def main() -> None:
    measure("adaroll", "mixed", 4, 2, "one")
    cases = [measure(*case) for case in CASES]
    RESULTS.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=2) + "\n")
    rows = [
        [
            str(c["case"]),
            f"{c['microseconds']:.1f}",
            str(c["target"] or ""),
            f"{c['worst_milliseconds']:.2f}",
            "" if c["ratio"] is None else f"{c['ratio']:.0f}",
        ]
        for c in cases
    ]
    print("\n".join(markdown_table(["", "µs a decision", "target, µs", "the longest, ms", "plain / this"], rows)))


if __name__ == "__main__":
    main()
