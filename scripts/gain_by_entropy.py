"""Relative gain of AdaRoll-GRPO's allocation against the entropy of the difficulty:

    python scripts/gain_by_entropy.py
    python scripts/gain_by_entropy.py --runs outputs/grpo outputs/adaroll --runs outputs/grpo-2 outputs/adaroll-2

Families of Beta distributions from concentrated to spread, the measured pass rates that come with the package, and
finished runs: pairs of your own, or those stored in docs/results. Writes gain_by_entropy.md and .png, without --runs
to docs/results. Half a minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from adaroll_trl.markdown import markdown_table
from adaroll_trl.plots import require_matplotlib, save_figure
from adaroll_trl.report.gain import gain_of_runs
from adaroll_trl.simulation import PassCounts, Setting, beta, parse_difficulty
from adaroll_trl.simulation.entropy import GainPoint, measured_gain, simulated_gain
from adaroll_trl.simulation.measured import Measured, mean_of
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

The distribution fitted to each histogram (`PassCounts.difficulty`, "beta"; ranges are taken as they are); the
simulation draws prompts from it.

{measured}

## Finished runs

{runs}
"""
OWN = """{what} in the second run of a pair against the first.
The runs train different policies, so this holds what training did too. The entropy is that of the first run's pass
rates, all its completions together.

{table}
"""
STORED = """SmolLM2-135M-Instruct on arithmetic ([smollm2_arithmetic.md](smollm2_arithmetic.md)): 60 steps of 8 prompts
x 6 rollouts, the share of groups with both outcomes in AdaRoll-GRPO's run against GRPO's. The two arms train
different policies, so this holds what training did too; errors take groups as independent.

{smollm2}

The learning benchmark ([learning.md](learning.md)): what was learned, final held-out pass@1 against GRPO's with the
same seed, and its standard error over seeds; the entropy of held-out pass rates before training (16 samples of 480
prompts). H, U and HH see new prompts in each step, HR, UR and HHR the same 240 over and over. All relative to GRPO's
accuracy, which is small in HH and HHR. `mixed-prompt` is the allocation of the simulations above with prompts of
equal weight, `carry-progress-prompt-min2` the library's default, which needs prompts that come back.

{reading}

{learning}
"""
LEARNING_ARMS = {
    "mixed-prompt": ("H", "U", "HH", "HR", "UR", "HHR"),
    "carry-progress-prompt-min2": ("HR", "UR", "HHR"),
}


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


def stored_smollm2() -> list[GainPoint]:
    """The runs of benchmarks/smollm2, stored as each step's groups of (prompt, rollouts, successes)."""
    points = []
    for seed in (0, 1):
        counts, signals = [], []
        for arm in ("grpo", "adaroll"):
            run = json.loads((FOLDER / "smollm2_arithmetic" / f"{arm}-seed{seed}.json").read_text(encoding="utf-8"))
            groups = [group for step in run["steps"] for group in step["groups"]]
            rollouts, right = np.array([group[1:] for group in groups]).T
            which = np.unique([str(group[0]) for group in groups], return_inverse=True)[1]
            counts.append(PassCounts(*(np.bincount(which, x).astype(np.int64) for x in (right, rollouts))))
            signals.append(mean_of(((right > 0) & (right < rollouts)).astype(np.float64)))
        points.append(measured_gain(f"seed {seed}", counts[0], *signals))
    return points


def stored_learning() -> dict[str, list[GainPoint]]:
    """The arms of the learning benchmark against GRPO, over the seeds that both have."""
    found = {}
    for arm, regimes in LEARNING_ARMS.items():
        found[arm] = []
        for regime in regimes:
            plain, other = (right_by_seed(f"{regime}-{name}") for name in ("grpo", arm))
            seeds = sorted(plain.keys() & other.keys())
            starts = np.concatenate([plain[seed][0] for seed in seeds])
            base, ours = (np.array([run[seed][1].mean() for seed in seeds]) for run in (plain, other))
            ratio = ours.mean() / base.mean()  # paired by seed; its error by the delta method
            error = mean_of((ours - ratio * base) / base.mean()).error
            label = f"{regime}, `{arm}`, {len(seeds)} seeds"
            counts = PassCounts(starts, np.full(starts.size, 16))
            found[arm].append(measured_gain(label, counts, Measured(1.0), Measured(float(ratio), error)))
    return found


