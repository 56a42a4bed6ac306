"""The options of `adaroll simulate` and `adaroll plan`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..utilities import UTILITY_NAMES
from .difficulty_text import FORMS
from .pass_counts import FITS
from .streaming import LENGTHS

_FEWEST_BATCHES = 2  # for a standard error


class _Parser(argparse.ArgumentParser):
    """Bad input is a `ValueError` of one sentence: `--seed -1 must be ...`."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(re.sub(r"^argument (\S+): ", r"\1 ", message))


def _whole(least: int, why: str = "") -> Callable[[str], int]:
    """The type of an option that is a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least {least}{why}.")
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


def _kappa(text: str) -> float:
    """A positive finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} must be a positive finite number.")
    return value


def _prior(text: str) -> tuple[float, float] | None:
    """`a,b`, or None for `fit`."""
    if text == "fit":
        return None
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        a = b = math.nan
    if not all(math.isfinite(x) and x > 0 for x in (a, b)):
        raise argparse.ArgumentTypeError(f"{text} must be two positive finite numbers, as in 1,1, or `fit`.")
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
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--rounds", type=_whole(1), nargs="+", default=[4], help="generation rounds; several (default: 4)"
    )
    ways.add_argument(
        "--in-flight",
        type=_whole(1),
        nargs="+",
        metavar="C",
        help="play streams instead of rounds, with C rollouts in flight; several (without --allocators: all that "
        "stream)",
    )
    parser.add_argument(
        "--lengths",
        choices=tuple(LENGTHS),
        help="of a stream's completions, which decide the order in which they end: all alike, with tails, by a "
        "prompt's difficulty or by success (default: even)",
    )
    parser.add_argument("--utility", nargs="+", default=["mixed"], help=f"{_UTILITY}; several {_NOT_THE_TRAINERS}")
    parser.add_argument("--kappa", type=_kappa, nargs="+", help=f"{_KAPPA}; several (default: 2)")
    _add_carried(parser, [0, 8])
    _add_play(parser, 1000)
    return parser


def make_plan_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll plan`."""
    parser = _Parser(
        prog="adaroll plan",
        allow_abbrev=False,
        description="What to expect of adaptive rollouts on prompts of a given difficulty: prompts with signal, the "
        "utility, rollouts by pass rate, what size of equal groups that is worth, and how many rollouts are worth as "
        "much as equal groups.",
    )
    _add_difficulty(parser)
    parser.add_argument(
        "--num-generations",
        type=_whole(2, ": one rollout alone has nothing to be compared with"),
        nargs="+",
        default=[4, 8, 16],
        help="rollouts per prompt (default: 4 8 16)",
    )
    parser.add_argument("--rounds", type=_whole(1), nargs="+", default=[2, 4], help="generation rounds (default: 2 4)")
    parser.add_argument(
        "--utility", default="mixed", help=f"{_UTILITY}, which the allocator maximises {_NOT_THE_TRAINERS}"
    )
    parser.add_argument("--kappa", type=_kappa, help=f"{_KAPPA} (default: 2)")
    _add_carried(parser, [0])
    _add_play(parser, 4000)
    return parser


_UTILITY = f"{', '.join(UTILITY_NAMES)}, or package.module:function of your own"
_NOT_THE_TRAINERS = "(default: mixed, to decide within a batch; the trainer's is progress, with --rounds 1)"
_KAPPA = "of --utility progress: the noise of one rollout against the spread between prompts"


def _add_carried(parser: argparse.ArgumentParser, default: list[int]) -> None:
    parser.add_argument(
        "--carried",
        type=_whole(0),
        nargs="+",
        default=default,
        help=f"outcomes of each prompt known from before the batch; several (default: {' '.join(map(str, default))})",
    )
    parser.add_argument(
        "--carried-decay", type=_number(0, 1), default=1.0, help="what each of them counts, 0 to 1 (default: 1)"
    )


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
        help="a,b of the Beta belief on a prompt, or `fit`, the one that prior_source='empirical_bayes' finds at this "
        "difficulty (default: 1,1)",
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
