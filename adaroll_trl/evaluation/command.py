"""`adaroll eval` and `scripts/eval.py`: evaluate a model, or compare two results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .compare import Comparison, compare
from .settings import EvalSettings
from .statistics import Estimate
from .store import read_results

USAGE = """adaroll eval --model MODEL --task TASK [TASK ...] [options]
       adaroll eval --compare FIRST SECOND [--level LEVEL]"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; bad input ends with one sentence on stderr and exit status 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _compare(given) if "--compare" in given else _evaluate(given)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def make_parser() -> Any:
    """`--config` names a YAML file, and the command line stands over it."""
    from ..parsing import NamingParser

    parser = NamingParser(
        [EvalSettings],
        prog="adaroll eval",
        usage=USAGE,
        description="Accuracy and pass@k of a model on tasks with verifiable answers, with intervals. Completions are "
        "saved as they come; the same command goes on where it was interrupted.",
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("FIRST", "SECOND"), help="Two results.json, or their folders, prompt by prompt."
    )
    return parser


def parse(arguments: Sequence[str]) -> EvalSettings:
    """Settings from the command line, and from a YAML file named by `--config`.

    Raises:
        ValueError: for an unknown option, naming the nearest one, and for a value that cannot be.
    """
    parsed: Any = make_parser().parse_args_and_config(args=list(arguments), fail_with_unknown_args=True)
    return parsed[0]


def _evaluate(arguments: Sequence[str]) -> int:
    settings = parse(arguments)
    from .run import evaluate

    console = make_console()
    with Progress(console=console, transient=True) as bar:
        bars: dict[str, Any] = {}

        def progress(task: str, done: int, total: int) -> None:
            if task not in bars:
                bars[task] = bar.add_task(task, total=total)
            bar.update(bars[task], completed=done)

        results = evaluate(settings, progress=progress)
    console.print(results_table(results, settings))
    console.print(f"Completions and results: {settings.output_dir}", highlight=False, soft_wrap=True)
    return 0


def make_console() -> Console:
    """A log file has no width of its own."""
    console = Console()
    if not console.is_terminal:
        console.width = 120
    return console


def results_table(results: Mapping[str, Mapping[str, Any]], settings: EvalSettings) -> Table:
    """For each task its metrics with their intervals, and what the completions were like."""
    how = "greedy" if settings.temperature == 0 else f"{settings.num_samples} samples at {settings.temperature:g}"
    title = f"{settings.model}, {how}, {settings.level:.0%} intervals"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("task", ""):
        table.add_column(heading, no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for task, result in results.items():
        table.add_section()
        name = f"{task}, {len(result['prompts']):,} prompts"
        for metric, one in result["metrics"].items():
            table.add_row(name, f"{metric}, %", with_interval(one["value"], one["low"], one["high"]))
            name = ""
        table.add_row("", "completions cut off, %", f"{100 * result['truncated']:.2f}")
        table.add_row("", "completions without an answer, %", f"{100 * result['no_answer']:.2f}")
        if result["unreadable_answers"]:
            table.add_row("", "gold answers that the task cannot read", f"{result['unreadable_answers']}")
        table.add_row("", "tokens of a completion", f"{result['tokens_per_completion']:.0f}")
    return table


def with_interval(value: float, low: float, high: float, signed: bool = False) -> str:
    """In percent: `48.60 [44.25, 52.97]`."""
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.2f} [{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def _compare(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="adaroll eval", usage=USAGE, allow_abbrev=False)
    parser.add_argument("--compare", nargs=2, metavar=("FIRST", "SECOND"), required=True)
    parser.add_argument("--level", type=float, default=0.95)
    options, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        from ..parsing import unknown_option

        raise unknown_option(parser, unknown[0])
    first, second = (read_results(path) for path in options.compare)
    comparisons = compare(first, second, options.level)
    make_console().print(comparison_table(comparisons, first["settings"], second["settings"], options.level))
    return 0


def comparison_table(
    comparisons: Sequence[Comparison], first: Mapping[str, Any], second: Mapping[str, Any], level: float
) -> Table:
    """A row for each metric."""
    title = (
        f"{first['task']}, {comparisons[0].difference.num_prompts:,} prompts in pairs, {level:.0%} intervals over "
        f"prompts\nfirst:  {first['model']}\nsecond: {second['model']}"
    )
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("metric", "first", "second", "second - first"):
        table.add_column(heading, justify="left" if heading == "metric" else "right", no_wrap=True)
    for one in comparisons:
        table.add_row(one.metric, _cell(one.first), _cell(one.second), _cell(one.difference, signed=True))
    return table


def _cell(estimate: Estimate, signed: bool = False) -> str:
    return with_interval(estimate.value, estimate.low, estimate.high, signed)
