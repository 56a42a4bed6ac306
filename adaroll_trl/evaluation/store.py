"""What an evaluation leaves in its folder, so that nothing paid for is lost.

`completions.jsonl` grows while it runs, a line for each completion below a line with the settings, and is the resume
point; in the end it becomes `completions.parquet`, beside `results.json`. Both appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import write_json

JOURNAL, COMPLETIONS, RESULTS = "completions.jsonl", "completions.parquet", "results.json"


class CompletionStore:
    """The folder of one model and task.

    Args:
        folder (`Path`): made if it is not there.
        settings (`dict`): what decides on the completions; those of other settings are refused.
        overwrite (`bool`): delete what is there instead.

    Raises:
        ValueError: if the folder holds the completions of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.folder, self.settings = folder, dict(settings)
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            for name in (JOURNAL, COMPLETIONS, RESULTS):
                (folder / name).unlink(missing_ok=True)
        self.rows: list[dict[str, Any]] = []
        if (folder / RESULTS).exists():
            self._check(read_results(folder)["settings"])
        elif (folder / JOURNAL).exists():
            self._read_journal()
        else:
            self._append([self.settings])

    @property
    def finished(self) -> bool:
        return (self.folder / RESULTS).exists()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep completions; they are on the disk when this returns."""
        new = [dict(row) for row in rows]
        self._append(new)
        self.rows.extend(new)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the completions as Parquet and the results; the journal goes last."""
        import pyarrow
        from pyarrow import parquet

        temporary = self.folder / f"{COMPLETIONS}.tmp"
        parquet.write_table(pyarrow.Table.from_pylist(self.rows), temporary)
        os.replace(temporary, self.folder / COMPLETIONS)
        write_json(self.folder / RESULTS, {"settings": self.settings, **results}, indent=1)
        (self.folder / JOURNAL).unlink()

    def _read_journal(self) -> None:
        path = self.folder / JOURNAL
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a line that was being written when the run ended is lost
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            lines = [self.settings]
            whole = json.dumps(self.settings) + "\n"
        self._check(lines[0])
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self.rows = lines[1:]

    def _append(self, records: Iterable[Mapping[str, Any]]) -> None:
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())

    def _check(self, found: Mapping[str, Any]) -> None:
        for name in {**found, **self.settings}:
            if found.get(name) != self.settings.get(name):
                raise ValueError(
                    f"{self.folder} holds completions of {name}={found.get(name)!r}, this run has "
                    f"{name}={self.settings.get(name)!r}: choose another output_dir, or begin anew with "
                    "`--overwrite true`."
                )


def read_results(path: Path | str) -> dict[str, Any]:
    """What `finish` wrote: `path` is `results.json` or its folder.

    Raises:
        ValueError: if there is no such file, or it is not what `finish` writes.
    """
    file = Path(path)
    file = file / RESULTS if file.is_dir() else file
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        if not {"settings", "metrics", "prompts"} <= set(results):
            raise ValueError("it has no settings, metrics and prompts")
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not a result of `adaroll eval`: {error}") from error
    return dict(results)
