"""Tables on disk: written whole, verified on opening, built once, and never needed."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from adaroll_trl.solver import compiled
from adaroll_trl.solver import store as store_module
from adaroll_trl.solver.store import (
    TableFileError,
    TableStore,
    TableStoreWarning,
    default_directory,
    read_table,
    write_table,
)

KEY = {"solver": "test", "n": 3, "prior": [1.0, 0.5], "name": None}


def arrays():
    return {
        "actions": np.arange(-100, 100, dtype=np.int8),
        "values": np.linspace(0, 1, 1001),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "square": np.arange(6, dtype=np.int64).reshape(2, 3),
    }


class Counter:
    def __init__(self):
        self.builds = 0

    def __call__(self):
        self.builds += 1
        return arrays()


def assert_same(found):
    assert list(found) == list(arrays())
    for name, expected in arrays().items():
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert np.array_equal(found[name], expected)


def test_round_trip_is_mapped_aligned_and_read_only(tmp_path):
    write_table(tmp_path / "a.table", KEY, arrays())
    key, found = read_table(tmp_path / "a.table")
    assert key == KEY
    assert_same(found)
    assert not found["values"].flags.writeable
    assert found["values"].ctypes.data % 64 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.table"]


def test_the_header_can_be_read_by_eye(tmp_path):
    write_table(tmp_path / "a.table", KEY, arrays())
    with open(tmp_path / "a.table", "rb") as file:
        assert re.fullmatch(rb"adaroll_trl-table 1 [0-9a-f]{8}\n", file.readline())
        assert json.loads(file.readline())["key"] == KEY


def test_built_once_then_found(tmp_path):
    build, store = Counter(), TableStore(tmp_path / "made" / "when needed")
    for _ in range(3):
        assert_same(store.get(KEY, build))
    assert build.builds == 1
    assert [path.suffix for path in store.directory.iterdir()] == [".table"], "no lock or temporary file stays"
    store.get({**KEY, "n": 4}, build)
    assert build.builds == 2


def flip(offset):
    def damage(path):
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    return damage


def older(path):
    path.write_bytes(path.read_bytes().replace(b"adaroll_trl-table 1", b"adaroll_trl-table 0", 1))


def another_table(path):
    write_table(path, {**KEY, "n": 99}, arrays())


DAMAGE = {
    "flipped byte in the arrays": (flip(-1), "is damaged: the checksum of its arrays"),
    "flipped byte in the header": (flip(40), "is damaged: the checksum of its header"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 10), "is truncated: it has"),
    "truncated in the header": (lambda path: os.truncate(path, 60), "is damaged: the checksum of its header"),
    "empty": (lambda path: os.truncate(path, 0), "is not a table file"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "is damaged: it has"),
    "older format": (older, "has format version 0"),
    "not a table": (lambda path: path.write_bytes(b"\x00\xff" * 500), "is not a table file"),
    "another table": (another_table, "is foreign: it holds a table for"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_bad_file_is_named_and_rebuilt(tmp_path, damage, message):
    build, store = Counter(), TableStore(tmp_path)
    store.get(KEY, build)
    path = store.path(KEY)
    damage(path)
    with pytest.raises((TableFileError, OSError), match=message):
        read_table(path, KEY)
    with pytest.warns(TableStoreWarning) as caught:
        assert_same(store.get(KEY, build))
    assert build.builds == 2
    text = str(caught[0].message)
    assert str(path) in text
    assert message in text
    if path.is_file():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(store.get(KEY, build))
        assert build.builds == 2


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = TableStore(tmp_path / "file" / "below")
    with pytest.warns(TableStoreWarning, match="could not be stored"):
        assert_same(store.get(KEY, arrays))


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_costs_a_warning(tmp_path, monkeypatch, code):
    def refuse(*_args, **_options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module.os, "open", refuse)
    with pytest.warns(TableStoreWarning, match=os.strerror(code)):
        assert_same(TableStore(tmp_path).get(KEY, arrays))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_a_warning_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.warns(TableStoreWarning, match="No space left"):
        assert_same(TableStore(tmp_path).get(KEY, arrays))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def no_locks(*_args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(store_module.fcntl, "flock", no_locks)
    build = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(TableStore(tmp_path).get(KEY, build))
        assert_same(TableStore(tmp_path).get(KEY, build))
    assert build.builds == 1


def test_an_error_while_building_is_passed_on_and_frees_the_lock(tmp_path):
    def fail():
        raise MemoryError("too big")

    store = TableStore(tmp_path)
    with pytest.raises(MemoryError, match="too big"):
        store.get(KEY, fail)
    assert_same(store.get(KEY, arrays))


BUILDER = """
import os, sys, time
import numpy as np
from adaroll_trl.solver.store import TableStore

