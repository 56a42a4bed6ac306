"""`adaroll simulate` and `adaroll plan`: allocators compared, and what to expect of one, without a model."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from ..allocators.base import Allocator
from ..utilities import UTILITY_NAMES
from .compare import BOUND, ONE_PRIOR, Row, Setting, compare
from .difficulty_text import FORMS, parse_difficulty
from .pass_counts import FITS
from .planning import EDGES, ExpectedRollouts, plan

_WIDTH = 140
_MIN_ROLLOUTS = 2  # as in the trainer
_FEWEST_BATCHES = 2  # for a standard error


class _Parser(argparse.ArgumentParser):
    """Bad input is a `ValueError` of one sentence: `--seed -1 must be ...`."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(re.sub(r"^argument (\S+): ", r"\1 ", message))


def _whole(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least {least}.")
        return value

    return parse


def _number(low: float, high: float) -> Callable[[str], float]:
    """The type of an option that is a finite number in [low, high]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and low <= value <= high):
            between = "" if low == -math.inf else f" from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"{text} must be a finite number{between}.")
        return value

    return parse


def _prior(text: str) -> tuple[float, float] | None:
    """`a,b`, or None for `match`."""
    if text == "match":
        return None
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        a = b = math.nan
    if not all(math.isfinite(x) and x > 0 for x in (a, b)):
        raise argparse.ArgumentTypeError(f"{text} must be two positive finite numbers, as in 1,1, or `match`.")
    return a, b


def _json_options(text: str) -> dict[str, Any]:
    """Options by name."""
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f'{text} must be JSON with options by name, as in {{"mode": "pos"}}.')
    return options


def make_simulate_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll simulate`."""
    parser = _Parser(
        prog="adaroll simulate",
        allow_abbrev=False,
        description="Plays allocators on the same simulated batches at equal budget, and compares them with equal "
        "groups and with a bound on every policy. Without arguments: all allocators, with beliefs from 8 earlier "
        "outcomes of each prompt and without.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--allocators",
        nargs="+",
        metavar="NAME",
        help="which ones, or package.module:Class of your own (default: all)",
    )
    which.add_argument("--all", action="store_true", help="all allocators; the default, said aloud")
    parser.add_argument(
        "--allocator-kwargs",
        type=_json_options,
        metavar="JSON",
        help="options of the allocator, where --allocators names one beside uniform",
    )
    _add_difficulty(parser)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--num-generations", type=_whole(1), help="rollouts per prompt on average (default: 8)")
    budget.add_argument("--budget", type=_whole(1), help="rollouts of a batch, instead: a multiple of the prompts")
    parser.add_argument(
        "--rounds", type=_whole(1), nargs="+", default=[4], help="generation rounds; several (default: 4)"
    )
    parser.add_argument("--utility", nargs="+", default=["mixed"], help="utilities; several (default: mixed)")
    parser.add_argument(
        "--carried",
        type=_whole(0),
        nargs="+",
        default=[0, 8],
        help="outcomes of each prompt known from before the batch; several (default: 0 8)",
    )
    parser.add_argument(
        "--carried-decay", type=_number(0, 1), default=1.0, help="what each of them counts, 0 to 1 (default: 1)"
    )
    _add_play(parser, 1000)
    return parser


def make_plan_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll plan`."""
    parser = _Parser(
        prog="adaroll plan",
        allow_abbrev=False,
        description="What to expect of adaptive rollouts on prompts of a given difficulty: prompts with signal, "
        "rollouts by pass rate, and how many rollouts show as much as equal groups do.",
    )
    _add_difficulty(parser)
    parser.add_argument(
        "--num-generations",
        type=_whole(1),
        nargs="+",
        default=[4, 8, 16],
        help="rollouts per prompt (default: 4 8 16)",
    )
    parser.add_argument("--rounds", type=_whole(1), nargs="+", default=[2, 4], help="generation rounds (default: 2 4)")
    parser.add_argument("--utility", default="mixed", help="what the allocator maximises (default: mixed)")
    _add_play(parser, 4000)
    return parser


def _add_difficulty(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--difficulty", default="beta(1,1)", metavar="TEXT", help=f"of the prompts: {FORMS}")
    parser.add_argument(
        "--fit",
        choices=FITS,
        default=FITS[0],
        help=f"from pass counts to pass rates: {', '.join(FITS)} (default: {FITS[0]})",
    )
    parser.add_argument("--reward", metavar="NAME", help="of a file of completions: the reward that tells a success")
    parser.add_argument(
        "--threshold",
        type=_number(-math.inf, math.inf),
        help="of a file of completions: a reward of at least this is a success (default: 0.5)",
    )
    parser.add_argument(
        "--prior",
        type=_prior,
        metavar="A,B",
        default="1,1",
        help="a,b of the Beta belief on a prompt, or `match`, the difficulty's mean and variance (default: 1,1)",
    )
    parser.add_argument("--prompts", type=_whole(1), default=32, help="prompts of a batch (default: 32)")


def _add_play(parser: argparse.ArgumentParser, batches: int) -> None:
    parser.add_argument("--min-rollouts", type=_whole(0), help="of each prompt, at least (default: 2)")
    parser.add_argument("--max-rollouts", type=_whole(1), help="and at most (default: 4 times the average)")
    parser.add_argument(
        "--batches", type=_whole(_FEWEST_BATCHES), default=batches, help=f"simulated batches (default: {batches})"
    )
    parser.add_argument("--seed", type=_whole(0), default=0, help="default: 0")
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
        _check_outputs(options)
        command(options, console)
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"error: the memory does not suffice ({error}): give fewer --prompts or --batches.", file=sys.stderr)
        return 2
    return 0


def _common(options: argparse.Namespace) -> dict[str, Any]:
    difficulty = parse_difficulty(options.difficulty, options.fit, reward=options.reward, threshold=options.threshold)
    utilities = [options.utility] if isinstance(options.utility, str) else options.utility
    for name in utilities:
        if name not in UTILITY_NAMES:
            raise ValueError(f"--utility {name} is not known. Use one of {', '.join(UTILITY_NAMES)}.")
    return {
        "difficulty": difficulty,
        "num_prompts": options.prompts,
        "prior": options.prior,
        "min_rollouts": _MIN_ROLLOUTS if options.min_rollouts is None else options.min_rollouts,
        "max_rollouts": options.max_rollouts,
    }


def run_simulate(options: argparse.Namespace, console: Console) -> None:
    """Compare, print, write."""
    from ..allocators import ALLOCATOR_NAMES

    common = _common(options)
    prior = common.pop("prior") or common["difficulty"].nearest_beta()
    generations = options.num_generations or 8
    if options.budget is not None:
        generations, rest = divmod(options.budget, options.prompts)
        if rest:
            raise ValueError(f"--budget {options.budget} must be a multiple of --prompts {options.prompts}.")
    _check_limits(options, [generations])
    every = not options.allocators
    names = list(ALLOCATOR_NAMES) if every else options.allocators
    make = _allocators_to_make(names, options.allocator_kwargs)
    base = Setting(prior=prior, num_generations=generations, carried_decay=options.carried_decay, **common)
    found: list[tuple[Setting, list[Row]]] = []
    with _progress(console) as say:
        for utility in options.utility:
            for rounds in options.rounds:
                for carried in options.carried:
                    setting = replace(base, utility=utility, rounds=rounds, carried=carried)
                    # Who cannot play with beliefs of their own for each prompt is left out, unless asked for by name
                    able = [name for name in names if not (every and setting.beliefs and name in ONE_PRIOR)]
                    players = [make[name](utility) if name in make else name for name in able]  # a fresh state each
                    found.append((setting, compare(setting, players, options.batches, options.seed, say)))
    console.print(_setting_text(base, prior, options), highlight=False)
    for setting, rows in found:
        _print_table(console, comparison_table(setting, rows), {"allocator"})
    console.print(_NOTE, highlight=False, soft_wrap=True)
    _write(
        options,
        console,
        [
            {"utility_name": setting.utility, "rounds": setting.rounds, "carried": setting.carried, **row.record()}
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
    _check_limits(options, options.num_generations)
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
        _print_table(console, table, {"G", "rounds"})
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
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        console.print(f"Numbers: {options.csv}", highlight=False, soft_wrap=True)
    if options.plot is not None:
        from ..plots import save_figure

        save_figure(figure(), options.plot)
        console.print(f"Picture: {options.plot}", highlight=False, soft_wrap=True)


def _check_outputs(options: argparse.Namespace) -> None:
    """Whether the files can be written, before minutes of play."""
    for name in ("csv", "plot"):
        path = getattr(options, name)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            reason = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise ValueError(f"--{name} {path}: {reason}. It must be a file in a folder that exists.")
    if options.plot is not None:
        from ..plots import picture_formats

        if options.plot.suffix.removeprefix(".").lower() not in picture_formats():
            raise ValueError(f"--plot {options.plot} must end in one of .{', .'.join(picture_formats())}.")


def _check_limits(options: argparse.Namespace, generations: Sequence[int]) -> None:
    """The bounds on a prompt's rollouts must hold its average."""
    least, most = options.min_rollouts, options.max_rollouts
    if least is not None and least > min(generations):
        raise ValueError(
            f"--min-rollouts {least} must be at most the rollouts per prompt on average, which are {min(generations)}."
        )
    if most is not None and most < max(generations):
        raise ValueError(
            f"--max-rollouts {most} must be at least the rollouts per prompt on average, which are {max(generations)}."
        )


def _allocators_to_make(
    names: Sequence[str], arguments: Mapping[str, Any] | None
) -> dict[str, Callable[[str], Allocator]]:
    """For those that are of the user's own or have options: from a utility's name to a new allocator."""
    from ..allocators import ALLOCATOR_NAMES, check_own_options, make_allocator

    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--allocators {name} is given twice: give each once.")
        if name not in ALLOCATOR_NAMES and ":" not in name:
            known = ", ".join(ALLOCATOR_NAMES)
            raise ValueError(f"--allocators {name} is not known. Use any of {known}, or package.module:Class.")
    others = [name for name in names if name != "uniform"]
    if arguments is not None and len(others) != 1:
        raise ValueError(
            f"--allocator-kwargs {json.dumps(arguments)} are the options of one allocator: name it, and at most "
            "uniform beside it, with --allocators."
        )
    make: dict[str, Callable[[str], Allocator]] = {}
    for name in others:
        if ":" in name:
            from ..planner import load_allocator  # imports TRL: seconds

            make[name] = lambda utility, path=name: load_allocator(path, arguments or {}, "--allocators")  # type: ignore[misc]
        elif arguments is not None:
            check_own_options(name, arguments)
            make[name] = lambda utility, name=name: make_allocator(name, utility=utility, **arguments)  # type: ignore[misc]
        if name in make:
            make[name]("mixed")  # what it refuses is said before the first is played
    return make


def _print_table(console: Console, table: Table, keys: Collection[str]) -> None:
    """Print a table that is wider than the console in parts, each with the columns `keys`; nothing is cut off."""
    for part in _parts(console, table, keys):
        console.width = max(console.width, _width(console, part))
        console.print(part)


def _width(console: Console, table: Table) -> int:
    return int(table.__rich_measure__(console, console.options.update_width(10_000)).maximum)


def _parts(console: Console, table: Table, keys: Collection[str]) -> Iterator[Table]:
    fixed = [column for column in table.columns if column.header in keys]
    rest = [column for column in table.columns if column.header not in keys]
    while rest:
        part = copy(table)
        part.columns = [*fixed, rest.pop(0)]
        while rest:
            part.columns = [*part.columns, rest[0]]
            if _width(console, part) > console.width:
                part.columns = part.columns[:-1]
                break
            rest.pop(0)
        yield part
        table.title = None


def _comparison_figure(found: Sequence[tuple[Setting, Sequence[Row]]]) -> Any:
    from .pictures import comparison_figure

    return comparison_figure(found)


def _plan_figure(expected: ExpectedRollouts) -> Any:
    from .pictures import plan_figure

    return plan_figure(expected)
