"""Which checks there are, in which processes they run, and which of them this machine cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

_NEEDS_CUDA = "needs CUDA"


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        name (`str`): shown, and unique.
        function (`str`): "module:function" of this package, or "package.module:function".
        limit (`float`): seconds after which it has failed.
        options (`dict`): what it is told, by way of `Context.options`.
        skip (`str` or `None`): why this machine cannot run it.
    """

    name: str
    function: str
    limit: float = 60.0
    options: dict[str, Any] = field(default_factory=dict)
    skip: str | None = None


@dataclass(frozen=True)
class Launch:
    """Checks that share a process as long as none of them fails.

    Attributes:
        checks (`tuple` of `Check`): in order.
        gpus (`int` or `None`): how many of the visible GPUs the process sees; None for all.
        processes (`int`): 0 for a plain process, else so many under torchrun.
    """

    checks: tuple[Check, ...]
    gpus: int | None = 1
    processes: int = 0


def make_plan(device: str, gpus: Sequence[str], extra: Sequence[str] = ()) -> list[Launch]:
    """The launches of the whole check, cheap ones first.

    Args:
        device (`str`): "cuda" or "cpu" (a dry run: what a CPU cannot do is skipped).
        gpus (sequence of `str`): the visible GPUs, each as CUDA_VISIBLE_DEVICES names it.
        extra (sequence of `str`): checks of the user's own, "package.module:function".
    """
    cuda = None if device == "cuda" else _NEEDS_CUDA
    plan = [
        _hardware(cuda),
        *(Launch((Check(path, path),)) for path in extra),
        _training(),
        *_distributed(device, len(gpus)),
        *_vllm(cuda, gpus),
    ]
    if device == "cuda":
        return plan
    # The limits are those of a GPU machine that has nothing else to do
    return [replace(each, checks=tuple(replace(c, limit=4 * c.limit) for c in each.checks)) for each in plan]


def _hardware(cuda: str | None) -> Launch:
    return Launch(
        (
            Check("versions", "hardware:versions"),
            Check("CUDA", "hardware:gpus", skip=cuda),
            Check("bfloat16", "hardware:bf16"),
            Check("flash attention: torch", "hardware:torch_flash_attention"),
            Check("flash attention: flash_attn", "hardware:flash_attn", skip=cuda or _missing("flash_attn")),
            Check("planner", "hardware:planner", 120),  # the first time it compiles
        ),
        gpus=None,
    )


def _training() -> Launch:
    lora = _missing("peft")
    return Launch(
        (
            Check("uniform is GRPO, bit for bit", "training:uniform_is_grpo", 120),
            Check("full, GRPO", "training:train", options={"rounds": 0}),
            Check("full, AdaRoll, 2 rounds", "training:train", options={"rounds": 2}),
            Check("full, AdaRoll, 4 rounds", "training:train", options={"rounds": 4}),
            Check("LoRA, GRPO", "training:train", options={"rounds": 0, "lora": True}, skip=lora),
            Check("LoRA, AdaRoll, 4 rounds", "training:train", options={"rounds": 4, "lora": True}, skip=lora),
        )
    )


def _distributed(device: str, gpus: int) -> list[Launch]:
    """All GPUs; on the CPU two processes, to have more than one."""
    world = gpus if device == "cuda" else 2
    backend = "NCCL" if device == "cuda" else "gloo"
    deepspeed = _NEEDS_CUDA if device == "cpu" else _missing("deepspeed")
    kinds = (("ddp", "DDP", None), ("zero2", "ZeRO-2", deepspeed), ("zero3", "ZeRO-3", deepspeed))
    return [
        Launch(
            (
                Check(
                    f"{backend} x {world}, {name}, AdaRoll",
                    "training:distributed",
                    90,
                    options={"rounds": 4, "kind": kind, "backend": backend.lower(), "processes": world},
                    skip=skip,
                ),
            ),
            gpus=None,
            processes=world,
        )
        for kind, name, skip in kinds
    ]


def _vllm(cuda: str | None, gpus: Sequence[str]) -> list[Launch]:
    """vLLM keeps its memory for as long as its process lives, so each of these has a process of its own."""
    missing = cuda or _missing("vllm")
    launches = []
    for sleep in (False, True):
        for rounds in (0, 4):
            arm = f"AdaRoll, {rounds} rounds" if rounds else "GRPO"
            name = f"vLLM colocate{', sleep mode' if sleep else ''}, {arm}"
            options = {"rounds": rounds, "sleep": sleep}
            launches.append(Launch((Check(name, "training:vllm_colocate", 150, options, missing),)))
    for capacity, when in ((None, "all at once"), (32, "32 at once")):
        name = f"vLLM colocate, GRPO, rounds and stream, {when}"
        launches.append(Launch((Check(name, "side_by_side:costs", 180, {"capacity": capacity}, missing),)))
    few = missing or (None if len(gpus) > 1 else "needs 2 GPUs")
    server = Check(
        "vLLM server, AdaRoll, 4 rounds",
        "training:vllm_server",
        150,
        {"rounds": 4, "server_gpu": gpus[-1] if gpus else ""},
        few,
    )
    return [*launches, Launch((server,))]


def _missing(package: str) -> str | None:
    return None if find_spec(package) else f"{package} is not installed"
