"""`python -m adaroll_trl.gpu_check`: see `scripts/gpu_check.sh`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .plan import make_plan
from .report import Row, exit_code, table
from .runner import Runner

TIME_LIMIT = 600.0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description="Checks in at most 10 minutes that this machine trains with adaroll_trl, and prints one table. "
        "Exits non-zero if a check fails. Nothing is installed, and nothing downloaded unless --model is a Hub id.",
    )
    parser.add_argument(
        "--model", help="folder or Hub id of a causal language model with a chat template (default: a tiny random one)"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu is a dry run: what a CPU cannot do is skipped (default: cuda)",
    )
    parser.add_argument("--output", type=Path, help="file for the table, in Markdown")
    parser.add_argument("--logs", type=Path, help="folder for the logs of all checks (default: a temporary one)")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT, help=f"seconds for everything (default: {TIME_LIMIT:.0f})"
    )
    parser.add_argument(
        "--extra",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a check of your own, called with a gpu_check.context.Context: it returns a note, or raises",
    )
    return parser


def visible_gpus() -> list[str]:
    """The GPUs that torch sees, each as CUDA_VISIBLE_DEVICES names it."""
    import torch

    count = torch.cuda.device_count()
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return given[:count] if given else [str(index) for index in range(count)]


def _make_model(folder: Path, device: str) -> Path:
    """In a process of its own: what transformers prints while it is imported does not belong above the table."""
    command = [sys.executable, "-m", f"{__package__}.model", str(folder), device]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        raise RuntimeError(f"The tiny model could not be made:\n{made.stdout}")
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; the exit status."""
    options = build_parser().parse_args(arguments)
    started = time.monotonic()
    gpus = visible_gpus() if options.device == "cuda" else []
    if options.device == "cuda" and not gpus:
        print("error: torch sees no GPU. --device cpu makes a dry run.", file=sys.stderr)
        return 1
    scratch = options.logs or Path(tempfile.mkdtemp(prefix="gpu-check-"))
    scratch.mkdir(parents=True, exist_ok=True)
    if options.model is None or Path(options.model).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"
    model = options.model or str(_make_model(scratch / "model", options.device))
    context = {"device": options.device, "model": model, "tiny": options.model is None}
    runner = Runner(context, scratch, gpus, options.time_limit - (time.monotonic() - started), _say)
    rows = runner.run(make_plan(options.device, gpus, options.extra))
    for check, log in runner.logs.items():
        print(f"\n{check}: the end of {log}\n{_end_of(log)}", file=sys.stderr)
    text = f"{_heading(options, rows, time.monotonic() - started)}\n\n{table(rows)}"
    print(text)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(f"{text}\n")
    return exit_code(rows)


def _say(row: Row) -> None:
    print(f"{row.check}: {row.result}{f' ({row.note})' if row.result != 'ok' else ''}", file=sys.stderr, flush=True)


def _end_of(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _heading(options: argparse.Namespace, rows: Sequence[Row], seconds: float) -> str:
    counts = {result: sum(row.result == result for row in rows) for result in ("ok", "skipped", "FAILED")}
    what = "GPU check" if options.device == "cuda" else "GPU check, dry run on the CPU"
    model = options.model or "a tiny random model"
    found = ", ".join(f"{count} {result}" for result, count in counts.items())
    return f"{what}, {time.strftime('%Y-%m-%d')}, with {model}: {found}, in {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
