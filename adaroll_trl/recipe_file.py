"""What is wrong with a recipe as a YAML file, before its keys are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml


def check_recipe_file(path: str) -> None:
    """Refuse a file that is no YAML, and one that says the same thing twice: YAML would silently take the last.

    Raises:
        ValueError: naming the file, the line (from 1), and the key.
        OSError: if the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            loader = yaml.SafeLoader(file)
            root = loader.get_single_node()
            if root is not None:
                loader.construct_document(root)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"The config file {path!r} is no valid YAML{where}: {reason}.") from error
    for key, first, second in _twice(root):
        raise ValueError(f"The config file {path!r} has {key!r} twice, in lines {first} and {second}. Remove one.")


def _twice(node: Any) -> Iterator[tuple[str, int, int]]:
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _twice(part)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if name in seen:
                yield name, seen[name], line
            seen[name] = line
            yield from _twice(value)
