"""The learning benchmark's toy tier: GRPO and adaptive allocations at equal rollouts, paired seeds. One command:

    python benchmarks/learning/run.py

runs what is missing of the cells in design.py and writes one JSON file a run to docs/results/learning/, then the page
docs/results/learning.md. It may be stopped at any time and goes on with the next missing run. `--list` shows what is
missing and how long it takes, `--report-only` writes the page from what is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from cell import Cell, right_at_start, run_cell
from design import STAGES, seeds_of
from regimes import REGIMES
from summary import read_runs, starts_of

from adaroll_trl.files import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "learning"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    parser.add_argument("--cells", nargs="+", help="only cells whose name contains one of these")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these; default: those of the design")
    parser.add_argument("--steps", type=int, help="for a try; the default is the design's")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files; the page is beside")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "learning", help="for the starts")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread and 1 GB each")
    parser.add_argument("--list", action="store_true", help="show what is missing, and run nothing")
    parser.add_argument("--report-only", action="store_true", help="write the page from what is stored")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)  # which share of the runs is this process's
    return parser


def all_runs(options: argparse.Namespace) -> list[tuple[Cell, int]]:
    """Cells and seeds in their order, without doubles."""
    cells = list({cell.name: cell for stage in options.stages for cell in STAGES[stage]}.values())
    if options.steps:
        cells = [replace(cell, steps=options.steps) for cell in cells]
    if options.cells:
        cells = [cell for cell in cells if any(part in cell.name for part in options.cells)]
    runs = [(cell, seed) for cell in cells for seed in seeds_of(cell.factor) if seed in (options.seeds or [seed])]
    return sorted(runs, key=lambda run: run[1])


def result_path(folder: Path, cell: Cell, seed: int) -> Path:
    return folder / cell.name / f"seed{seed}.json"


def missing_runs(options: argparse.Namespace) -> list[tuple[Cell, int]]:
    return [run for run in all_runs(options) if not result_path(options.results, *run).exists()]


def check_stored(options: argparse.Namespace) -> None:
    """Refuse to go on from runs that were made otherwise than the cells of their names say.

    Raises:
        SystemExit: naming the file, and what differs.
    """
    for cell, seed in all_runs(options):
        path = result_path(options.results, cell, seed)
        if not path.exists():
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name, value in {**vars(cell), "seed": seed}.items():
            if stored.get(name, value) != value:  # early runs lack the learning rate
                raise SystemExit(
                    f"{path} was made with {name}={stored[name]!r}, and the cell {cell.name} has {value!r} now. Give "
                    "--results another folder, or remove the file to make the run anew."
                )


def hours(options: argparse.Namespace, runs: Sequence[tuple[Cell, int]]) -> float:
    """Processor time that runs will take, from that of stored ones (a minute each where none is), by rollouts."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in options.results.glob("*/seed*.json")]
    seconds = sum(run["cpu_seconds"] for run in stored) or 60.0
    rollouts = sum(run["steps"] * run["prompts"] * run["num_generations"] for run in stored) or 25_600
    due = sum(cell.steps * cell.prompts * cell.num_generations for cell, _ in runs)
    return due * seconds / rollouts / 3600


def run_share(options: argparse.Namespace) -> int:
    """Every `jobs`-th missing run, in this process. A run that fails does not keep the others from running."""
    failed = 0
    warnings.filterwarnings("ignore")
    for cell, seed in missing_runs(options)[options.job :: options.jobs]:
        path = result_path(options.results, cell, seed)
        try:
            result = run_cell(cell, seed, options.work / "starts", options.work / f"job{options.job}")
        except Exception:
            failed += 1
            print(f"{cell.name}, seed {seed}, failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        write_json(path, result)
        print(f"{cell.name}, seed {seed}: {result['cpu_seconds']} s of processor time", flush=True)
    return failed


def make_starts(folder: Path, results: Path, wanted: Iterable[tuple[str, int]]) -> None:
    """The starts of some regimes and seeds, before the jobs start, so that no two make the same.

    Raises:
        SystemExit: where stored runs of the same regime and seed began from another model. Processors round
            differently, so a start made on another machine is another start, and its runs are no pairs of these.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    stored = starts_of(read_runs(results))
    for regime, seed in sorted(set(wanted)):
        here = right_at_start(REGIMES[regime], seed, folder)
        if stored.get((regime, seed), here) != here:
            raise SystemExit(
                f"The start of regime {regime}, seed {seed}, in {folder} is not the one that the stored runs in "
                f"{results} began from, which another processor made: the runs would be no pairs. Go on where "
                f"they were made (or with the starts from there), or remove {regime}-*/seed{seed}.json to make all "
                "of this seed again."
            )


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.job is not None:
        return run_share(options)
    if options.steps and options.results.resolve() == RESULTS:
        raise SystemExit(f"--steps {options.steps} is for a try: give --results a folder of its own.")
    check_stored(options)
    runs = missing_runs(options)
    print(f"{len(all_runs(options)) - len(runs)} of {len(all_runs(options))} runs are stored.", flush=True)
    if options.list:
        print("".join(f"missing: {cell.name}, seed {seed}\n" for cell, seed in runs), end="")
        print(f"{len(runs)} runs, about {hours(options, runs):.1f} hours of processor time")
        return 0
    failed = 0
    if not options.report_only and runs:
        make_starts(options.work / "starts", options.results, [(cell.regime, seed) for cell, seed in runs])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        given = list(sys.argv[1:] if arguments is None else arguments)
        command = [sys.executable, __file__, *given, "--jobs", str(options.jobs)]
        jobs = [subprocess.Popen([*command, "--job", str(job)], env=environment) for job in range(options.jobs)]
        failed = sum(job.wait() != 0 for job in jobs)
    from report import write_report

    write_report(options.results)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
