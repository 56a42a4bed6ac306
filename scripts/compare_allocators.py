"""All allocators at equal budget, against the exact optimum and the bound. One command, ten minutes of processor time:

    python scripts/compare_allocators.py

prints the tables and writes them to docs/results/allocators.md. No model is needed: prompts are coins.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from adaroll_trl.allocators import ALLOCATOR_NAMES
from adaroll_trl.markdown import markdown_table
from adaroll_trl.simulation import Row, Setting, compare, parse_difficulty
from adaroll_trl.simulation.compare import BOUND, ONE_PRIOR, SEQUENTIAL
from adaroll_trl.solver import solve_joint

UTILITIES = ("mixed", "variance", "std", "mass", "progress")
NAMED = ("smollm2-arithmetic", "demo")
ANY = "beta(1,1)"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(heads, rows)
    yield ""


def percent(value: float, error: float = 0.0) -> str:
    text = f"{100 * value:+.1f}"
    return f"{text} ± {100 * error:.1f}" if error > 0 else text


def compared(setting: Setting, batches: int, allocators: Sequence[str] = ALLOCATOR_NAMES) -> list[Row]:
    playing = [name for name in allocators if not (setting.beliefs and name in ONE_PRIOR)]
    return compare(setting, playing, num_batches=batches)


def side_by_side(settings: Sequence[Setting], heads: Sequence[str], batches: int) -> Iterator[str]:
    """Relative gain over equal groups, a column a setting."""
    columns = []
    for setting in settings:
        rows = compared(setting, batches)
        gains = {row.allocator: percent(row.relative_gain.value, row.relative_gain.error) for row in rows}
        columns.append(gains)
    names = [*ALLOCATOR_NAMES[1:], SEQUENTIAL, BOUND]
    yield from table(["allocator", *heads], [[f"`{n}`", *(column.get(n, "") for column in columns)] for n in names])


def against_the_optimum(batches: int) -> Iterator[str]:
    """4 prompts x 8, where the optimum is known exactly: what each keeps of its gain over equal groups."""
    columns = []
    known = [
        utility for utility in UTILITIES if utility != "progress"
    ]  # whose optimum gains nothing over equal groups
    for utility in known:
        setting = Setting(parse_difficulty(ANY), num_prompts=4, utility=utility)
        rows = compared(setting, 10 * batches)  # small batches vary more
        uniform = rows[0].utility.value
        best = solve_joint(4, 32, utility, min_rollouts=2, max_rollouts=32).value / 4 - uniform
        shares = {row.allocator: percent(row.gain.value / best, row.gain.error / best) for row in rows}
        columns.append(shares | {"exact optimum": f"{100 * best / uniform:+.1f} % over equal groups"})
    names = [*ALLOCATOR_NAMES[1:], SEQUENTIAL, BOUND, "exact optimum"]
    yield from table(["allocator", *known], [[f"`{n}`", *(column[n] for column in columns)] for n in names])


def page(batches: int) -> Iterator[str]:
    yield "# All allocators at equal budget\n"
    yield (
        f"Printed by `python scripts/compare_allocators.py --batches {batches}` on {datetime.date.today()}; "
        f"{os.cpu_count()} CPU\n"
        "cores, no GPU. Coins in place of a model, the same outcomes for all allocators, 4 rounds where an "
        "allocator has a choice,\n"
        "2 to 32 rollouts a prompt; ± one standard error. Utilities are this project's "
        "([options.md](../options.md)); an allocator\n"
        "that does not maximise the one in the column is measured by it all the same. More utility is not more "
        "learning\n"
        "([learning.md](learning.md)).\n"
    )
    yield "## Against the exact optimum\n"
    yield (
        "4 prompts x 8 rollouts, Beta(1, 1): share of the optimum's gain over equal groups, in percent. The optimum "
        "decides one\n"
        "rollout at a time (value iteration over all states).\n"
    )
    yield from against_the_optimum(batches)
    any_rate = parse_difficulty(ANY)
    yield "## By utility\n"
    yield "32 prompts x 8, Beta(1, 1), nothing known before the first rollout: gain over equal groups, in percent.\n"
    yield from side_by_side([Setting(any_rate, utility=utility) for utility in UTILITIES], UTILITIES, batches)
    yield "## With beliefs\n"
    yield "The same, with the outcomes of 8 earlier rollouts of each prompt at its present pass rate.\n"
    yield from side_by_side(
        [Setting(any_rate, utility=utility, carried=8) for utility in UTILITIES], UTILITIES, batches
    )
    yield "## At measured pass rates\n"
    yield (
        "Prompts with signal (`mixed`), gain over equal groups in percent, at the pass rates of "
        "SmolLM2-135M-Instruct on arithmetic and of\n"
        "the demo's model; believed Beta(1, 1), which is wrong for both.\n"
    )
    settings = [Setting(parse_difficulty(name), carried=carried) for name in NAMED for carried in (0, 8)]
    heads = [f"{name}{', 8 known' if carried else ''}" for name in NAMED for carried in (0, 8)]
    yield from side_by_side(settings, heads, batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent.parent / "docs/results/allocators.md")
    options = parser.parse_args()
    lines = []
    for line in page(options.batches):
        print(line, flush=True)
        lines.append(line)
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
