"""The settings of a demo run, the same for both arms."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .problems import DemoError

ARMS = {"grpo": "GRPO", "adaroll": "AdaRoll-GRPO"}


@dataclass
class Settings:
    """What `adaroll demo` was asked for.

    Args:
        output_dir (`Path`): everything that the demo writes goes here.
        arms (`tuple` of `str`): which of `ARMS` to run.
        steps (`int`): optimizer steps an arm; each has one generation batch.
        prompts, num_generations (`int`): a generation batch has `prompts * num_generations` rollouts in both arms.
        micro_batch (`int`): rollouts in one forward and backward pass.
        max_completion_length (`int`): tokens.
        lr (`float`), dtype (`str`), seed (`int`): as in TRL.
        eval_prompts, eval_samples (`int`): held-out prompts, and completions sampled for each.
        eval_times (`int`): held-out evaluations spread over the training, the last one at its end.
        probe_samples (`int`): completions that estimate the success rate of each prompt of the first batch; 0: none.
        warm_up_steps (`int`): supervised steps of the built-in model; 0 with a model of the user's own.
        adaroll (`dict`): fields of `AdaRollGRPOConfig` that the user set; the others keep their defaults.
    """

    output_dir: Path
    arms: tuple[str, ...] = ("grpo", "adaroll")
    steps: int = 250
    prompts: int = 16
    num_generations: int = 8
    micro_batch: int = 128
    max_completion_length: int = 16
    lr: float = 1e-4
    dtype: str = "float32"
    seed: int = 0
    eval_prompts: int = 480
    eval_samples: int = 4
    eval_times: int = 10
    probe_samples: int = 256
    warm_up_steps: int = 300
    adaroll: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("steps", "prompts", "num_generations", "micro_batch", "max_completion_length"):
            if getattr(self, name) < 1:
                raise DemoError(f"{_option(name)} {getattr(self, name)} must be at least 1.")
        if self.num_generations < 2:
            raise DemoError(f"--num-generations {self.num_generations} must be at least 2: GRPO compares completions.")
        if self.rollouts_per_step % self.micro_batch:
            raise DemoError(
                f"--micro-batch {self.micro_batch} must divide --prompts {self.prompts} x --num-generations "
                f"{self.num_generations} = {self.rollouts_per_step}."
            )

    @property
    def rollouts_per_step(self) -> int:
        return self.prompts * self.num_generations

    @property
    def evaluation_steps(self) -> set[int]:
        """After which steps the held-out prompts are evaluated; the last step is one of them."""
        times = min(self.eval_times, self.steps)
        return {round(self.steps * (number + 1) / times) for number in range(times)}

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "output_dir": str(self.output_dir)}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
