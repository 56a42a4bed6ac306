"""Files that are there in full or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path | str, value: Any, indent: int | None = None) -> None:
    """Write `value` as JSON at one stroke; the folder is made where it is missing.

    Whoever reads meanwhile sees the old file or the new one, and a process or a machine that dies leaves the old one.

    Raises:
        OSError: if the folder cannot be written to or the disk is full. No partial file is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    separators = (",", ":") if indent is None else None
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=indent, separators=separators) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
