"""`adaroll simulate` and `adaroll plan`: allocators compared, and what to expect of one, without a model."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console

from ..utilities import as_utility
from .compare import ONE_PRIOR, Row, Setting, compare
from .difficulty_text import parse_difficulty
from .named import named_allocators, named_utilities
from .options import make_plan_parser, make_simulate_parser
from .planning import ExpectedRollouts, plan
from .tables import comparison_table, plan_tables, print_table

_WIDTH = 140
_MIN_ROLLOUTS = 2  # as in the trainer


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
    if options.carried_decay != 1 and not any(options.carried):
        raise ValueError(f"--carried-decay {options.carried_decay:g} has no effect without --carried above 0.")
    difficulty = parse_difficulty(options.difficulty, options.fit, reward=options.reward, threshold=options.threshold)
    return {
        "difficulty": difficulty,
        "num_prompts": options.prompts,
        "prior": options.prior,
        "min_rollouts": _MIN_ROLLOUTS if options.min_rollouts is None else options.min_rollouts,
        "max_rollouts": options.max_rollouts,
        "carried_decay": options.carried_decay,
    }


def run_simulate(options: argparse.Namespace, console: Console) -> None:
    """Compare, print, write."""
    from ..allocators import ALLOCATOR_NAMES, streaming_allocators

    common = _common(options)
    utilities = named_utilities(options.utility, options.kappa or [])
    prior = common.pop("prior") or common["difficulty"].fitted_prior()
    generations = options.num_generations or 8
    if options.budget is not None:
        generations, rest = divmod(options.budget, options.prompts)
        if rest:
            raise ValueError(f"--budget {options.budget} must be a multiple of --prompts {options.prompts}.")
    _check_limits(options, [generations])
    every = not options.allocators
    known = streaming_allocators() if options.in_flight else ALLOCATOR_NAMES
    names = list(known) if every else options.allocators
    make = named_allocators(names, options.allocator_kwargs)
    base = Setting(prior=prior, num_generations=generations, **common)
    found: list[tuple[Setting, list[Row]]] = []
    with _progress(console) as say:
        for utility in utilities:
            for way in _ways(options):
                for carried in options.carried:
                    setting = replace(base, utility=utility, carried=carried, **way)
                    # Who cannot play with beliefs of their own for each prompt is left out, unless asked for by name
                    able = [name for name in names if not (every and setting.beliefs and name in ONE_PRIOR)]
                    players = [make[name](utility) if name in make else name for name in able]  # a fresh state each
                    found.append((setting, compare(setting, players, options.batches, options.seed, say)))
    console.print(_setting_text(base, prior, options), highlight=False)
    for setting, rows in found:
        print_table(console, comparison_table(setting, rows), {"allocator"})
    console.print(_NOTE, highlight=False, soft_wrap=True)
    _write(
        options,
        console,
        [
            {
                "utility_name": as_utility(setting.utility).key,
                "rounds": setting.rounds if setting.in_flight is None else "",
                "carried": setting.carried,
                **row.record(),
                "in_flight": setting.in_flight or "",
            }
            for setting, rows in found
            for row in rows
        ],
        lambda: _comparison_figure(found),
    )


def _ways(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Of a setting, how its budget is spent: in rounds, or in a stream."""
    if options.in_flight:
        return [{"in_flight": count, "lengths": options.lengths or "even"} for count in options.in_flight]
    if options.lengths is not None:
        raise ValueError(
            f"--lengths {options.lengths} has no effect without --in-flight: rounds do not depend on them."
        )
    return [{"rounds": rounds} for rounds in options.rounds]


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


def run_plan(options: argparse.Namespace, console: Console) -> None:
    """Plan, print, write."""
    common = _common(options)
    (utility,) = named_utilities([options.utility], [] if options.kappa is None else [options.kappa])
    _check_limits(options, options.num_generations)
    with _progress(console) as say:
        found = [
            plan(
                utility=utility,
                num_generations=options.num_generations,
                rounds=options.rounds,
                num_batches=options.batches,
                seed=options.seed,
                carried=carried,
                on_play=lambda: say("batches"),
                **common,
            )
            for carried in options.carried
        ]
    difficulty, prior = found[0].setting.difficulty, found[0].setting.prior
    console.print(
        f"difficulty {difficulty.label}: mean {difficulty.mean:.3f}, standard deviation "
        f"{difficulty.variance**0.5:.3f}; believed beta({prior[0]:.3g},{prior[1]:.3g}); {options.prompts} prompts a "
        f"batch; {options.batches:,} batches, seed {options.seed}",
        highlight=False,
        soft_wrap=True,
    )
    for table in (table for expected in found for table in plan_tables(expected)):
        print_table(console, table, {"G", "rounds"})
    records = [record for expected in found for record in expected.records()]
    _write(options, console, records, lambda: _plan_figure(found))


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


def _comparison_figure(found: Sequence[tuple[Setting, Sequence[Row]]]) -> Any:
    from .pictures import comparison_figure

    return comparison_figure(found)


def _plan_figure(found: Sequence[ExpectedRollouts]) -> Any:
    from .pictures import plan_figure

    return plan_figure(found)
