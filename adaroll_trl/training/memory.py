"""Bytes of a run that follow from its arguments: weights, gradients, optimiser states and rollout tensors.

The model is built from its configuration on the meta device: no weights are read or allocated. Activations, logits,
the cache of generation and what a framework reserves are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl import GRPOConfig, ModelConfig, get_peft_config

_ADAM_STATES = {"adamw_torch": 2, "adamw_torch_fused": 2, "sgd": 0}
_ADAM_8BIT = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit")


@dataclass(frozen=True)
class ModelMemory:
    """Bytes before any sharding, and the numbers they follow from.

    Attributes:
        parameters, trainable (`int`): numbers of the model, and those that are trained: all, or the adapters'.
        adapters (`bool`): which of the two.
        dtype (`str`): of the weights, or "4 bit" or "8 bit".
        weights, gradients (`int`): bytes.
        optimizer (`int`, *optional*): bytes of its states; None for an optimiser whose states are not known here.
        reference (`int`): bytes of the reference model that `beta` above 0 needs without adapters.
    """

    parameters: int
    trainable: int
    adapters: bool
    dtype: str
    weights: int
    gradients: int
    optimizer: int | None
    reference: int


def model_memory(model: ModelConfig, config: GRPOConfig) -> ModelMemory:
    """What the model of a run takes.

    Raises:
        OSError: if its configuration cannot be had, or is of code that only all processes can run together.
        ValueError: if the configuration, or the adapter's target modules, do not fit.
    """
    given: Any = config.model_init_kwargs or {}
    revision = given.get("revision", model.model_revision)
    trust = bool(getattr(config, "trust_remote_code", False) or getattr(model, "trust_remote_code", False))
    settings = AutoConfig.from_pretrained(str(model.model_name_or_path), revision=revision, trust_remote_code=trust)
    built = _on_meta(settings, trust)
    dtype = _dtype(given.get("dtype", model.dtype), settings)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    weights, label = _weight_bytes(built, model, dtype)
    trained = [parameter.numel() for parameter in built.parameters() if parameter.requires_grad]
    # Adapters on weights of half precision are kept in float32 (PEFT), on quantised ones in bfloat16 (TRL)
    size = dtype.itemsize
    if (adapter := get_peft_config(model)) is not None:
        from peft import get_peft_model

        with init_empty_weights():
            built = get_peft_model(built, adapter)
        trained = [parameter.numel() for parameter in built.parameters() if parameter.requires_grad]
        size = 2 if model.load_in_4bit or model.load_in_8bit else 4
        weights += size * sum(trained)
    trainable = sum(trained)
    states = _state_bytes(str(getattr(config.optim, "value", config.optim)), size)
    return ModelMemory(
        parameters=parameters,
        trainable=trainable,
        adapters=adapter is not None,
        dtype=label,
        weights=weights,
        gradients=size * trainable,
        optimizer=None if states is None else states * trainable,
        reference=parameters * dtype.itemsize if config.beta and adapter is None else 0,
    )


def rollout_bytes(rows: int, config: GRPOConfig, *, several_rounds: bool) -> int | None:
    """The largest size of a generation batch's tensors on one process, prompts left aside; None without a maximum.

    Token ids and mask take 8 bytes a position each, and each kind of log-probability 4. While rounds are merged, the
    rounds' tensors and the batch's both exist.
    """
    if config.max_completion_length is None:
        return None
    # TRL keeps the sampling policy's own where the weights change before a batch is used up, and always with vLLM
    batch_steps = int(config.steps_per_generation or 1) * config.num_iterations
    outlived = config.gradient_accumulation_steps % batch_steps != 0
    kinds = int(outlived or config.use_vllm) + int(config.beta > 0) + 2 * int(config.use_vllm)
    return rows * int(config.max_completion_length) * (16 + 4 * kinds) * (2 if several_rounds else 1)


def _on_meta(settings: Any, trust: bool) -> Any:
    """The model class that TRL would load, without memory behind its parameters."""
    name = (getattr(settings, "architectures", None) or [None])[0]
    architecture = getattr(transformers, name, None) if name else None
    if architecture is None and is_deepspeed_zero3_enabled():  # `from_config` would spread it over all processes
        raise OSError(f"architecture {name!r} is not one of transformers', and ZeRO-3 is on")
    with init_empty_weights():
        if architecture is None:
            built = AutoModelForCausalLM.from_config(settings, trust_remote_code=trust)
        else:
            built = architecture(settings)
    built.tie_weights()  # outside: inside, each name would get a parameter of its own again
    return built


def _dtype(name: Any, settings: Any) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    if name in (None, "auto"):
        own = getattr(settings, "dtype", None)
        return own if isinstance(own, torch.dtype) else torch.float32
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype={name!r} must be one of 'auto', 'bfloat16', 'float16', 'float32'.")
    return found


def _weight_bytes(built: Any, model: ModelConfig, dtype: torch.dtype) -> tuple[int, str]:
    """Bytes of the weights, and how they are stored: bitsandbytes quantises linear layers except the output's."""
    total = sum(parameter.numel() for parameter in built.parameters())
    if not (model.load_in_4bit or model.load_in_8bit):
        return total * dtype.itemsize, str(dtype).removeprefix("torch.")
    head = built.get_output_embeddings()
    linear = [m.weight.numel() for m in built.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    bits = 4 if model.load_in_4bit else 8
    return int(sum(linear) * bits / 8) + (total - sum(linear)) * dtype.itemsize, f"{bits} bit"


def _state_bytes(optimizer: str, size: int) -> int | None:
    """Bytes of optimiser state for each trained number."""
    if optimizer in _ADAM_8BIT:
        return 2
    return None if optimizer not in _ADAM_STATES else _ADAM_STATES[optimizer] * size
