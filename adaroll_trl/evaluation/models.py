"""Loading what a run may have left: a model's folder, a checkpoint, a PEFT adapter, or a Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoProcessor
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import find_adapter_config_file

from ..tasks.sources import first_line

DTYPES = ("auto", "float32", "bfloat16", "float16")


def find_model(model: str) -> str:
    """The folder that holds the weights: `model` itself, or its last `checkpoint-N`; a Hub id stays as it is.

    Raises:
        ValueError: if `model` looks like a path and no model or adapter is there.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        if model.startswith((".", "/", "~")) or path.exists():
            raise ValueError(f"model={model!r}: there is no such folder.")
        return model  # a Hub id
    for folder in (str(path), get_last_checkpoint(str(path))):
        if folder and any((Path(folder) / name).exists() for name in ("config.json", "adapter_config.json")):
            return folder
    raise ValueError(
        f"model={model!r} holds neither a model (config.json), nor an adapter (adapter_config.json), nor a "
        "checkpoint-N folder with one of them."
    )


def load_model(model: str, dtype: str = "auto") -> tuple[Any, Any]:
    """The model, on the GPU if there is one, and its tokenizer or processor.

    Args:
        model (`str`): folder, checkpoint, folder of checkpoints (the last one), PEFT adapter (merged into its base
            model), or Hub id of any of these.
        dtype (`str`): one of `DTYPES`; "auto" is the one that it was saved in.

    Raises:
        ValueError: if it cannot be loaded, with the first line of the reason.
    """
    import torch

    found = find_model(model)
    try:
        adapter = find_adapter_config_file(found)
        policy = _load_adapter(found, dtype) if adapter else _load_weights(found, dtype)
        processing_class = _load_processing_class(found, policy)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"model={model!r} cannot be loaded: {first_line(error)}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return policy.to(device).eval(), processing_class


def _load_weights(model: str, dtype: str) -> Any:
    """By the architecture that its config names, so that a vision-language model keeps its own class."""
    config = AutoConfig.from_pretrained(model)
    named = getattr(transformers, (config.architectures or [""])[0], AutoModelForCausalLM)
    return named.from_pretrained(model, dtype=dtype)


def _load_adapter(adapter: str, dtype: str) -> Any:
    from peft import PeftConfig, PeftModel

    base = str(PeftConfig.from_pretrained(adapter).base_model_name_or_path)
    return PeftModel.from_pretrained(_load_weights(base, dtype), adapter).merge_and_unload()


def _load_processing_class(model: str, policy: Any) -> Any:
    try:
        return AutoProcessor.from_pretrained(model)
    except (OSError, ValueError):  # an adapter's folder may hold no tokenizer
        return AutoProcessor.from_pretrained(policy.config._name_or_path)
