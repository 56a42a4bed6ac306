"""Runs on every process: trains the recipes that a test made small under ZeRO-3, and leaves what each rank found.

torchrun --nproc_per_node 2 -m tests.workers.recipes FOLDER
"""

# ruff: noqa: E402 (the process group comes before TRL)
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

# Before any config is built: otherwise accelerate picks a backend that needs a GPU
os.environ |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
PartialState(backend="gloo")

import deepspeed

from adaroll_trl.training.arguments import parse
from adaroll_trl.training.run import build_trainer
from tests.tiny import deepspeed_config, engine_of, leave_process_group, parity_reward
from tests.tiny_recipes import adapted

FOLDER, RANK = Path(sys.argv[1]), int(os.environ["RANK"])


def whole_weights(model: Any) -> dict[str, torch.Tensor]:
    named = list(model.named_parameters())
    with deepspeed.zero.GatheredParameters([parameter for _, parameter in named]):
        return {name: parameter.detach().clone() for name, parameter in named}


def run(words: list[str]) -> dict[str, Any]:
    AcceleratorState._reset_state()  # it takes a DeepSpeed plugin only once
    trainer = build_trainer(*parse(words))
    base = trainer.model.get_base_model() if hasattr(trainer.model, "get_base_model") else trainer.model
    trainer.reward_funcs[0] = parity_reward  # a random model is never right: the outcome has to vary to move it
    before = whole_weights(trainer.model)
    trainer.train()
    after = whole_weights(trainer.model)
    return {
        "engine": (*engine_of(trainer), trainer.accelerator.num_processes),
        "class": type(base).__name__,
        "spread": all(p.ds_tensor.numel() < p.ds_numel for p in trainer.model.parameters() if p.ds_numel > 1),
        "adapted": adapted(trainer.model),
        "moved": sorted(name for name in before if not torch.equal(before[name], after[name])),
        "log": trainer.state.log_history[0],
    }


def main() -> None:
    if RANK == 0:
        (FOLDER / "zero3.json").write_text(json.dumps(deepspeed_config(3)))
    torch.distributed.barrier()
    runs = json.loads((FOLDER / "runs.json").read_text())
    torch.save({item["name"]: run(item["words"]) for item in runs}, FOLDER / f"rank{RANK}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
