"""What a stream gains and how many engine steps it takes, against rounds, without a model. One command, ten minutes:

    python scripts/streaming_gain.py

Writes docs/results/streaming_gain.md, .png and .json, the page's numbers in full: 32 prompts, 256 rollouts, prior
Beta(1, 1), minimum 2, maximum 32; lengths alike, with tails, by difficulty and by success; all utilities; the weight
of long completions.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from adaroll_trl.files import write_json
from adaroll_trl.markdown import markdown_table
from adaroll_trl.plots import COLOURS, require_matplotlib
from adaroll_trl.simulation.streaming import (
    LENGTHS,
    DrawnBatches,
    StreamResult,
    length_tilt,
    play_in_rounds,
    stream_batches,
)
from adaroll_trl.utilities import Utility, make_utility

ROOT = Path(__file__).resolve().parents[1]
PROMPTS, BUDGET, MOST, LEAST = 32, 256, 32, 2
IN_FLIGHT, ROUNDS = (4, 8, 16, 32, 64, 128), (2, 4, 8)
UTILITIES = ("mixed", "std", "variance", "mass", "std_mass", "balanced")
UTILITY_STREAMS = (16, 32, 64)  # in flight
ROUNDS_BATCHES = 1000  # the planner of rounds is called from Python here


@dataclass
class Row:
    """One way to spend the budget: share of the sequential gain in %, and engine steps; each with its error."""

    name: str
    share: float
    share_error: float
    steps: float
    steps_error: float


@dataclass
class Tilt:
    """How much more a long completion weighs than a short one, in % with its error: among failures and successes."""

    lengths: str
    name: str
    failures: list[float]  # the tilt and its error
    successes: list[float]


@dataclass
class Report:
    """All numbers of the page; `utilities` has share and error, %, for each of `UTILITY_STREAMS`."""

    batches: int
    batches_of_rounds: int
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    lengths: dict[str, list[Row]] = field(default_factory=dict)
    utilities: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    tilts: list[Tilt] = field(default_factory=list)


def with_error(value: float, error: float) -> str:
    """Both to two digits of the error, one decimal where there is none.

    >>> with_error(97.9312, 0.2361), with_error(16955.3, 29.4), with_error(100.0, 0.0)
    ('97.93 ± 0.24', '16955 ± 29', '100.0 ± 0.0')
    """
    digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 1
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def share_of(result: StreamResult, best: StreamResult, equal: StreamResult, utility: Utility) -> tuple[float, float]:
    """The gain over equal groups as a share of the sequential policy's, %, and its standard error (delta method)."""
    count = len(result.steps)
    base = equal.utilities(utility)[:count]
    gain, most = result.utilities(utility) - base, best.utilities(utility)[:count] - base
    share = gain.mean() / most.mean()
    error = (gain - share * most).std(ddof=1) / np.sqrt(count) / most.mean()
    return 100 * float(share), 100 * float(error)


def equal_groups(batches: DrawnBatches) -> StreamResult:
    each = BUDGET // PROMPTS
    counts = np.full(batches.rates.shape, each)
    return StreamResult(
        batches.outcomes[:, :, :each].sum(axis=2), counts, batches.lengths[:, :, :each].max(axis=(1, 2))
    )


def play_all(batches: DrawnBatches, utility: Utility) -> dict[str, StreamResult]:
    few = DrawnBatches(*(part[:ROUNDS_BATCHES] for part in (batches.rates, batches.outcomes, batches.lengths)))
    played = {"equal groups, 1 round": equal_groups(batches)}
    played |= {f"{rounds} rounds": play_in_rounds(few, utility, BUDGET, rounds, LEAST) for rounds in ROUNDS}
    played |= {f"stream, C = {c}": stream_batches(batches, utility, BUDGET, c, LEAST) for c in IN_FLIGHT}
    played["stream in order of start, C = 32"] = stream_batches(batches, utility, BUDGET, 32, LEAST, in_order=True)
    return played | {"one by one": stream_batches(batches, utility, BUDGET, 1, LEAST)}


def rows_of(played: dict[str, StreamResult], utility: Utility) -> Iterator[Row]:
    best, equal = played["one by one"], played["equal groups, 1 round"]
    for name, result in played.items():
        steps, count = result.steps, len(result.steps)
        share = share_of(result, best, equal, utility) if result is not best else (100.0, 0.0)
        yield Row(name, *share, float(steps.mean()), float(steps.std(ddof=1) / np.sqrt(count)))


