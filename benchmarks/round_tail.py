"""What rounds would cost on 8 to 512 GPUs: a calculation, not a measurement. One command, no arguments:

    python benchmarks/round_tail.py

A round waits for its longest completion. Each GPU holds a vLLM engine with at most `SLOTS` sequences at a time; a step
of the engine, which adds a token to each of k sequences, takes a + b k seconds: a to read the weights, b for a
sequence's key-value cache and arithmetic. Over a round an engine's steps add up to

    a (steps until its last sequence ends) + b (tokens of all its sequences)

and the round lasts as long as the slowest engine. Only the first term grows with the number of rounds. Lengths are
lognormal, cut at `LONGEST`, independent of prompt and round; an engine refills a free slot at once, in the given
order. Rows are dealt evenly. How a batch falls into rounds is the planner's answer for a uniform prior. The tail is
the part of the time in which engines wait for the longest: a times the steps by which the last engine's end exceeds
what the mean completion, or all slots full, would take.
"""

from __future__ import annotations

import heapq
from functools import cache

import numpy as np

from adaroll_trl.solver import plan_round

MEAN, VARIATION, LONGEST = 1000.0, 0.75, 4096  # tokens of a completion: mean, standard deviation / mean, cut
SLOTS = 256  # vLLM's max_num_seqs
READ_WEIGHTS = 16e9 / 3.35e12  # a, in seconds: 8 billion bfloat16 parameters, 3.35 TB/s
# b, in seconds: 128 KiB of cache a token (8B Llama 3), at 250 + 500 tokens on average, and 16 GFLOP at 400 TFLOP/s
PER_SEQUENCE = 750 * 131072 / 3.35e12 + 16e9 / 400e12
ROUNDS = (1, 2, 4, 8)
GENERATIONS = 8


def lengths(rng: np.random.Generator, rows: int) -> np.ndarray:
    sigma2 = np.log1p(VARIATION**2)
    drawn = rng.lognormal(np.log(MEAN) - sigma2 / 2, np.sqrt(sigma2), rows)
    return np.clip(np.ceil(drawn), 1, LONGEST)


def steps_until_done(drawn: np.ndarray) -> float:
    """Steps of one engine until its last sequence ends."""
    slots = drawn[:SLOTS].tolist()
    heapq.heapify(slots)
    for length in drawn[SLOTS:]:
        heapq.heapreplace(slots, slots[0] + length)
    return max(slots)


@cache
def shares(rounds: int, prompts: int = 256) -> tuple[float, ...]:
    """How the planner divides a batch over its rounds, with success rates drawn from its prior."""
    rng = np.random.default_rng(0)
    probability = rng.random(prompts)
    s, n, left, sizes = np.zeros(prompts, dtype=int), np.zeros(prompts, dtype=int), prompts * GENERATIONS, []
    for rounds_left in range(rounds, 0, -1):
        counts = plan_round(s, n - s, left, rounds_left, min_rollouts=2, max_rollouts=4 * GENERATIONS)
        s, n, left = s + rng.binomial(counts, probability), n + counts, left - int(counts.sum())
        sizes.append(int(counts.sum()))
    return tuple(size / (prompts * GENERATIONS) for size in sizes)


def generation_seconds(rng: np.random.Generator, rollouts: int, gpus: int, rounds: int) -> tuple[float, float]:
    """Seconds of all rounds of one batch, and the tail's part of them."""
    edges = np.round(np.cumsum([0.0, *shares(rounds)]) * rollouts / gpus).astype(int) * gpus
    total = tail = 0.0
    for rows in np.diff(edges):
        drawn = lengths(rng, rows).reshape(gpus, -1)
        until = np.array([steps_until_done(engine) for engine in drawn])
        total += float((READ_WEIGHTS * until + PER_SEQUENCE * drawn.sum(axis=1)).max())
        tail += READ_WEIGHTS * float(until.max() - drawn.mean() * max(1.0, rows / gpus / SLOTS))
    return total, tail


def main() -> None:
    rng = np.random.default_rng(0)
    print(
        f"Completions of {MEAN:.0f} tokens on average (standard deviation / mean {VARIATION}, at most {LONGEST}), "
        f"{SLOTS} sequences an engine, a = {1e3 * READ_WEIGHTS:.1f} ms, b = {1e3 * PER_SEQUENCE:.3f} ms.\n"
    )
    for rounds in ROUNDS[1:]:
        print(f"{rounds} rounds: " + " ".join(f"{share:.0%}" for share in shares(rounds)) + " of the rollouts")
    print("\n| GPUs | rollouts | rows a GPU | 1 round | 2 | 4 | 8 | tail of 1 round | of 4 |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for gpus in (8, 64, 512):
        for rollouts in (1024, 8192, 65536):
            rows = rollouts // gpus
            repeats = max(3, 16384 // rollouts)
            found = {}
            for rounds in ROUNDS:
                if rollouts * min(shares(rounds)) >= gpus:  # every GPU has a row in every round
                    found[rounds] = np.mean(
                        [generation_seconds(rng, rollouts, gpus, rounds) for _ in range(repeats)], axis=0
                    )
            one = found[1][0] if 1 in found else float("nan")
            ratios = [f"{found[k][0] / one:.2f}" if k in found else "" for k in ROUNDS[1:]]
            tails = [f"{found[k][1] / found[k][0]:.0%}" if k in found else "" for k in (1, 4)]
            print(f"| {gpus} | {rollouts:,} | {rows:,} | {one:.0f} s | {' | '.join(ratios)} | {' | '.join(tails)} |")


if __name__ == "__main__":
    main()
