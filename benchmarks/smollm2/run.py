"""GRPO and AdaRoll-GRPO on SmolLM2-135M-Instruct, generated arithmetic, equal rollouts. One command each:

    python benchmarks/smollm2/run.py                     # fresh prompts: grpo.yaml and adaroll.yaml
    python benchmarks/smollm2/run.py --prompts repeated  # 96 prompts, 5 times each: grpo.yaml and progress_carry.yaml

runs the two recipes in recipes/smollm2-135m-instruct/arithmetic with a few seeds, evaluates held-out problems before,
on the way and at the end, and writes docs/results/smollm2_{arithmetic,repeated}.{md,png} and, run by run, the JSON
files in the folder of that name. Runs that are stored there are not repeated, and a run that was interrupted goes on
from its last checkpoint; delete the files to start anew. `--report-only` writes the report from what is stored.
PLAN.md says what the second pair is for, and what to expect.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from report import COMMAND, write_report

from adaroll_trl.files import write_json

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes" / "smollm2-135m-instruct" / "arithmetic"
BEFORE = "before"


class Pair(NamedTuple):
    """What is compared with GRPO, and on which prompts: both arms get the same.

    Attributes:
        arm (`str`): its recipe.
        prompts (list of `str`): options of both arms over their recipes.
        name (`str`): of the results.
        seeds (tuple of `int`): by default.
        evaluations (`int`): evenly over the steps, the last one at the end.
    """

    arm: str
    prompts: list[str]
    name: str
    seeds: tuple[int, ...]
    evaluations: int


PAIRS = {
    "fresh": Pair("adaroll", [], "smollm2_arithmetic", (0, 1), 2),
    "repeated": Pair("progress_carry", ["--dataset_name", "96:0"], "smollm2_repeated", (0, 1, 2, 3), 5),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", choices=list(PAIRS), default="fresh", help="once each, or a few over and over")
    parser.add_argument("--model", default="outputs/smollm2", help="folder; `scripts/get_smollm2.py` makes it")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="folder with a pair's YAML files")
    parser.add_argument("--results", type=Path, help="folder of the JSON files; the report is beside")
    parser.add_argument("--work", type=Path, help="for checkpoints")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1, and 0 1 2 3 with repeated prompts")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-problems", type=int, default=200)
    parser.add_argument("--eval-samples", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread and 5 GB each")
    parser.add_argument("--report-only", action="store_true", help="write the report from what is stored")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one run, in this process
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, with the pair's own where none are given."""
    options = make_parser().parse_args(arguments)
    pair = PAIRS[options.prompts]
    options.results = options.results or ROOT / "docs" / "results" / pair.name
    options.work = options.work or ROOT / "outputs" / pair.name
    options.seeds = options.seeds or list(pair.seeds)
    return options


def run_names(arm: str, seeds: Sequence[int]) -> list[str]:
    """Runs in the order in which they start: the start's evaluation, then both arms of a seed together."""
    return [BEFORE, *(f"{one}-seed{seed}" for seed in seeds for one in ("grpo", arm))]


def run_one(name: str, options: argparse.Namespace) -> None:
    """One run in this process; its file is written when it is through."""
    from training import HeldOut, run_recipe, where_and_when

    from adaroll_trl.evaluation.models import load_model
    from adaroll_trl.tasks import get_task

    task = get_task("arithmetic")
    held_out = HeldOut.of(task, None, options.eval_problems, options.eval_samples, max_tokens=5)
    if name == BEFORE:
        model, tokenizer = load_model(options.model, "float32")
        result = held_out.evaluate(model, tokenizer, task)
    else:
        pair = PAIRS[options.prompts]
        arm, seed = name.split("-seed")
        arguments = ["--model_name_or_path", options.model, "--seed", seed, "--max_steps", str(options.steps)]
        arguments += pair.prompts
        at = sorted({max(1, options.steps * part // pair.evaluations) for part in range(1, pair.evaluations + 1)})
        result = run_recipe(options.recipes / f"{arm}.yaml", options.work / name, arguments, held_out, at)
        result["arm"] = arm
    write_json(options.results / f"{name}.json", {**result, **where_and_when()})


def missing_runs(names: Sequence[str], results: Path) -> list[str]:
    return [name for name in names if not (results / f"{name}.json").exists()]


def run_all(names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Each run in a process of its own, `options.jobs` at a time. Returns the names of those that failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, __file__, *sys.argv[1:]]
    options.work.mkdir(parents=True, exist_ok=True)

    def finished(name: str) -> bool:
        with (options.work / f"{name}.log").open("a", encoding="utf-8") as log:
            print(f"{name} starts; its log: {log.name}", flush=True)
            process = subprocess.run([*command, "--only", name], env=environment, stdout=log, stderr=log)
        print(f"{name} {'is stored' if process.returncode == 0 else 'FAILED: see its log'}", flush=True)
        return process.returncode == 0

    with ThreadPoolExecutor(options.jobs) as pool:
        return [name for name, good in zip(names, pool.map(finished, names), strict=True) if not good]


def main() -> int:
    options = parse()
    if options.only:
        run_one(options.only, options)
        return 0
    names = run_names(PAIRS[options.prompts].arm, options.seeds)
    if not options.report_only:
        failed = run_all(missing_runs(names, options.results), options)
        if failed:
            print(f"Not finished: {', '.join(failed)}. The same command goes on from here.", file=sys.stderr)
            return 1
    write_report(options.results, COMMAND if options.prompts == "fresh" else f"{COMMAND} --prompts {options.prompts}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
