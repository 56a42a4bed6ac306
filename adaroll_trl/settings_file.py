"""A trainer's arguments as JSON beside its log, for `adaroll report`.

transformers saves the arguments too, but as a pickle, and reading a pickle runs what it names. The JSON of
`TrainingArguments.to_json_string` is read as well; it is not what is written here, since it leaves secrets inside of
dicts as they are, changes such dicts in place, and fails on a value that JSON does not have.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from .files import write_json

SETTINGS_FILE = "training_args.json"
_SECRET = re.compile(
    r".*(token|key|key_?id|password|passwd|passphrase|secret|credential|authorization|bearer|cookie)s?[\W_\d]*"
    r"|(.*[\W_])?(auth|pass|pwd|pw)[\W_\d]*",
    re.IGNORECASE | re.DOTALL,
)
_URL = re.compile(r"(?<=://)(?:\S*@)?([^\s?#]*)(?:[?#]\S*)?")  # user and password, what may stay, query and fragment
_ASSIGNED = re.compile(r"([\w-]+)(\s*[=:]\s*)([^\s,;&]+)")
_TOKEN = re.compile(r"\bhf_\w{8,}|(?<=\bBearer )\S+")
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
    class's name. Entries of dicts whose name says that they are secret (`is_secret`) are left out, and so are, within
    a text, values of such names, user, password and query of a URL, and tokens of the Hub. What is nested more than 20
    levels deep becomes "...".

    >>> plain({"model_init_kwargs": {"token": "hf_...", "device_map": None}, "url": "http://me:12@34@host:8000/?key=5"})
    {'model_init_kwargs': {'device_map': None}, 'url': 'http://host:8000/'}
    >>> plain("betas=0.9,api_token=1234")
    'betas=0.9,api_token=...'
    """
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, str):
        return _without_secrets(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):  # numpy's too
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth + 1) for name, one in value.items() if not is_secret(str(name))}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in _ordered(value)]
    if isinstance(value, Path) or (type(value).__module__, type(value).__name__) in _NAMED_BY_TEXT:
        return str(value).removeprefix("torch.")
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return plain(value.to_dict(), depth + 1) if hasattr(value, "to_dict") else type(value).__name__


def _without_secrets(text: str) -> str:
    text = _TOKEN.sub("...", _URL.sub(r"\1", text))
    return _ASSIGNED.sub(lambda pair: f"{pair[1]}{pair[2]}..." if is_secret(pair[1]) else pair[0], text)


def _ordered(values: Iterable[Any]) -> Iterable[Any]:
    """A set in an order that is the same in every run."""
    return sorted(values, key=str) if isinstance(values, set | frozenset) else values


def is_secret(name: str) -> bool:
    """Whether a setting of that name may hold a secret.

    That is one that ends in token, key, password, passphrase, secret, credentials, authorization, bearer, cookie,
    auth, pass or pwd, in any case, before any digits.

    >>> [is_secret(name) for name in ("hub_token", "aws_access_key_id", "Auth", "max_tokens_per_batch", "bypass")]
    [True, True, True, False, False]
    """
    return _SECRET.fullmatch(name) is not None
