"""Does a long run slow down or grow? 2,000 steps of GRPO and of AdaRoll-GRPO; and the state of a million prompts.

    python benchmarks/long_run.py                  # 10 to 20 minutes on 2 cores
    python benchmarks/long_run.py --steps 200      # shorter
    python benchmarks/long_run.py --memory "AdaRoll-GRPO, 3 rounds, carried beliefs" --steps 600 --drop-log

The last takes one arm alone and tells what its memory is made of, every hundred steps; it writes no file.

Each arm trains in a process of its own, one after the other. Memory is the resident size of the process, read after
each step; the first hundred steps hold compiling and allocation, so growth is counted from step 100. The state of a
million prompts is what `Beliefs` of that size write into a checkpoint, and read back.

Writes benchmarks/results/long_run.json and prints the lines of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from steps import describe_machine, tiny_case
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.beliefs import Beliefs
from adaroll_trl.checkpoint import load_state, save_state
from adaroll_trl.run_folder import STATE_FILE
from adaroll_trl.solver.index import IndexTable
from adaroll_trl.solver.round_tables import RoundTables

RESULTS = Path(__file__).parent / "results" / "long_run.json"
OURS = {
    "utility": "mixed",
    "rounds": 3,
    "min_rollouts": 1,
    "belief_decay": 0.5,
    "prior_source": "empirical_bayes",
}
ARMS: dict[str, dict[str, Any] | None] = {"GRPO": None, "AdaRoll-GRPO, 3 rounds, carried beliefs": OURS}


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, in bytes."""

    _names = ("arena", *"abc", "mapped", *"de", "in_use", *"fg")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def size_of_log(log: list[dict[str, Any]]) -> int:
    """Bytes of all entries: dicts, names and numbers, each object once."""
    objects = {id(item): item for entry in log for item in (entry, *entry, *entry.values())}
    return sum(map(sys.getsizeof, objects.values()))


def size_of_tables() -> int:
    """Bytes of the planner's tables and of the price indices, which are made for the priors that occur."""
    owners = [item for item in gc.get_objects() if isinstance(item, (RoundTables, IndexTable))]
    arrays: dict[int, np.ndarray] = {}
    held: list[Any] = [vars(owner) for owner in owners]
    while held:
        item = held.pop()
        if isinstance(item, np.ndarray):
            whole = item if item.base is None or not isinstance(item.base, np.ndarray) else item.base
            arrays[id(whole)] = whole
        elif isinstance(item, (dict, list, tuple)):
            held.extend(item.values() if isinstance(item, dict) else item)
    return sum(array.nbytes for array in arrays.values())


class MemoryPrinter(TrainerCallback):
    """Prints what the memory is made of, every hundred steps; `drop_log` leaves only the log's last entry."""

    def __init__(self, drop_log: bool) -> None:
        self.drop_log = drop_log

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.drop_log:
            del state.log_history[:-1]
        if state.global_step % 100:
            return
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = MallocInfo
        c, before = libc.mallinfo2(), resident_megabytes()
        libc.malloc_trim(0)
        print(
            f"step {state.global_step}: {before:.1f} MiB resident, {resident_megabytes():.1f} once free memory is "
            f"given back; malloc holds {(c.in_use + c.mapped) / 2**20:.1f} MiB, Python {sys.getallocatedblocks():,} "
            f"objects; the log is {size_of_log(state.log_history) / 2**20:.2f} MiB, the solver's tables "
            f"{size_of_tables() / 2**20:.2f} MiB",
            flush=True,
        )


