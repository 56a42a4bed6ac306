"""`adaroll report`: a run's folder, or two, as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .page import write_report
from .run import load_runs

DEFAULT_OUTPUTS = ("report.html", "compare.html")  # of one run, of two


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adaroll report",
        description="What a run left on disk, as one HTML page that needs nothing else: learning curves, where the "
        "rollouts went, difficulty, weights, time, single prompts, settings. Of AdaRoll's trainer or TRL's own; two "
        "runs side by side.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="output_dir of a run")
    parser.add_argument("other", type=Path, nargs="?", metavar="RUN_DIR2", help="another run, to compare")
    parser.add_argument(
        "--output",
        type=Path,
        help="the page (default: {} in RUN_DIR, of two runs {}); pictures go to a folder beside it".format(
            *DEFAULT_OUTPUTS
        ),
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; bad input ends with one sentence on stderr and exit status 2."""
    options = make_parser().parse_args(arguments)
    folders = [options.run_dir, *([options.other] if options.other is not None else [])]
    try:
        runs = load_runs(folders)
        default = DEFAULT_OUTPUTS[len(runs) - 1]
        output = options.output or options.run_dir / default
        if output.is_dir():
            raise ValueError(f"--output {output} is a folder. Name a file, such as {output / default}.")
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = write_report(runs, output)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for run in runs:
        for note in run.notes:
            print(f"{run.name}: {note}")
    print(f"Report: {output}   pictures: {folder}")
    return 0
