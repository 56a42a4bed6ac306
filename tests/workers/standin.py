"""Runs on every process: trains against the stand-in server and leaves each rank's outputs in a file.

torchrun --nproc_per_node 2 -m tests.workers.standin MODEL_DIR OUTPUT_DIR SERVER_URL
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.compatibility import adaptive
from tests.tiny import FixedCounts, leave_process_group

PLANS = [[[2, 2, 2, 2], [0, 1, 3, 0], [0, 0, 0, 4]], [[1, 3, 1, 1], [0, 0, 8, 0], [1, 1, 0, 0]]]
ROUNDS = 3


class Plans(FixedCounts):
    """Another plan for each batch."""

    def num_rounds(self, *args: Any) -> int:
        self.plan = PLANS[len(self.states) // ROUNDS]
        return ROUNDS

    def allocate(self, *args: Any) -> np.ndarray:
        return super().allocate(*args)


def main() -> None:
    from tests.standin import pretend_vllm

    model_dir, output_dir, url = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    pretend_vllm()
    trainer = adaptive(
        model_dir,
        output_dir / "run",
        allocator="uniform",
        per_device_train_batch_size=4,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        ddp_find_unused_parameters=False,
    )
    trainer.allocator = Plans([])
    trainer.train()
    results = {
        "world": trainer.accelerator.num_processes,
        "outputs": [output for _, output in trainer.recorded],
        "log": [{k: v for k, v in entry.items() if "time" not in k} for entry in trainer.state.log_history[:-1]],
    }
    torch.save(results, output_dir / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
    leave_process_group()