class Recorder(TrainerCallback):
    """Seconds of each step, and the memory after it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.megabytes: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)
        self.megabytes.append(resident_megabytes())


def train(arm: str, steps: int, *callbacks: TrainerCallback) -> dict[str, Any]:
    """What one arm's run was like."""
    case, own, recorder = tiny_case(), ARMS[arm], Recorder()
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "output_dir": folder,
            "num_generations": 4,
            "per_device_train_batch_size": 32,
            "max_completion_length": 16,
            "max_steps": steps,
            "learning_rate": 1e-4,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "save_strategy": "steps",
            "save_steps": steps,
            "logging_steps": 1,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
        }
        plain = own is None
        trainer_class = GRPOTrainer if plain else AdaRollGRPOTrainer
        config_class = GRPOConfig if plain else AdaRollGRPOConfig
        trainer = trainer_class(
            model=case["model"],
            processing_class=case["tokenizer"],
            reward_funcs=case["reward"],
            args=config_class(**config, **(own or {})),
            train_dataset=case["dataset"],
            callbacks=[recorder, *callbacks],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        state_file = Path(folder) / f"checkpoint-{steps}" / STATE_FILE
        state_bytes = state_file.stat().st_size if state_file.exists() else 0
    part = min(100, steps // 2)
    entries = [len(json.dumps(entry)) for entry in trainer.state.log_history if "loss" in entry]
    return {
        "steps": steps,
        "seconds_first": statistics.median(recorder.seconds[1:part]),
        "seconds_last": statistics.median(recorder.seconds[-part:]),
        "megabytes_after_first": recorder.megabytes[part - 1],
        "megabytes_at_end": recorder.megabytes[-1],
        "log_bytes_a_step": statistics.mean(entries),
        "state_bytes": state_bytes,
        "prompts": len(case["dataset"]),
    }


def state_of(prompts: int) -> dict[str, Any]:
    """A checkpoint's beliefs about so many prompts: size, and seconds to write and to read."""
    rng = np.random.default_rng(0)
    # Names as long as hashes of prompts are, and counts with as many digits as decay leaves
    keys = [f"{number:032x}" for number in range(prompts)]
    counts = rng.random((prompts, 2)) * 8
    beliefs, began = Beliefs(decay=0.5), resident_megabytes()
    beliefs.load_state_dict(dict(zip(keys, counts.tolist(), strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        save_state(folder, {"beliefs": beliefs.state_dict(), "allocator": {}})
        saved = time.perf_counter() - start
        size = (Path(folder) / STATE_FILE).stat().st_size
        start = time.perf_counter()
        state, restored = load_state(folder), Beliefs(decay=0.5)
        assert state is not None
        restored.load_state_dict(state["beliefs"])
        loaded = time.perf_counter() - start
    start = time.perf_counter()
    beliefs.snapshot()
    kept = time.perf_counter() - start
    assert restored.state_dict() == beliefs.state_dict()
    return {
        "prompts": prompts,
        "megabytes": size / 2**20,
        "seconds_to_save": saved,
        "seconds_to_load": loaded,
        "seconds_to_remember_before_a_batch": kept,
        "megabytes_of_memory_at_most": resident_megabytes() - began,
    }


def alone(function: Any, *args: Any) -> Any:
    """`function(*args)` in a process of its own, whose memory is its alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="of each arm")
    parser.add_argument("--prompts", type=int, default=1_000_000, help="whose state is written and read")
    parser.add_argument("--memory", choices=ARMS, metavar="ARM", help=f"what its memory is made of: {', '.join(ARMS)}")
    parser.add_argument("--drop-log", action="store_true", help="with --memory: keep no log")
    options = parser.parse_args()
    if options.steps < 4:
        parser.error(f"--steps {options.steps} must be at least 4: the first and the last are compared")
    transformers.logging.set_verbosity_error()
    if options.memory:
        train(options.memory, options.steps, MemoryPrinter(options.drop_log))
        return
    machine = describe_machine()
    state = alone(state_of, options.prompts)
    arms = {arm: alone(train, arm, options.steps) for arm in ARMS}
    RESULTS.write_text(json.dumps({"machine": machine, "arms": arms, "state": state}, indent=1) + "\n")
    for arm, found in arms.items():
        print(
            f"- {arm}: {1e3 * found['seconds_first']:.0f} ms a step in the first hundred and "
            f"{1e3 * found['seconds_last']:.0f} ms in the last (medians); {found['megabytes_after_first']:.0f} MiB "
            f"after the first hundred and {found['megabytes_at_end']:.0f} MiB at the end; "
            f"{found['log_bytes_a_step']:.0f} bytes of log a step"
        )
    print(
        f"- the state of {state['prompts']:,} prompts: {state['megabytes']:.0f} MiB, {state['seconds_to_save']:.1f} s "
        f"to save, {state['seconds_to_load']:.1f} s to load; remembering it before a batch takes "
        f"{1e6 * state['seconds_to_remember_before_a_batch']:.0f} us"
    )


if __name__ == "__main__":
    main()
