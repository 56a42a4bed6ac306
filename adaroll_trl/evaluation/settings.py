"""What an evaluation runs: the options of `adaroll eval`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..tasks import TASK_NAMES, get_task


@dataclass
class EvalSettings:
    """One model on one or more tasks.

    Raises:
        ValueError: if a value cannot be, naming the field and what would be right.
    """

    model: str = field(
        metadata={"help": "Folder, checkpoint, folder of checkpoints (the last), PEFT adapter, or Hub id."}
    )
    task: list[str] = field(metadata={"help": f"One or more of {', '.join(TASK_NAMES)}."})
    output_dir: str = field(
        default="outputs/eval", metadata={"help": "A folder for each task goes into it: results and completions."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Hub id or local path of the task's data set, instead of its usual source."}
    )
    split: str = field(default="test", metadata={"help": "Split of the data set."})
    limit: int | None = field(default=None, metadata={"help": "Only the first so many prompts."})
    num_samples: int = field(default=1, metadata={"help": "Completions of each prompt."})
    k: list[int] = field(
        default_factory=lambda: [1], metadata={"help": "Which pass@k to report, each at most num_samples."}
    )
    temperature: float | None = field(
        default=None, metadata={"help": "0 is greedy. Default: 0 for one sample of each prompt, 1 for several."}
    )
    top_p: float = field(default=1.0, metadata={"help": "Nucleus sampling, in (0, 1]."})
    max_tokens: int = field(default=1024, metadata={"help": "Tokens of a completion, at most."})
    seed: int = field(default=0, metadata={"help": "Of the sampling."})
    backend: Literal["transformers", "vllm"] = field(default="transformers", metadata={"help": "What generates."})
    batch_size: int | None = field(
        default=None,
        metadata={"help": "Completions sampled, and then saved, at a time. Default: 32, with vLLM 1024."},
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Of the weights; 'auto' is the one that they were saved in."}
    )
    level: float = field(default=0.95, metadata={"help": "Confidence level of the intervals."})
    overwrite: bool = field(default=False, metadata={"help": "Begin anew where results or a part of them exist."})
    vllm_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Further arguments of vllm.LLM, as JSON: '{\"tensor_parallel_size\": 2}'."},
    )

    def __post_init__(self) -> None:
        if isinstance(self.vllm_kwargs, str):
            self.vllm_kwargs = _json_object("vllm_kwargs", self.vllm_kwargs)
        if self.temperature is None:
            self.temperature = 0.0 if self.num_samples == 1 else 1.0
        if self.batch_size is None:
            self.batch_size = 1024 if self.backend == "vllm" else 32
        for name in ("num_samples", "max_tokens", "batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        self._check_sampling()
        self._check_tasks()
        if self.vllm_kwargs and self.backend != "vllm":
            raise ValueError(f"vllm_kwargs={self.vllm_kwargs} has no effect with backend={self.backend!r}.")

    def _check_sampling(self) -> None:
        assert self.temperature is not None
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} must be at least 0.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must lie in (0, 1].")
        if not 0 < self.level < 1:
            raise ValueError(f"level={self.level} must lie strictly between 0 and 1.")
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                f"num_samples={self.num_samples} with temperature=0: all completions of a prompt would be the same. "
                "Set num_samples=1, or a temperature above 0."
            )
        wrong = [k for k in self.k if not 1 <= k <= self.num_samples]
        if wrong:
            raise ValueError(
                f"k={wrong[0]} must lie between 1 and num_samples={self.num_samples}: pass@k needs at least k "
                "completions of each prompt."
            )

    def _check_tasks(self) -> None:
        for name in self.task:
            get_task(name)
        if self.dataset_name is not None and len(self.task) > 1:
            raise ValueError(
                f"dataset_name={self.dataset_name!r} can be the source of one task, not of {len(self.task)}."
            )

    def of_task(self, task: str) -> dict[str, Any]:
        """What decides on the completions of a task: two evaluations that agree in it may be joined."""
        left_out = ("task", "output_dir", "overwrite", "k", "level")
        kept = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {"task": task, **kept}


def _json_object(name: str, text: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name}={text!r} must be a JSON object like '{{\"max_model_len\": 4096}}'.")
    return value