def draw(path: Path, tables: dict[str, list[Row]]) -> None:
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, ("even", "tails"), strict=True):
        for colour, kind, marker in ((COLOURS[0], "stream, C", "o"), (COLOURS[1], "round", "s")):
            rows = [row for row in tables[name] if kind in row.name]
            label = "stream, C in flight" if marker == "o" else "rounds"
            axis.plot([r.steps for r in rows], [r.share for r in rows], marker + "-", color=colour, label=label)
            for row in rows:
                text = row.name.rpartition(" ")[2] if marker == "o" else row.name.replace("equal groups, ", "")
                axis.annotate(text, (row.steps, row.share), (4, -10), textcoords="offset points", fontsize=7)
        axis.set(xscale="log", xlabel="engine steps of a batch", title=f"lengths: {name}")
        axis.minorticks_off()
        ticks = [125 * 2**k for k in range(7) if axis.get_xlim()[0] < 125 * 2**k < axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes[0].set_ylabel("share of the sequential gain, %")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def measure(count: int) -> Report:
    report = Report(count, min(count, ROUNDS_BATCHES))
    utility = make_utility("mixed")
    for name, lengths in LENGTHS.items():
        batches = DrawnBatches.draw(lengths, PROMPTS, MOST, count)
        played = play_all(batches, utility)
        report.lengths[name] = list(rows_of(played, utility))
        for label in ("stream, C = 16", "stream, C = 32", "stream in order of start, C = 32"):
            failures, successes = (100 * np.transpose(length_tilt(batches, played[label]))).tolist()
            report.tilts.append(Tilt(name, label, failures, successes))
    batches = DrawnBatches.draw(LENGTHS["even"], PROMPTS, MOST, count)
    equal = equal_groups(batches)
    for utility in map(make_utility, UTILITIES):
        best = stream_batches(batches, utility, BUDGET, 1, LEAST)
        report.utilities[utility.name] = [
            share_of(stream_batches(batches, utility, BUDGET, in_flight, LEAST), best, equal, utility)
            for in_flight in UTILITY_STREAMS
        ]
    return report


def page(report: Report) -> Iterator[str]:
    yield f"""# What a stream gains, and what it costs

`python scripts/streaming_gain.py`, {report.date}, 2 CPU cores, 24 GiB, no GPU. {PROMPTS} prompts,
{BUDGET} rollouts, pass rates from Beta(1, 1), minimum {LEAST}, maximum {MOST}, {report.batches:,} batches
({report.batches_of_rounds:,} for rounds); all on the same outcomes and lengths. *Share*: the gain over equal
groups, as a share of that of one rollout at a time, % ± standard error. *Steps*: of an engine that has room for all
requests, one token each; tokens are the same everywhere. A stream of C is `stream_rollouts=True, in_flight=C`.
With all 256 in flight it is one round. The utility is `mixed`. What the real vLLM takes:
[streaming_vllm.md](streaming_vllm.md). All numbers in full: [streaming_gain.json](streaming_gain.json).

8 rounds keep less here than in [allocation_quality.md](../allocation_quality.md), which has no minimum: the first of 8
rounds would give each prompt one rollout, and the minimum makes it two. Rounds on 20,000 batches:
[streaming.md](../streaming.md#how-to-choose-in_flight).

![Share of the gain against engine steps](streaming_gain.png)
"""
    about = {
        "even": "Lengths 4 to 128, all alike",
        "tails": "Lengths 4 to 128, one in ten 129 to 512",
        "difficulty": "Lengths by difficulty: around 128 - 100 p, ± 24",
        "success": "Lengths by success: right 4 to 88, wrong 44 to 128",
    }
    for name, rows in report.lengths.items():
        yield f"## {about[name]}\n"
        cells = [[r.name, with_error(r.share, r.share_error), with_error(r.steps, r.steps_error)] for r in rows]
        yield from markdown_table(["", "share, %", "steps"], cells)
        yield ""
    yield """## Other utilities

Share of the gain in %, lengths 4 to 128. For `progress` the gain is too small for a share to mean anything.
"""
    shares = [[f"`{name}`", *(with_error(*share) for share in found)] for name, found in report.utilities.items()]
    yield from markdown_table(["utility", *(f"C = {in_flight}" for in_flight in UTILITY_STREAMS)], shares)
    yield """
## Do long completions weigh more?

While a long completion runs, decisions are made without its outcome. How much more the absolute advantage of a
long completion is than that of a short one, of prompts of like pass rate and with the same outcome, in % ±
standard error; 0 for equal groups. (The advantages of a group's right and wrong answers always balance, so
lengths that go with success tilt nothing between them.)
"""
    rows = [
        [tilt.lengths, tilt.name, *("{:+.2f} ± {:.2f}".format(*found) for found in (tilt.failures, tilt.successes))]
        for tilt in report.tilts
    ]
    yield from markdown_table(["lengths", "stream", "wrong answers", "right answers"], rows, texts=2)
    yield """
In order of start (`stream_order="start"`) no decision depends on a length, so there is no tilt by construction:
what its rows show is chance.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder of the page")
    options = parser.parse_args()
    report = measure(options.batches)
    text = "\n".join(page(report)).rstrip() + "\n"
    options.output.mkdir(parents=True, exist_ok=True)
    write_json(options.output / "streaming_gain.json", asdict(report))
    draw(options.output / "streaming_gain.png", report.lengths)
    (options.output / "streaming_gain.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
