"""Runs scripts/train.py on CPUs under `accelerate launch`, and leaves what each rank trained with in a file.

accelerate launch --config_file recipes/accelerate/zero2.yaml ... -m tests.workers.launch OUTPUT_DIR ARGUMENTS...

Everything is the script's and the recipe's but the process group, which accelerate would choose for GPUs.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType

if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
    PartialState(backend="gloo")
elif os.environ.get("ACCELERATE_USE_FSDP") == "true":
    # accelerate shards only in a group that it takes for one of GPUs, and trains DDP in any other without a word
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU

from adaroll_trl import AdaRollGRPOTrainer
from tests.tiny import engine_of

OUTPUT = Path(sys.argv[1])
SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "train.py"


def record(trainer: Any) -> dict[str, Any]:
    wrapped, parameters = trainer.model_wrapped, list(trainer.model.parameters())
    return {
        "world": trainer.accelerator.num_processes,
        "rank": trainer.accelerator.process_index,
        "engine": [base.__name__ for base in type(wrapped).__mro__],
        "stage": engine_of(trainer)[1],
        # FSDP2 holds DTensors, ZeRO-3 parameters that it converted; ones as small as these it keeps whole
        "spread": all(hasattr(parameter, "to_local") or hasattr(parameter, "ds_id") for parameter in parameters),
        "steps": trainer.state.global_step,
        "log": trainer.state.log_history,
    }


def main() -> None:
    train = AdaRollGRPOTrainer.train

    def train_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = train(self, *args, **kwargs)
        found = record(self)
        (OUTPUT / f"rank{found['rank']}.json").write_text(json.dumps(found))
        return result

    AdaRollGRPOTrainer.train = train_and_record  # type: ignore[method-assign]
    sys.argv = [str(SCRIPT), *sys.argv[2:]]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