def right_by_seed(cell: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """How many of 16 samples of each held-out prompt were right, before training and after, by seed."""
    found = {}
    for path in sorted((FOLDER / "learning" / cell).glob("seed*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        before, *_, after = (np.array([int(digit, 36) for digit in digits]) for digits in run["right"].values())
        found[run["seed"]] = (before, after)
    return found


def finished(options: argparse.Namespace) -> tuple[str, Mapping[str, Sequence[GainPoint]]]:
    """What the page says of finished runs, and their points by name of the series."""
    if options.runs:
        pairs = {f"{other} / {grpo}": (grpo, other) for grpo, other in options.runs}
        own = [gain_of_runs(*pair, metric=options.metric, label=label) for label, pair in pairs.items()]
        what = f"`{options.metric}`" if options.metric else "The share of groups with both outcomes"
        name = options.metric or "groups with signal"
        return OWN.format(what=what, table=table(own, "runs").rstrip()), {f"finished runs, {name}": own}
    smollm2, learning = stored_smollm2(), stored_learning()
    every = [point for points in learning.values() for point in points]
    ends = {arm: [f(points, key=lambda point: point.entropy) for f in (min, max)] for arm, points in learning.items()}
    sentences = [
        f"- `{arm}`: {low.gain.text(100, 1, '+')} % at the smallest entropy ({low.entropy:.2f}), "
        f"{high.gain.text(100, 1, '+')} % at the largest ({high.entropy:.2f})."
        for arm, (low, high) in ends.items()
    ]
    text = STORED.format(smollm2=table(smollm2, "runs"), learning=table(every, "runs"), reading="\n".join(sentences))
    series = {f"learning benchmark, {arm}: final pass@1": points for arm, points in learning.items()}
    return text, {"finished runs of SmolLM2: groups with signal": smollm2, **series}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs",
        type=Path,
        nargs=2,
        action="append",
        metavar=("GRPO", "ADAROLL"),
        help="output_dir of two finished runs with completions, of equal groups and of another allocation; repeatable",
    )
    parser.add_argument("--metric", help="of --runs: a logged number to compare, such as eval_reward")
    parser.add_argument("--batches", type=int, default=4000, help="simulated batches of a point (default: 4000)")
    parser.add_argument("--output-dir", type=Path, help="default: docs/results, with --runs outputs/gain_by_entropy")
    options = parser.parse_args()
    if options.metric and not options.runs:
        parser.error(f"--metric {options.metric} has no effect without --runs.")
    folder = options.output_dir or (ROOT / "outputs" / "gain_by_entropy" if options.runs else FOLDER)
    try:
        said_of_runs, of_runs = finished(options)
    except ValueError as error:
        parser.error(str(error))
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
    text = TEXT.format(
        arguments="".join(f" {shlex.quote(word)}" for word in sys.argv[1:]),
        machine=f"{os.cpu_count()} CPU cores, no GPU",
        date=datetime.date.today().isoformat(),
        batches=options.batches,
        reading=reading(families),
        families=table([point for points in families.values() for point in points], "difficulty"),
        measured=table(measured, "pass rates"),
        runs=said_of_runs.rstrip(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gain_by_entropy.md").write_text(text, encoding="utf-8")
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    simulated, found = figure.subplots(1, 2)
    draw_gain(simulated, {f"Beta, mean {mean:g}": points for mean, points in families.items()})
    draw_gain(simulated, {"measured pass rates": measured}, line=False, first_colour=len(families))
    draw_gain(found, of_runs, line=False)
    for axes, title in ((simulated, "simulated: prompts with signal"), (found, "finished runs")):
        axes.set_title(title, loc="left", fontsize=10)
        axes.axvline(np.log(10), color="#BBBBBB", linewidth=0.8, linestyle=":")
    found.axhline(0, color="#BBBBBB", linewidth=0.8)
    save_figure(figure, folder / "gain_by_entropy.png")
    print(text)


if __name__ == "__main__":
    main()
