"""Plays faults on several real processes, and leaves what each of them saw, and how long it took, in files.

python -m tests.workers.faults MODEL_DIR OUTPUT_DIR CASES.json
torchrun --nproc_per_node 2 --max-restarts 1 -m tests.workers.faults MODEL_DIR OUTPUT_DIR CASES.json

Everything heavy is imported once. A case then forks its ranks, which form a gloo group as under torchrun; nobody ends
a rank when another one dies, so that what each one does by itself is seen. Under torchrun each process is a rank of
the first case, whose faults happen before the first restart only. A case is a dict:

    name        of the case, and of its folder of results
    run         folder of the checkpoints, which cases may share
    trainer     "ours" or "plain"
    world       ranks, 2
    by_prompt   true: a rollout's reward hangs on its prompt alone, and so does what is allocated
    options     of the trainer's config, on top of OPTIONS
    resume      what `train` gets as `resume_from_checkpoint`
    kill        {"phase", "rank", "step"}: kill -9 in that phase, at the first chance from that step
    fault       {"kind", "ranks", "step"}: what goes wrong there: the reward function, generation, the disk, the setup
    prepare     {"run", "files"}: copy the checkpoints of that run, then overwrite these files
    multiple_of rounds' totals are multiples of it, as of the ranks with more of them
    threads     of the solver, which is then asked before training, for each reward, and by the data loader's workers
    tables      true: instead of training, all ranks ask for one table in one folder at once
    group_timeout  seconds that the process group waits; None is its default
    limit       seconds after which what still runs is killed, 60
    patience    the same, counted from the first rank that ends; None is `limit`
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar
from trl import GRPOTrainer

from adaroll_trl import AdaRollGRPOTrainer
from adaroll_trl.allocators import AllocationState, make_allocator
from adaroll_trl.solver import lagrangian_bound, solve_index
from adaroll_trl.solver.store import TableStore
from tests.tiny import leave_process_group, length_reward, make_trainer, parity_reward, sums_dataset, weights

OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "steps_per_generation": 2,
    "num_generations": 4,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "ddp_find_unused_parameters": False,
    "max_completion_length": 6,
}
OURS = {"rounds": 3, "min_rollouts": 1, "belief_decay": 0.5, "prior_source": "empirical_bayes"}
TRAINERS = {"ours": AdaRollGRPOTrainer, "plain": GRPOTrainer}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Rank:
    """One process of a case."""

    def __init__(self, case: dict[str, Any], rank: int, model_dir: Path, output: Path) -> None:
        self.case, self.rank, self.model_dir, self.output = case, rank, model_dir, output
        self.folder = output / case["name"]
        self.kill = case.get("kill") or {"phase": None, "rank": -1, "step": 0}
        self.fault = case.get("fault") or {"kind": None, "ranks": [], "step": 0}
        self.seen: list[list[int]] = []  # the prompts of each round, by number
        self.trainer: Any = None
        self.solved = 0

    def at(self, phase: str) -> bool:
        """Whether this rank is to die in this phase now."""
        wanted = self.kill["phase"] == phase and self.kill["rank"] == self.rank
        return wanted and self.trainer.state.global_step >= self.kill["step"]

    def faulty(self) -> str | None:
        here = self.rank in self.fault["ranks"] and self.trainer.state.global_step >= self.fault["step"]
        return self.fault["kind"] if here else None

    def reward(self, completion_ids: list[list[int]], number: list[int], **kwargs: Any) -> Any:
        """0 or 1 by the completion's tokens, unless a fault or a kill is due."""
        if self.at("scoring"):
            die()
        self.seen.append([self.trainer.state.global_step, *number])
        values: list[Any] = parity_reward(completions=completion_ids, completion_ids=completion_ids)
        if self.case.get("by_prompt"):
            values = [float(n % 3 == 0) for n in number]
        if self.case.get("threads"):
            self.solve()
        kind = self.faulty()
        if kind == "raise":
            raise RuntimeError("judge is down")
        if kind == "hang":
            time.sleep(600)
        wrong = {"string": "good", "inf": float("inf")}
        return [*values[:-1], wrong[kind]] if kind in wrong else values

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Generation by the user, which returns nothing where that is the fault."""
        kind = self.faulty()
        ids = [[5 + i % 3, 7, 1] for i in range(len(prompts))]
        if kind == "empty rows":
            ids = [[] for _ in prompts]
        prompt_ids = [[5, 6]] * len(ids)
        result = {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": [[0.0] * len(row) for row in ids]}
        return None if kind == "nothing" else result  # type: ignore[return-value]

    def solve(self, rows: Any = None) -> Any:
        """A problem that no process has seen, on the solver's threads; who did it is kept. A transform of rows."""
        self.solved += 1
        solve_index(32, prior=(1.0 + self.solved, 1.0))
        (self.folder / f"solved by {os.getpid()}").touch()
        return rows

    def build(self) -> Any:
        case, dataset = self.case, sums_dataset(8)
        if threads := case.get("threads"):
            numba.config.NUMBA_NUM_THREADS = threads
            self.solve()
            dataset.set_transform(self.solve)
        options = {**OPTIONS, **(OURS if case["trainer"] == "ours" else {}), **case.get("options", {})}
        extra = {"rollout_func": self.rollout} if case.get("rollout_func") else {}
        if seconds := case.get("group_timeout"):  # transformers passes `ddp_timeout` on to groups of GPUs only
            PartialState(cpu=True, timeout=timedelta(seconds=seconds))
            options["accelerator_config"] = {"use_configured_state": True}
        funcs: list[Any] = [self.named_reward()]
        if self.rank in self.fault["ranks"]:  # set up unlike the others
            funcs += [length_reward] if self.fault["kind"] == "two functions" else []
            options |= {"min_rollouts": 2} if self.fault["kind"] == "another option" else {}
        return make_trainer(
            TRAINERS[case["trainer"]],
            model_dir=self.model_dir,
            output_dir=self.output / case["run"],
            dataset=dataset,
            reward=funcs,
            plain_config=case["trainer"] == "plain",
            trainer_kwargs=extra,
            **options,
        )

    def named_reward(self) -> Any:
        def judge(**kwargs: Any) -> Any:
            return self.reward(**kwargs)

        return judge

    def install_kill(self) -> None:
        """Wrap the step of the trainer in which this rank is to die."""
        trainer, phase = self.trainer, self.kill["phase"]
        if phase == "generating":  # at the third token
            generate, forward, calls = trainer.model.generate, trainer.model.forward, [0, 0]

            def generating(*args: Any, **kwargs: Any) -> Any:
                calls[0] = 1
                try:
                    return generate(*args, **kwargs)
                finally:
                    calls[0] = 0

            def counted(*args: Any, **kwargs: Any) -> Any:
                calls[1] += calls[0]
                if calls[0] and calls[1] % 6 == 3 and self.at("generating"):
                    die()
                return forward(*args, **kwargs)

            trainer.model.generate, trainer.model.forward = generating, counted
        elif phase == "allocating" and self.rank == 0:
            self.before(trainer.allocator, "allocate", self.die_in(phase))
        else:  # what others wait for while rank 0 allocates; after the loss' forward; between weights and completeness
            points = {"allocating": "_from_main", "training": "_compute_loss", "saving": "_save_rng_state"}
            if phase in points:
                self.before(trainer, points[phase], self.die_in(phase))

    def die_in(self, phase: str) -> Callable[[], None]:
        return lambda: die() if self.at(phase) else None

    def fill_disk(self) -> None:
        """No file may grow beyond `limit` bytes, from the step of the fault on."""
        if self.faulty():
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault["limit"], self.fault["limit"]))

    def before(self, owner: Any, name: str, act: Callable[[], None]) -> None:
        """`act` before every call of a method."""
        method = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            act()
            return method(*args, **kwargs)

        setattr(owner, name, watched)

    def run(self) -> None:
        if self.case.get("tables"):
            return self.ask_for_table()
        self.trainer = self.build()
        if multiple_of := self.case.get("multiple_of"):
            self.trainer._planner.world_size = multiple_of
        self.install_kill()
        if self.fault["kind"] == "full disk":
            self.before(self.trainer, "_save_checkpoint", self.fill_disk)
        self.trainer.train(resume_from_checkpoint=self.case.get("resume"))
        ours = self.case["trainer"] == "ours"
        result = {
            "weights": weights(self.trainer),
            "step": self.trainer.state.global_step,
            "seen": self.seen,
            "threads": sum(thread.name.startswith("adaroll-solver") for thread in threading.enumerate()),
            "state": self.trainer._state_to_save() if ours else None,
            "log": [{k: v for k, v in e.items() if "time" not in k} for e in self.trainer.state.log_history[:-1]],
        }
        torch.save(result, self.folder / f"rank{self.rank}.pt")

    def ask_for_table(self) -> None:
        def build() -> dict[str, Any]:
            (self.folder / f"built{self.rank}").touch()
            time.sleep(0.5)
            return {"x": np.arange(10)}

        found = TableStore(self.output / self.case["run"]).get({"solver": "test"}, build)
        assert found["x"].sum() == 45


