"""How much memory a solver may use, so that a table that cannot fit is refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path


def _meminfo_available(path: str = "/proc/meminfo") -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _cgroup_available(folder: str, limit: str, usage: str, cache: str) -> int | None:
    """What is left of a container's limit; pages that only cache files count as free, since the kernel drops them."""
    try:
        statistics = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
        in_use = int((Path(folder) / usage).read_text()) - int(statistics.get(cache, 0))
        return int((Path(folder) / limit).read_text()) - in_use
    except (OSError, ValueError):  # no such group, or "max": no limit
        return None


def available_bytes() -> int | None:
    """Bytes that can be allocated now without swapping, within the container's limit; None if it cannot be told."""
    known = [
        _meminfo_available(),
        _cgroup_available("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
        _cgroup_available("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "cache"),
    ]
    return min((value for value in known if value is not None), default=None)


def format_bytes(count: float) -> str:
    """`1.5 GB` for 1.5e9."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if count < 1000 or unit == "PB":
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
