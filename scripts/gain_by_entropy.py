"""Relative gain of AdaRoll-GRPO's allocation against the entropy of the difficulty. One command, no arguments:

    python scripts/gain_by_entropy.py

Families of Beta distributions from concentrated to spread, the pass rates measured here, and the runs stored in
docs/results/smollm2_arithmetic. Writes docs/results/gain_by_entropy.md and .png.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adaroll_trl.markdown import markdown_table
from adaroll_trl.plots import require_matplotlib, save_figure
from adaroll_trl.simulation import Setting, beta, parse_difficulty
from adaroll_trl.simulation.entropy import GainPoint, gain_of_runs, simulated_gain
from adaroll_trl.simulation.pass_counts import shipped_histograms
from adaroll_trl.simulation.pictures import draw_gain

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "results"
MEANS = (0.15, 0.35, 0.55)  # centres of bins, so that prompts all alike have an entropy of 0
PRECISIONS = (256.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5)

TEXT = """# Relative gain against the entropy of the difficulty

    python scripts/gain_by_entropy.py{arguments}

{machine}, {date}. The paper's figure 4 shows its relative gain against the entropy of the difficulty distribution;
its exact definitions are not public. Ours: the entropy, in nats, of the histogram of pass rates over 10 equal bins,
and the utility (`mixed`: prompts with signal) of a batch above that of equal groups, as a share of the latter. The
simulations play `adaroll` on {batches:,} batches of 32 prompts x 8 rollouts in 4 rounds, 2 to 32 rollouts a prompt;
it believes Beta(1, 1) of every prompt, right or wrong, as the trainer does by default. Errors are one standard error,
paired on the same outcomes.

![Relative gain over entropy](gain_by_entropy.png)

{reading}

So the entropy alone does not decide. Around a mean of a half the gain grows with it; where most prompts are hard,
prompts that are alike gain most, as every one of them can still show a success; and spread beyond Beta(1, 1),
towards solved and hopeless prompts, lowers gain and entropy together.

## Beta distributions from concentrated to spread

A family has one mean m; a / (a + b) = m, and a + b goes from 256 (all prompts alike) to 0.5 (most of them solved or
hopeless). The means are centres of bins; a mean of 1 - m mirrors that of m.

{families}

## Measured pass rates, simulated allocation

The distribution fitted to each histogram (`PassCounts.difficulty`, "beta"); the simulation draws prompts from it.

{measured}

## Finished runs

SmolLM2-135M-Instruct on arithmetic ([smollm2_arithmetic.md](smollm2_arithmetic.md)): 60 steps of 8 prompts x 6
rollouts, the share of groups with both outcomes in AdaRoll-GRPO's run against GRPO's. The two arms train different
policies, so this holds what training did too; errors take groups as independent.

{runs}
"""


def table(points: Sequence[GainPoint], head: str) -> str:
    rows = [[point.label, f"{point.entropy:.2f}", point.gain.text(100, 1, "+")] for point in points]
    return "\n".join(markdown_table([head, "entropy", "relative gain, %"], rows))


def reading(families: dict[float, list[GainPoint]]) -> str:
    """What the simulated curves say, in their own numbers."""
    sentences = []
    for mean, points in families.items():
        top = max(points, key=lambda point: point.gain.value)
        spread = max(points, key=lambda point: point.entropy)
        sentences.append(
            f"- Mean {mean:g}: from {100 * points[0].gain.value:+.1f} % where prompts are nearly alike (entropy "
            f"{points[0].entropy:.2f}) to {100 * spread.gain.value:+.1f} % at the largest entropy "
            f"({spread.entropy:.2f}); the largest gain is {100 * top.gain.value:+.1f} %, at {top.label}."
        )
    return "\n".join(sentences)


def runs() -> list[GainPoint]:
    folder = FOLDER / "smollm2_arithmetic"
    return [
        gain_of_runs(folder / f"grpo-seed{seed}.json", folder / f"adaroll-seed{seed}.json", label=f"seed {seed}")
        for seed in (0, 1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4000, help="simulated batches of a point (default: 4000)")
    parser.add_argument("--output-dir", type=Path, default=FOLDER, help="default: docs/results")
    options = parser.parse_args()
    families = {
        mean: [
            simulated_gain(Setting(beta(mean * precision, (1 - mean) * precision)), options.batches)
            for precision in PRECISIONS
        ]
        for mean in MEANS
    }
    measured = [
        simulated_gain(Setting(parse_difficulty(name, "beta")), options.batches) for name in shipped_histograms()
    ]
    finished = runs()
    text = TEXT.format(
        arguments="" if options.batches == 4000 else f" --batches {options.batches}",
        machine=f"{os.cpu_count()} CPU cores, no GPU",
        date=datetime.date.today().isoformat(),
        batches=options.batches,
        reading=reading(families),
        families=table([point for points in families.values() for point in points], "difficulty"),
        measured=table(measured, "pass rates"),
        runs=table(finished, "runs"),
    )
    options.output_dir.mkdir(parents=True, exist_ok=True)
    (options.output_dir / "gain_by_entropy.md").write_text(text, encoding="utf-8")
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_gain(axes, {f"Beta, mean {mean:g}": points for mean, points in families.items()})
    alone = {"measured pass rates, simulated": measured, "finished runs, SmolLM2": finished}
    draw_gain(axes, alone, line=False, first_colour=len(families))
    axes.axvline(np.log(10), color="#BBBBBB", linewidth=0.8, linestyle=":")
    save_figure(figure, options.output_dir / "gain_by_entropy.png")
    print(text)


if __name__ == "__main__":
    main()
