"""`adaroll simulate` and `adaroll plan`: allocators compared, and what to expect of one, without a model."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..utilities import UTILITY_NAMES
from .compare import BOUND, ONE_PRIOR, Row, Setting, compare
from .difficulty_text import FORMS, parse_difficulty
from .pass_counts import FITS
from .planning import EDGES, ExpectedRollouts, plan

_WIDTH = 132


def make_simulate_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll simulate`."""
    parser = argparse.ArgumentParser(
        prog="adaroll simulate",
        allow_abbrev=False,
        description="Plays allocators on the same simulated batches at equal budget, and compares them with equal "
        "groups and with a bound on every policy. Without arguments: all allocators, with beliefs from 8 earlier "
        "outcomes of each prompt and without.",
    )
    parser.add_argument("--allocators", nargs="+", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--all", action="store_true", help="all allocators; the default, said aloud")
    _add_difficulty(parser)
    parser.add_argument("--num-generations", type=int, default=8, help="rollouts per prompt on average (default: 8)")
    parser.add_argument("--budget", type=int, help="rollouts of a batch, instead: a multiple of the prompts")
    parser.add_argument("--rounds", type=int, nargs="+", default=[4], help="generation rounds; several (default: 4)")
    parser.add_argument("--utility", nargs="+", default=["mixed"], help="utilities; several (default: mixed)")
    parser.add_argument(
        "--carried",
        type=int,
        nargs="+",
        default=[0, 8],
        help="outcomes of each prompt known from before the batch; several (default: 0 8)",
    )
    parser.add_argument(
        "--carried-decay", type=float, default=1.0, help="what each of them counts, 0 to 1 (default: 1)"
    )
    _add_play(parser, 1000)
    return parser


def make_plan_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll plan`."""
    parser = argparse.ArgumentParser(
        prog="adaroll plan",
        allow_abbrev=False,
        description="What to expect of adaptive rollouts on prompts of a given difficulty: prompts with signal, "
        "rollouts by pass rate, and how many rollouts show as much as equal groups do.",
    )
    _add_difficulty(parser)
    parser.add_argument(
        "--num-generations", type=int, nargs="+", default=[4, 8, 16], help="rollouts per prompt (default: 4 8 16)"
    )
    parser.add_argument("--rounds", type=int, nargs="+", default=[2, 4], help="generation rounds (default: 2 4)")
    parser.add_argument("--utility", default="mixed", help="what the allocator maximises (default: mixed)")
    _add_play(parser, 4000)
    return parser


def _add_difficulty(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--difficulty", default="beta(1,1)", metavar="TEXT", help=f"of the prompts: {FORMS}")
    parser.add_argument(
        "--fit", default=FITS[0], help=f"from pass counts to pass rates: {', '.join(FITS)} (default: {FITS[0]})"
    )
    parser.add_argument(
        "--prior",
        default="1,1",
        help="a,b of the Beta belief on a prompt, or `match`, the difficulty's mean and variance (default: 1,1)",
    )
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a batch (default: 32)")


def _add_play(parser: argparse.ArgumentParser, batches: int) -> None:
    parser.add_argument("--min-rollouts", type=int, default=2, help="of each prompt, at least (default: 2)")
    parser.add_argument("--max-rollouts", type=int, help="and at most (default: 4 times the average)")
    parser.add_argument("--batches", type=int, default=batches, help=f"simulated batches (default: {batches})")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture (extra `plots`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """`adaroll simulate`; bad input ends with its reason on stderr and exit status 2."""
    return _run(make_simulate_parser(), run_simulate, arguments)


def plan_main(arguments: Sequence[str] | None = None) -> int:
    """`adaroll plan`, the same way."""
    return _run(make_plan_parser(), run_plan, arguments)


def _run(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace, Console], None],
    arguments: Sequence[str] | None,
) -> int:
    try:
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            from ..parsing import unknown_option  # TRL's parser is beside it: seconds

            raise unknown_option(parser, unknown[0])
        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH
        command(options, console)
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _common(options: argparse.Namespace) -> dict[str, Any]:
    difficulty = parse_difficulty(options.difficulty, options.fit)
    utilities = [options.utility] if isinstance(options.utility, str) else options.utility
    for name in utilities:
        if name not in UTILITY_NAMES:
            raise ValueError(f"--utility {name} is not known. Use one of {', '.join(UTILITY_NAMES)}.")
    for name in ("prompts", "batches"):
        if getattr(options, name) < 2 - (name == "prompts"):
            raise ValueError(f"--{name} {getattr(options, name)} must be at least {2 - (name == 'prompts')}.")
    return {
        "difficulty": difficulty,
        "num_prompts": options.prompts,
        "prior": _prior(options.prior),
        "min_rollouts": options.min_rollouts,
        "max_rollouts": options.max_rollouts,
    }


def _prior(text: str) -> tuple[float, float] | None:
    """`a,b`, or None for `match`."""
    if text == "match":
        return None
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--prior {text} must be two positive numbers, as in 1,1, or `match`.") from None
    return a, b


def run_simulate(options: argparse.Namespace, console: Console) -> None:
    """Compare, print, write."""
    from ..allocators import ALLOCATOR_NAMES

    common = _common(options)
    prior = common.pop("prior") or common["difficulty"].nearest_beta()
    generations = options.num_generations
    if options.budget is not None:
        generations, rest = divmod(options.budget, options.prompts)
        if rest:
            raise ValueError(f"--budget {options.budget} must be a multiple of --prompts {options.prompts}.")
    every = options.all or not options.allocators
    names = list(ALLOCATOR_NAMES) if every else options.allocators
    for name in names:
        if name not in ALLOCATOR_NAMES:
            raise ValueError(f"--allocators {name} is not known. Use any of {', '.join(ALLOCATOR_NAMES)}.")
    base = Setting(prior=prior, num_generations=generations, carried_decay=options.carried_decay, **common)
    found: list[tuple[Setting, list[Row]]] = []
    with _progress(console) as say:
        for utility in options.utility:
            for rounds in options.rounds:
                for carried in options.carried:
                    setting = replace(base, utility=utility, rounds=rounds, carried=carried)
                    # Who cannot play with beliefs of their own for each prompt is left out, unless asked for by name
                    able = [name for name in names if not (every and setting.beliefs and name in ONE_PRIOR)]
                    found.append((setting, compare(setting, able, options.batches, options.seed, say)))
    console.print(_setting_text(base, prior, options), highlight=False)
    for setting, rows in found:
        console.print(comparison_table(setting, rows))
    console.print(_NOTE, highlight=False, soft_wrap=True)
    _write(
        options,
        console,
        [
            {"utility": setting.utility, "rounds": setting.rounds, "carried": setting.carried, **row.record()}
            for setting, rows in found
            for row in rows
        ],
        lambda: _comparison_figure(found),
    )


_NOTE = (
    "+-: one standard error, paired against equal groups on the same outcomes. Signal: both outcomes in the group. "
    "`one at a time`: the price index, which sees every outcome before the next rollout. `bound`: no policy gets more."
)


def _setting_text(base: Setting, prior: tuple[float, float], options: argparse.Namespace) -> str:
    least = min(base.min_rollouts, base.num_generations)
    return (
        f"{base.num_prompts} prompts x {base.num_generations} rollouts, {least} "
        f"to {base.maximum} each; difficulty {base.difficulty.label}, mean {base.difficulty.mean:.3f}; believed "
        f"beta({prior[0]:.3g},{prior[1]:.3g}); seed {options.seed}"
    )


def comparison_table(setting: Setting, rows: Sequence[Row]) -> Table:
    """A row for each allocator, in percent."""
    known = f", {setting.carried} earlier outcomes of each prompt known" if setting.carried else ""
    if setting.carried and setting.carried_decay < 1:
        known += f" (each counts {setting.carried_decay:g})"
    table = Table(title=f"{setting.utility}, {setting.rounds} rounds{known}", title_justify="left", title_style="bold")
    table.add_column("allocator", no_wrap=True)
    for heading in (
        "prompts with\nsignal, %",
        "rollouts with\nsignal, %",
        "utility of\na prompt",
        "gain over\nuniform",
        "of sequential\ngain, %",
        "batches",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.allocator,
            row.signal.text(100),
            row.rollouts_with_signal.text(100),
            row.utility.text(1, 4),
            row.gain.text(1, 4, "+"),
            row.sequential_share.text(100, 1),
            f"{row.batches:,}" if row.batches else "exact",
            style="dim" if row.allocator == BOUND else None,
        )
    return table


def run_plan(options: argparse.Namespace, console: Console) -> None:
    """Plan, print, write."""
    common = _common(options)
    with _progress(console) as say:
        expected = plan(
            utility=options.utility,
            num_generations=options.num_generations,
            rounds=options.rounds,
            num_batches=options.batches,
            seed=options.seed,
            on_play=lambda: say("batches"),
            **common,
        )
    known = expected.difficulty
    console.print(
        f"difficulty {known.label}: mean {known.mean:.3f}, standard deviation {known.variance**0.5:.3f}; believed "
        f"beta({expected.prior[0]:.3g},{expected.prior[1]:.3g}); {options.prompts} prompts a batch; "
        f"{options.batches:,} batches, seed {options.seed}",
        highlight=False,
        soft_wrap=True,
    )
    for table in plan_tables(expected):
        console.print(table)
    _write(options, console, expected.records(), lambda: _plan_figure(expected))


def plan_tables(expected: ExpectedRollouts) -> tuple[Table, Table]:
    """Prompts with signal and savings; and rollouts by pass rate."""
    signal = Table(title="Prompts with signal, %", title_justify="left", title_style="bold")
    for heading in ("G", "rounds", "uniform", "adaroll", "gain", "bound", "rollouts with signal"):
        signal.add_column(heading, justify="right", no_wrap=True)
    signal.add_column("as many as uniform with", justify="right", no_wrap=True)
    signal.add_column("saved, %", justify="right", no_wrap=True)
    rollouts = Table(title="Rollouts of a prompt, by its pass rate", title_justify="left", title_style="bold")
    bins = [f"{100 * low:g}-{100 * high:g} %" for low, high in pairwise(EDGES)]
    for heading in ("G", "rounds", *bins, "largest"):
        rollouts.add_column(heading, justify="right", no_wrap=True)
    shares = [f"{100 * mass:.1f} %" for mass in expected.bin_masses]
    rollouts.add_row("", "prompts", *shares, "")
    for row, match in zip(expected.rows, expected.matches, strict=True):
        enough = "-" if match.num_generations is None else f"G = {match.num_generations} ({match.equal_at.text()})"
        signal.add_row(
            f"{row.num_generations}",
            f"{row.rounds}",
            f"{100 * row.uniform:.2f}",
            row.adaptive.text(100),
            row.gain.text(100, 2, "+"),
            f"{100 * row.bound:.2f}",
            row.rollouts_with_signal.text(100),
            enough,
            match.saving.text(100, 1),
        )
        each = [one.text(1, 2) for one in row.rollouts]
        rollouts.add_row(f"{row.num_generations}", f"{row.rounds}", *each, f"{row.largest_group}")
    return signal, rollouts


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that says what is played; nothing in a log file."""
    if not console.is_terminal:
        yield lambda name: None
        return
    with console.status("playing") as status:
        yield lambda name: status.update(f"playing {name}")


def _write(
    options: argparse.Namespace, console: Console, records: Sequence[Mapping[str, Any]], figure: Callable[[], Any]
) -> None:
    if options.csv is not None:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        console.print(f"Numbers: {options.csv}", highlight=False, soft_wrap=True)
    if options.plot is not None:
        from ..plots import save_figure

        save_figure(figure(), options.plot)
        console.print(f"Picture: {options.plot}", highlight=False, soft_wrap=True)


def _comparison_figure(found: Sequence[tuple[Setting, Sequence[Row]]]) -> Any:
    from .pictures import comparison_figure

    return comparison_figure(found)


def _plan_figure(expected: ExpectedRollouts) -> Any:
    from .pictures import plan_figure

    return plan_figure(expected)
