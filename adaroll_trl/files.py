"""Files that are there in full or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well.

    Whoever reads meanwhile sees the old file or the new one, and a process or a machine that dies leaves the old one.

    Raises:
        OSError: if the folder cannot be written to or the disk is full. No partial file is left behind.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path | str, value: Any, indent: int | None = None) -> None:
    """Write `value` as JSON at one stroke, see `written_whole`; the folder is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if indent is None else None
    with written_whole(path) as file:
        file.write((json.dumps(value, indent=indent, separators=separators) + "\n").encode("utf-8"))
