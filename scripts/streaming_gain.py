"""What a stream gains and how many engine steps it takes, against rounds, without a model. One command, ten minutes:

    python scripts/streaming_gain.py

Writes docs/results/streaming_gain.md and .png: 32 prompts, 256 rollouts, prior Beta(1, 1), minimum 2, maximum 32;
lengths alike, with tails, by difficulty and by success; all utilities; the weight of long completions.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
ROUNDS_BATCHES = 1000  # the planner of rounds is called from Python here


@dataclass
class Row:
    """One way to spend the budget: share of the sequential gain in %, and engine steps; each with its error."""

    name: str
    share: float
    share_error: float
    steps: float
    steps_error: float


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


def page(count: int) -> tuple[str, dict[str, list[Row]]]:
    utility, tables, tilts = make_utility("mixed"), {}, []
    for name, lengths in LENGTHS.items():
        batches = DrawnBatches.draw(lengths, PROMPTS, MOST, count)
        played = play_all(batches, utility)
        tables[name] = list(rows_of(played, utility))
        for label in ("stream, C = 16", "stream, C = 32", "stream in order of start, C = 32"):
            tilts.append((name, label, *zip(*length_tilt(batches, played[label]), strict=True)))
    return "\n".join(_text(count, tables, tilts, list(_utilities(count)))), tables


def _utilities(count: int) -> Iterator[list[str]]:
    batches = DrawnBatches.draw(LENGTHS["even"], PROMPTS, MOST, count)
    equal = equal_groups(batches)
    for name in UTILITIES:
        utility = make_utility(name)
        best = stream_batches(batches, utility, BUDGET, 1, LEAST)
        cells = [f"`{name}`"]
        for in_flight in (16, 32, 64):
            share = share_of(stream_batches(batches, utility, BUDGET, in_flight, LEAST), best, equal, utility)
            cells.append("{:.1f} ± {:.1f}".format(*share))
        yield cells


def _text(count: int, tables: dict[str, list[Row]], tilts: list[tuple], utilities: list[list[str]]) -> Iterator[str]:
    yield f"""# What a stream gains, and what it costs

`python scripts/streaming_gain.py`, {datetime.date.today()}, 2 CPU cores, 24 GiB, no GPU. {PROMPTS} prompts,
{BUDGET} rollouts, pass rates from Beta(1, 1), minimum {LEAST}, maximum {MOST}, {count:,} batches
({ROUNDS_BATCHES:,} for rounds); all on the same outcomes and lengths. *Share*: the gain over equal groups, as a
share of that of one rollout at a time, % ± standard error. *Steps*: of an engine that has room for all
requests, one token each; tokens are the same everywhere. A stream of C is `stream_rollouts=True, in_flight=C`.
With all 256 in flight it is one round. The utility is `mixed`. What the real vLLM takes:
[streaming_vllm.md](streaming_vllm.md).

![Share of the gain against engine steps](streaming_gain.png)
"""
    about = {
        "even": "Lengths 4 to 128, all alike",
        "tails": "Lengths 4 to 128, one in ten 129 to 512",
        "difficulty": "Lengths by difficulty: around 128 - 100 p, ± 24",
        "success": "Lengths by success: right 4 to 88, wrong 44 to 128",
    }
    for name, rows in tables.items():
        yield f"## {about[name]}\n"
        cells = [
            [r.name, f"{r.share:.1f} ± {r.share_error:.1f}", f"{r.steps:.0f} ± {r.steps_error:.0f}"] for r in rows
        ]
        yield from markdown_table(["", "share, %", "steps"], cells)
        yield ""
    yield "## Other utilities\n\nShare of the gain in %, lengths 4 to 128. `progress` gains too little to be shared.\n"
    yield from markdown_table(["utility", "C = 16", "C = 32", "C = 64"], utilities)
    yield """
## Do long completions weigh more?

While a long completion runs, decisions are made without its outcome. How much more the absolute advantage of a
long completion is than that of a short one, of prompts of like pass rate and with the same outcome, in % ±
standard error; 0 for equal groups. (The advantages of a group's right and wrong answers always balance, so
lengths that go with success tilt nothing between them.)
"""
    rows = [
        [name, label, *(f"{100 * tilt:+.2f} ± {100 * error:.2f}" for tilt, error in both)]
        for name, label, *both in tilts
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
    text, tables = page(options.batches)
    options.output.mkdir(parents=True, exist_ok=True)
    draw(options.output / "streaming_gain.png", tables)
    (options.output / "streaming_gain.md").write_text(text.rstrip() + "\n")
    print(text)


if __name__ == "__main__":
    main()
