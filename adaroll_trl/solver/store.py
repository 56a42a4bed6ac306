"""Solved tables on disk: one file a table, found by what it was solved for, never trusted unread.

A file is

    adaroll_trl-table <format version> <crc32 of the header, 8 hex digits>\\n
    {"key": {...}, "arrays": [{"name", "dtype", "shape", "offset"}, ...], "payload_bytes", "payload_crc32"}\\n
    zero bytes up to a multiple of 64, then each array in C order, each at a multiple of 64

so that `head -2` shows what a table is, and its arrays are mapped into memory instead of read. `key` holds everything
that the table depends on; the file's name is a hash of it. Both checksums are verified whenever a file is opened, big
or small: CRC-32 runs at about a gigabyte a second, far faster than any table is solved. A checksum says nothing of
who wrote the file, so what the header claims is checked too: arrays are of plain numbers and lie within the file, and
nothing that is read from it runs code, or takes memory beyond it.

A file is written under a temporary name in the same folder and renamed, so that it exists whole or not at all. While
one process builds a table it holds a lock (`flock`) beside it and the others wait; the system drops the lock when its
holder dies, however it dies. A folder that cannot be written to, or a full disk, costs a warning and the next process
another build, nothing else. Where the file system has no locks, processes may build the same table side by side: the
last rename wins, and all of them are right.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..files import written_whole

try:
    import fcntl
except ImportError:  # not a POSIX system: no locks, see above
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
CACHE_DIR_VARIABLE = "ADAROLL_CACHE_DIR"
_MAGIC = b"adaroll_trl-table"
_ALIGNMENT = 64
_LONGEST_LINE = 1 << 20
_PLAIN_NUMBERS = re.compile(r"[<>|][biuf][1248]")  # what `dtype.str` is for them

logger = logging.getLogger(__name__)

Key: TypeAlias = Mapping[str, Any]
Arrays: TypeAlias = dict[str, NDArray[Any]]


class TableFileError(RuntimeError):
    """A table file that cannot be used; the message names the file and what is wrong with it."""


class TableStoreWarning(UserWarning):
    """A table could not be read from or written to the store; it was, or will be, solved again."""


def default_directory() -> Path:
    """$ADAROLL_CACHE_DIR, else adaroll_trl in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache)."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adaroll_trl"


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _as_bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _describe(key: Key, arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, list[int]]:
    """The header line and the offset of each array, counted from the start of the payload."""
    entries, offsets, end, checksum = [], [], 0, 0
    for name, array in arrays.items():
        start = _aligned(end)
        checksum = zlib.crc32(_as_bytes(array), zlib.crc32(bytes(start - end), checksum))
        end = start + array.nbytes
        entries.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape), "offset": start})
        offsets.append(start)
    header = {"key": dict(key), "arrays": entries, "payload_bytes": end, "payload_crc32": f"{checksum:08x}"}
    return json.dumps(header).encode() + b"\n", offsets


