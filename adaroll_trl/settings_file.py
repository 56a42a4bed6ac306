"""A trainer's arguments as JSON beside its log, for `adaroll report`.

transformers saves the arguments too, but as a pickle, and reading a pickle runs what it names. The JSON of
`TrainingArguments.to_json_string` is read as well; it is not what is written here, since it leaves secrets inside of
dicts as they are, changes such dicts in place, and fails on a value that JSON does not have.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from .files import write_json

SETTINGS_FILE = "training_args.json"
_SECRET = re.compile(r".*(token|key|password|passwd|secret|credential|authorization)s?", re.IGNORECASE | re.DOTALL)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_NAMED_BY_TEXT = (("torch", "dtype"), ("torch", "device"))  # by name: the report does without torch
_DEEPEST = 20  # levels of lists and dicts in a value; a list may hold itself


def save_settings(args: Any, folder: Path | str | None = None, more: Mapping[str, Any] | None = None) -> Path:
    """Write a trainer's arguments as `training_args.json`, whole or not at all.

    Args:
        args (`TrainingArguments`): such as a `GRPOConfig`. Of its fields those that are given and not derived.
        folder (path, *optional*): where to; None is `args.output_dir`.
        more (`dict`, *optional*): further settings; `args` wins where it has them too.

    Returns:
        `Path`: the file.

    Raises:
        OSError: if it cannot be written.
    """
    path = Path(args.output_dir if folder is None else folder) / SETTINGS_FILE
    given = {one.name: getattr(args, one.name) for one in fields(args) if one.init}
    write_json(path, plain({**(more or {}), **given}), indent=2)
    return path


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, without secrets.

    Of an enum's member its value, of a function or class its path, of what has a `to_dict` that, of other objects the
    class's name. Entries of dicts whose name ends in token, key, password, secret, credentials or authorization are
    left out, and so are user and password in a URL. What is nested more than 20 levels deep becomes "...".

    >>> plain({"model_init_kwargs": {"token": "hf_...", "device_map": None}, "url": "http://me:1234@host:8000"})
    {'model_init_kwargs': {'device_map': None}, 'url': 'http://host:8000'}
    """
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, str):
        return _USER_IN_URL.sub("", value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):  # numpy's too
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth + 1) for name, one in value.items() if not is_secret(str(name))}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in _ordered(value)]
    if isinstance(value, Path) or (type(value).__module__, type(value).__name__) in _NAMED_BY_TEXT:
        return str(value).removeprefix("torch.")
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return plain(value.to_dict(), depth + 1) if hasattr(value, "to_dict") else type(value).__name__


def _ordered(values: Iterable[Any]) -> Iterable[Any]:
    """A set in an order that is the same in every run."""
    return sorted(values, key=str) if isinstance(values, set | frozenset) else values


def is_secret(name: str) -> bool:
    """Whether a setting of that name may hold a secret.

    >>> [is_secret(name) for name in ("hub_token", "api_key", "max_tokens_per_batch")]
    [True, True, False]
    """
    return _SECRET.fullmatch(name) is not None
