"""What the machine has: versions, GPUs, arithmetic and attention kernels, the planner's compiled code."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn.functional import scaled_dot_product_attention

from .context import Context, require

_PACKAGES = ("trl", "transformers", "accelerate", "numba", "vllm", "deepspeed", "peft", "flash_attn")
_GIB = 2**30


def versions(context: Context) -> str:
    """Never fails: what is installed."""
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def gpus(context: Context) -> str:
    """torch sees CUDA, and a kernel runs on every GPU."""
    require(torch.cuda.is_available(), f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU")
    found = []
    for index in range(torch.cuda.device_count()):
        ones = torch.ones(1000, device=f"cuda:{index}")
        require(float(ones.sum()) == 1000, f"a sum on GPU {index} is wrong")
        properties = torch.cuda.get_device_properties(index)
        capability = f"{properties.major}.{properties.minor}"
        free, total = torch.cuda.mem_get_info(index)
        found.append(f"{properties.name} ({capability}), {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")
    return f"CUDA {torch.version.cuda}: " + "; ".join(found)


def bf16(context: Context) -> str:
    """A bfloat16 product is the float32 product up to bfloat16's rounding."""
    if context.device == "cuda":
        require(torch.cuda.is_bf16_supported(including_emulation=False), "this GPU has no bfloat16 arithmetic")
    size = 2048 if context.device == "cuda" else 128
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(context.device) for _ in range(2))
    exact = left @ right
    error = float(((left.bfloat16() @ right.bfloat16()).float() - exact).norm() / exact.norm())
    # Each factor is rounded to 8 bits: about 2^-9 each, independent of the size.
    require(1e-4 < error < 1e-2, f"relative error {error:.1e}, expected about 3e-3")
    return f"relative error {error:.1e}"


def _attention_inputs(device: str) -> list[torch.Tensor]:
    """Queries, keys and values: bfloat16, (2 sequences, 256 tokens, 4 heads, 64)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 256, 4, 64, generator=generator).to(device, torch.bfloat16) for _ in range(3)]


def _attention_error(found: torch.Tensor, inputs: list[torch.Tensor]) -> float:
    """The largest difference from attention in float32, both (batch, tokens, heads, head size)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = (tensor.float().transpose(1, 2) for tensor in inputs)
    with sdpa_kernel(SDPBackend.MATH):
        exact = scaled_dot_product_attention(query, key, value, is_causal=True)
    error = float((found.float() - exact.transpose(1, 2)).abs().max())
    require(error < 3e-2, f"differs from float32 attention by up to {error:.1e}")
    return error


def torch_flash_attention(context: Context) -> str:
    """torch's own flash kernel, which `attn_implementation="sdpa"` picks, against float32."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    inputs = _attention_inputs(context.device)
    query, key, value = (tensor.transpose(1, 2) for tensor in inputs)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises where there is no such kernel
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
    return f"largest difference from float32 {_attention_error(found.transpose(1, 2), inputs):.1e}"


def flash_attn(context: Context) -> str:
    """The flash_attn package, which `attn_implementation="flash_attention_2"` uses, against float32."""
    from flash_attn import flash_attn_func

    inputs = _attention_inputs(context.device)
    found = flash_attn_func(*inputs, causal=True)
    return f"largest difference from float32 {_attention_error(found, inputs):.1e}"


def planner(context: Context) -> str:
    """The compiled kernels give the values stored here (computed on x86-64 on 29 November 2026)."""
    from ..solver import lagrangian_bound, plan_round

    counts = plan_round([1, 0, 0, 2], [1, 2, 0, 0], rollouts_left=10, rounds_left=2, min_rollouts=2).tolist()
    require(counts == PLANNED_COUNTS, f"plan_round gives {counts}, not {PLANNED_COUNTS}")
    bound = lagrangian_bound(num_prompts=32, budget=256, max_rollouts=32)
    require(abs(bound / PLANNED_BOUND - 1) < 1e-9, f"lagrangian_bound gives {bound!r}, not {PLANNED_BOUND!r}")
    return f"plan {counts}, bound {bound:.6f}, as stored"


PLANNED_COUNTS = [0, 2, 2, 2]
PLANNED_BOUND = 30.060606060606123
