"""Rows of a data set from a Hub id, a local file or a local folder, with an error that says what is wrong."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# How the file of a split is usually called.
SPLIT_FILES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev", "eval"), "test": ("test",)}


def _read_jsonl(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _read_json(path: Path) -> list[Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):  # {"data": [...]}, as some sets are published
        content = next((value for value in content.values() if isinstance(value, list)), None)
    if not isinstance(content, list):
        raise ValueError("it holds no list of records")
    return content


def _read_csv(path: Path) -> list[Any]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _read_parquet(path: Path) -> list[Any]:
    from pyarrow import parquet

    return list(parquet.read_table(path).to_pylist())


Readers = dict[str, Callable[[Path], list[Any]]]

# Read here rather than with datasets.load_dataset, which would copy a local file into its cache first.
READERS: Readers = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}


def is_local(source: str, readers: Readers = READERS) -> bool:
    """Whether a source is a path rather than a Hub id: it exists, looks like a path, or ends like a data file."""
    path = Path(source).expanduser()
    return path.suffix in readers or path.exists() or source.startswith((".", "/", "~"))


def read_rows(
    source: str, split: str = "train", *, readers: Readers = READERS, files: Sequence[str] = (), advice: str = ""
) -> list[Row]:
    """The rows of a split.

    Args:
        source (`str`): a Hub id (`id` or `id:config`); a local file, taken as the split that is asked for; or a local
            folder with a file for each split (`train.jsonl`, `Test.txt`, `train-00000-of-00002.parquet`, ...) or with
            what `datasets` saved there (`save_to_disk`).
        split (`str`): `"train"`, `"validation"` or `"test"`; any name or slice that the Hub set has.
        readers (`dict`): how to read a file, by its suffix.
        files (sequence of `str`): names of files in a folder that hold every split.
        advice (`str`): a sentence for the error: where else the data can be had.

    Raises:
        ValueError: if there is no such file or set, or it does not hold records.
    """
    if is_local(source, readers):
        rows = _read_local(source, split, readers, files, advice)
    else:
        rows = _read_hub(source, split, advice)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"source={source!r} holds no records with named columns.")
    return rows


def _read_local(source: str, split: str, readers: Readers, files: Sequence[str], advice: str) -> list[Row]:
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(
            f"source={source!r}: there is no such file or folder. Give a Hub id or a local path.{_spaced(advice)}"
        )
    if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
        return _read_saved(path, split)
    paths = split_files(path, split, readers, files) if path.is_dir() else [path]
    rows: list[Row] = []
    for one in paths:
        if one.suffix not in readers:
            raise ValueError(f"source={source!r}: a local file must end in one of {', '.join(readers)}.")
        _check_split(one, split)
        try:
            rows.extend(readers[one.suffix](one))
        except (ValueError, OSError) as error:
            raise ValueError(f"source={str(one)!r} cannot be read as {one.suffix}: {error}") from error
    return rows


def split_files(folder: Path, split: str, readers: Readers = READERS, files: Sequence[str] = ()) -> list[Path]:
    """The files of a folder that hold a split, one or several shards.

    Raises:
        ValueError: if there are none, or several that are not shards of one.
    """
    usual = "|".join(SPLIT_FILES.get(split, (re.escape(split),)))
    pattern = re.compile(rf"(?:{usual})(?![a-z]).*", re.IGNORECASE)
    data = sorted(path for path in folder.rglob("*") if path.suffix in readers)
    found = [path for path in data if path.name in files] or [path for path in data if pattern.fullmatch(path.stem)]
    shards = all(re.search(r"-\d+-of-\d+$", path.stem) for path in found)
    if len(found) == 1 or (found and shards and len({path.parent for path in found}) == 1):
        return found
    names = ", ".join(str(path.relative_to(folder)) for path in (found or data)[:10]) or "no data files"
    problem = "several files" if found else "no file"
    raise ValueError(f"source={str(folder)!r} has {problem} for the split {split!r} (there: {names}). Name one file.")


def _check_split(path: Path, split: str) -> None:
    """Training on a file that calls itself the test set, or the reverse, is a mistake."""
    other = {"train": "test", "test": "train"}.get(split)
    if other is not None and re.match(rf"{other}(?![a-z])", path.stem, re.IGNORECASE):
        raise ValueError(
            f"source={str(path)!r} is called the {other} split, but the {split} split was asked for: give the folder "
            f"with both files, or the file of the {split} split."
        )


def _read_saved(path: Path, split: str) -> list[Row]:
    from datasets import DatasetDict, load_from_disk

    saved = load_from_disk(str(path))
    if isinstance(saved, DatasetDict):
        if split not in saved:
            raise ValueError(f"source={str(path)!r} has no split {split!r}; it has {', '.join(map(repr, saved))}.")
        saved = saved[split]
    return list(saved)


def _read_hub(source: str, split: str, advice: str) -> list[Row]:
    from datasets import config as datasets_config
    from datasets import load_dataset

    name, _, config = source.partition(":")
    try:
        try:
            return list(load_dataset(name, config or None, split=split))
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # Sets that are still published with a script have a copy of their rows on a branch of the Hub's own.
            return list(load_dataset(name, config or None, split=split, revision="refs/convert/parquet"))
    except Exception as error:  # the Hub client raises a dozen types; each means that the set is not to be had
        offline = datasets_config.HF_HUB_OFFLINE
        cached = " HF_HUB_OFFLINE is set: only what is in the local cache can be had." if offline else ""
        raise ValueError(
            f"source={source!r} is neither a local file or folder nor a data set that the Hub client can load (split "
            f"{split!r}): {first_line(error).rstrip('.')}.{cached} Give a Hub id or a local path.{_spaced(advice)}"
        ) from error


def _spaced(text: str) -> str:
    return f" {text}" if text else ""


def first_line(error: Exception) -> str:
    """The first line of an error's message that is not blank, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
