"""Files that are there in full or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path | str, value: Any, indent: int | None = None) -> None:
    """Write `value` as JSON at one stroke; the folder is made where it is missing.

    Whoever reads meanwhile sees the old file or the new one, and a process that dies leaves the old one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    separators = (",", ":") if indent is None else None
    temporary.write_text(json.dumps(value, indent=indent, separators=separators) + "\n", encoding="utf-8")
    os.replace(temporary, path)