def play(case: dict[str, Any], model_dir: Path, output: Path) -> dict[str, Any]:
    """Run a case: how each rank ended, and when, counted from the first that ended."""
    world = case.get("world", 2)
    (output / case["name"]).mkdir(parents=True)
    if prepare := case.get("prepare"):
        shutil.copytree(output / prepare["run"], output / case["run"])
        for name, text in prepare["files"].items():
            (output / case["run"] / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(world):
        if (child := os.fork()) == 0:
            become(case, rank, world, port, model_dir, output)
        ranks[child] = rank
    ended: dict[int, tuple[int, float]] = {}
    start, limit = time.time(), case.get("limit", 60)
    while len(ended) < world:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ended[ranks[child]] = (os.waitstatus_to_exitcode(status), time.time() - start)
            limit = min(limit, time.time() - start + case.get("patience", limit))
        elif time.time() - start > limit:
            for process, rank in ranks.items():
                if rank not in ended:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    ended[rank] = (-999, time.time() - start)
        else:
            time.sleep(0.01)
    first = min(when for _, when in ended.values())
    return {
        "codes": [ended[rank][0] for rank in range(world)],
        "after_first": [round(ended[rank][1] - first, 2) for rank in range(world)],
        "seconds": round(time.time() - start, 2),
    }


def become(case: dict[str, Any], rank: int, world: int, port: int, model_dir: Path, output: Path) -> None:
    """The child's life; it does not return."""
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        descriptor = os.open(output / case["name"] / f"output{rank}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        Rank(case, rank, model_dir, output).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def preload(model_dir: Path) -> None:
    """What every rank would import, compile and build for itself. No threads, and nothing that knows of ranks."""
    with suppress(ImportError):  # accelerate looks for it
        import_module("deepspeed")
    state = AllocationState(np.zeros(4), np.zeros(4), min_rollouts=1, max_rollouts=16, multiple_of=2)
    allocator = make_allocator("adaroll")
    allocator.allocate(state, 16, 3)
    allocator.expected_utility(state, 16, 3)
    lagrangian_bound(4, 16, "mixed", (1.0, 1.0), 1, 16)
    disable_progress_bar()  # it has a thread
    AutoModelForCausalLM.from_pretrained(model_dir)  # transformers then has its table of renamed weights
    gc.collect()
    gc.freeze()  # ranks collect garbage at least once, and need not look at all that was imported


def as_torchrun_rank(case: dict[str, Any], model_dir: Path, output: Path) -> None:
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
        case = {**case, "kill": None, "fault": None, "resume": True}
    (output / case["name"]).mkdir(parents=True, exist_ok=True)
    Rank(case, int(os.environ["RANK"]), model_dir, output).run()


def main() -> None:
    model_dir, output, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    if "RANK" in os.environ:
        as_torchrun_rank(cases[0], model_dir, output)
        return leave_process_group()
    preload(model_dir)
    results = {case["name"]: play(case, model_dir, output) for case in cases}
    (output / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