def write_table(path: str | os.PathLike[str], key: Key, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes `arrays`, solved for `key` (JSON values only), to `path`: whole or not at all.

    Raises:
        OSError: if the folder cannot be written to or the disk is full. No partial file is left behind.
    """
    path = Path(path)
    header, offsets = _describe(key, arrays)
    first = b"%s %d %08x\n" % (_MAGIC, FORMAT_VERSION, zlib.crc32(header))
    payload_start = _aligned(len(first) + len(header))
    with written_whole(path) as file:
        file.write(first + header)
        for offset, array in zip(offsets, arrays.values(), strict=True):
            file.write(bytes(payload_start + offset - file.tell()))
            file.write(_as_bytes(array))


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The checked header and where the payload starts."""
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
        fields = first.split()
        if not fields or fields[0] != _MAGIC or len(fields) != 3:
            raise TableFileError(f"{path} is not a table file of adaroll_trl: its first line is {first[:40]!r}.")
        if fields[1] != b"%d" % FORMAT_VERSION:
            raise TableFileError(
                f"{path} has format version {fields[1].decode(errors='replace')}; this release reads version "
                f"{FORMAT_VERSION}. Solve the table again."
            )
        line = file.readline(_LONGEST_LINE)
    if b"%08x" % zlib.crc32(line) != fields[2]:
        raise TableFileError(f"{path} is damaged: the checksum of its header does not match. Solve the table again.")
    try:
        header = json.loads(line)
        _check_header(header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TableFileError(
            f"{path} is not a table file of adaroll_trl: its header claims what cannot be. {error!r}."
        ) from error
    return header, _aligned(len(first) + len(line))


def _check_header(header: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless every array is of plain numbers and within the payload."""
    end = header["payload_bytes"]
    if not (isinstance(header["key"], dict) and _is_size(end) and isinstance(header["payload_crc32"], str)):
        raise ValueError(f"key, payload_bytes={end!r} or payload_crc32")
    for entry in header["arrays"]:
        name, dtype, shape, offset = (entry[field] for field in ("name", "dtype", "shape", "offset"))
        if not (isinstance(name, str) and _PLAIN_NUMBERS.fullmatch(dtype)):
            raise ValueError(f"array {name!r} of dtype {dtype!r}")
        if not (isinstance(shape, list) and len(shape) < 32 and all(map(_is_size, [*shape, offset]))):
            raise ValueError(f"array {name!r} of shape {shape!r} at {offset!r}")
        if offset + math.prod(shape) * np.dtype(dtype).itemsize > end:
            raise ValueError(f"array {name!r} of shape {shape!r} in {end} bytes")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def read_table(path: str | os.PathLike[str], key: Key | None = None) -> tuple[dict[str, Any], Arrays]:
    """The key and the arrays of a table file, the arrays mapped read-only.

    Args:
        path (path): the file.
        key (mapping, *optional*): what the table must have been solved for.

    Raises:
        FileNotFoundError: if there is no such file.
        TableFileError: if it is damaged, truncated, of another format version, no table, or solved for another key.
    """
    path = Path(path)
    header, start = _read_header(path)
    if key is not None and header["key"] != json.loads(json.dumps(dict(key))):
        raise TableFileError(f"{path} is foreign: it holds a table for {header['key']}, not for {dict(key)}.")
    expected, found = start + header["payload_bytes"], path.stat().st_size
    if found != expected and header["payload_bytes"]:
        what = "truncated" if found < expected else "damaged"
        raise TableFileError(f"{path} is {what}: it has {found} bytes and should have {expected}.")
    payload = np.zeros(0, dtype=np.uint8)
    if header["payload_bytes"]:
        payload = np.memmap(path, dtype=np.uint8, mode="r", offset=0)[start:]
    if f"{zlib.crc32(payload.data):08x}" != header["payload_crc32"]:
        raise TableFileError(f"{path} is damaged: the checksum of its arrays does not match. Solve the table again.")
    return header["key"], {entry["name"]: _view(payload, entry) for entry in header["arrays"]}


def _view(payload: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(entry["dtype"])
    size = int(np.prod(entry["shape"], dtype=np.int64)) * dtype.itemsize
    return payload[entry["offset"] : entry["offset"] + size].view(dtype).reshape(entry["shape"])


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; does nothing where the file system has no locks. OSError if it cannot be made."""
    descriptor = _acquire(path)
    try:
        yield
    finally:
        # Removed while still held, so that no folder fills up with lock files; `_acquire` copes with the removal.
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _wait_for(descriptor, path):
            return descriptor
        try:
            # The holder before us may have removed the file that we waited on: then another may hold the new one.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path) -> bool:
    """Takes the lock, waiting if need be; False where there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process that is building %s", path.with_suffix(""))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        logger.info("no lock for %s (%s): other processes may build the same table", path, error)
        return False
    return True


class TableStore:
    """A folder of solved tables.

    Args:
        directory (path, *optional*): the folder, made when the first table is written. Defaults to
            `default_directory()`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     arrays = TableStore(folder).get({"solver": "none", "n": 3}, lambda: {"squares": np.arange(3) ** 2})
    ...     arrays["squares"].tolist()
    [0, 1, 4]
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = Path(directory).expanduser() if directory is not None else default_directory()

    def __repr__(self) -> str:
        return f"TableStore({str(self.directory)!r})"

    def path(self, key: Key) -> Path:
        """The file that holds, or would hold, the table for `key`."""
        text = json.dumps({"format": FORMAT_VERSION, **key}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self.directory / f"{key.get('solver', 'table')}-{digest}.table"

    def get(self, key: Key, build: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
        """The arrays for `key`: from disk if they are there and sound, else from `build`, which then is stored.

        Args:
            key (mapping of JSON values): everything that the arrays depend on; `key["solver"]` names the file.
            build (callable): solves the table. Called at most once, under the table's lock.

        Warns:
            TableStoreWarning: if a file was there but not usable, or the table could not be stored.
        """
        path = self.path(key)
        arrays = self._read(path, key, warn=False)
        if arrays is not None:
            return arrays
        with contextlib.ExitStack() as stack:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold_lock(path.with_name(path.name + ".lock")))
            except OSError as error:
                self._warn_not_stored(path, error)
                return dict(build())
            arrays = self._read(path, key, warn=True)  # another process may have built it while we waited
            return arrays if arrays is not None else self._build(path, key, build)

    def _build(self, path: Path, key: Key, build: Callable[[], Mapping[str, NDArray[Any]]]) -> Arrays:
        for left_over in self.directory.glob(f"{path.name}.*.tmp"):  # of a builder that was killed: we hold its lock
            with contextlib.suppress(OSError):
                left_over.unlink()
        built = dict(build())
        try:
            write_table(path, key, built)
            return read_table(path, key)[1]
        except (OSError, TableFileError) as error:
            self._warn_not_stored(path, error)
            return built

    @staticmethod
    def _read(path: Path, key: Key, *, warn: bool) -> Arrays | None:
        try:
            return read_table(path, key)[1]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, TableFileError) as error:
            if warn:
                warnings.warn(f"{error} {path} is rebuilt.", TableStoreWarning, stacklevel=4)
            return None

    @staticmethod
    def _warn_not_stored(path: Path, error: Exception) -> None:
        message = (
            f"the table could not be stored as {path} ({error}); it stays in memory and is solved again next time."
        )
        warnings.warn(message, TableStoreWarning, stacklevel=4)
