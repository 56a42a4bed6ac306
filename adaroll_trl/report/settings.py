"""The training arguments of a run, from the pickle that the trainer leaves beside a model, without running any of it.

Unpickling calls whatever the file names, so a file from a stranger can do anything. Here every name that it asks for
stands for a class that does nothing, and what is left are the names and values of the arguments.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS_FILE = "training_args.bin"  # as in `transformers.trainer`
_MOST_BYTES = 4_000_000  # a few thousand in fact

# Training arguments that say what was done, in the order of the report; all others come below.
MAIN_SETTINGS = (
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
    "max_completion_length",
    "temperature",
    "max_steps",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "loss_type",
    "scale_rewards",
    "reward_weights",
    "beta",
    "epsilon",
    "use_vllm",
    "logging_steps",
    "seed",
)
ALLOCATION_SETTINGS = (  # the fields of AdaRollOptions, which TRL's own trainer does not read
    "allocator",
    "allocator_kwargs",
    "utility",
    "rounds",
    "stream_rollouts",
    "in_flight",
    "stream_order",
    "draws_per_round",
    "min_rollouts",
    "max_rollouts",
    "prior_alpha",
    "prior_beta",
    "prior_source",
    "prior_column",
    "prior_strength",
    "belief_decay",
    "kappa",
    "kappa_every",
    "block_size",
    "success_reward",
    "success_threshold",
    "prompt_weighting",
    "table_cache_dir",
)


class _Inert:
    """Stands for any class or function that a pickle names: takes everything, does nothing."""

    arguments: tuple[Any, ...] = ()  # an object may be made without a call of `__init__`
    state: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        return None


def read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """The arguments by name; empty, with a note, for a file that cannot be read. Secrets are left out."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            with archive.open(member) as file:
                data = file.read(_MOST_BYTES)
        state = _InertUnpickler(io.BytesIO(data)).load().state
        if not isinstance(state, Mapping):
            raise ValueError("it holds no training arguments")
    except Exception as error:  # a damaged pickle can raise anything
        notes.append(f"{path.name} was skipped: it cannot be read ({type(error).__name__}: {error}).")
        return {}
    return {
        str(name): _plain(value)
        for name, value in state.items()
        if not str(name).startswith("_") and not str(name).endswith("token")
    }


def _plain(value: Any) -> Any:
    """Numbers, texts and what is made of them; of an enum's member its value, of other objects the class's name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, _Inert) and len(value.arguments) == 1:
        return _plain(value.arguments[0])
    return type(value).__name__