folder, start, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

def build():
    open(os.path.join(folder, f"built-{os.getpid()}"), "x").close()
    time.sleep(seconds)
    return {"x": np.arange(10)}

time.sleep(max(0.0, start - time.time()))
print(TableStore(folder).get({"solver": "test"}, build)["x"].sum())
"""


def start_builder(folder, start=0.0, seconds=0.5):
    command = [sys.executable, "-W", "error", "-c", BUILDER, str(folder), str(start), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def builders(folder):
    return list(folder.glob("built-*"))


def test_processes_that_start_at_once_build_once(tmp_path):
    start = time.time() + 3.0
    processes = [start_builder(tmp_path, start) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["45"] * 3
    assert len(builders(tmp_path)) == 1
    assert [path.suffix for path in tmp_path.iterdir() if path not in builders(tmp_path)] == [".table"]


def test_a_builder_that_is_killed_holds_nobody_up(tmp_path):
    first = start_builder(tmp_path, seconds=600)
    while not builders(tmp_path):
        time.sleep(0.05)
    second = start_builder(tmp_path, seconds=0)
    time.sleep(1.0)
    assert second.poll() is None
    assert len(builders(tmp_path)) == 1, "the second waits while the first builds"
    left_over = TableStore(tmp_path).path({"solver": "test"}).name + ".abc.tmp"
    (tmp_path / left_over).write_text("half a table")
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=60)
    assert second.communicate(timeout=60)[0].strip() == "45"
    assert len(builders(tmp_path)) == 2
    assert not (tmp_path / left_over).exists()
    first.stdout.close()


def test_the_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("ADAROLL_CACHE_DIR", raising=False)
    assert default_directory() == tmp_path / "xdg" / "adaroll_trl"
    monkeypatch.setenv("ADAROLL_CACHE_DIR", str(tmp_path / "mine"))
    assert TableStore().directory == tmp_path / "mine"
    monkeypatch.delenv("ADAROLL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "adaroll_trl"


def test_the_wait_for_compilation_is_told_once_per_process(monkeypatch, caplog):
    monkeypatch.setattr(compiled, "NOTICE_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(compiled, "_told", False)
    for run_all in (lambda: time.sleep(0.2), lambda: time.sleep(0.2)):
        compiled.compile_once(run_all)
        compiled._done.discard(run_all)
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "adaroll_trl compiles its solver (about a minute of processor time"
    ]


def test_a_changed_kernel_file_makes_the_code_of_its_callers_stale(tmp_path):
    """Numba alone would go on with the old callee, which is compiled into its caller in another file."""
    package = tmp_path / "library" / "kernels"
    package.mkdir(parents=True)
    source = Path(compiled.__file__).parent
    (package.parent / "files.py").write_text((source.parent / "files.py").read_text())
    (package.parent / "__init__.py").write_text("")
    for name in ("compiled.py", "store.py", "progress.py"):
        (package / name).write_text((source / name).read_text())
    (package / "__init__.py").write_text("")
    (package / "caller.py").write_text(
        "from .callee import one\nfrom .compiled import kernel\n\n@kernel()\ndef twice():\n    return 2 * one()\n"
    )
    callee = "from .compiled import kernel\n\n@kernel()\ndef one():\n    return {}\n"
    results = []
    for value in (1, 1, 5):
        (package / "callee.py").write_text(callee.format(value))
        program = "from library.kernels.caller import twice; print(twice(), sum(twice.stats.cache_hits.values()))"
        run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
        results.append(run.stdout.split())
    assert results == [["2", "0"], ["2", "1"], ["10", "0"]]
