"""The rows of the check, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Result = Literal["ok", "skipped", "FAILED"]
COLUMNS = ("check", "result", "seconds", "peak GiB", "note")


@dataclass(frozen=True)
class Row:
    """What came of one check.

    Attributes:
        check (`str`): its name.
        result (`str`): "ok", "skipped" (this machine cannot run it, or what it needs is not installed) or "FAILED".
        note (`str`): the numbers, or why not.
        seconds (`float` or `None`): how long it took, start of its process included; None where it was not run.
        peak_gib (`float` or `None`): the most memory that torch had allocated on the first GPU, in GiB.
    """

    check: str
    result: Result
    note: str
    seconds: float | None = None
    peak_gib: float | None = None


def exit_code(rows: Sequence[Row]) -> int:
    """1 where a check failed or none was made, else 0."""
    return int(not rows or any(row.result == "FAILED" for row in rows))


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table whose columns line up in a terminal as well; a bar in a note is escaped."""
    cells = [list(COLUMNS)] + [
        [
            row.check,
            row.result,
            "" if row.seconds is None else f"{row.seconds:.1f}",
            "" if row.peak_gib is None else f"{row.peak_gib:.2f}",
            " ".join(row.note.split()).replace("|", "\\|"),
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS) - 1)]
    right = [name in ("seconds", "peak GiB") for name in COLUMNS[:-1]]
    lines = []
    for line in cells:
        fitted = zip(line[:-1], widths, right, strict=True)
        padded = [cell.rjust(width) if numeric else cell.ljust(width) for cell, width, numeric in fitted]
        lines.append("| " + " | ".join([*padded, line[-1]]) + " |")
    rule = ["-" * (width + 1) + (":" if numeric else "-") for width, numeric in zip(widths, right, strict=True)]
    return "\n".join([lines[0], "|" + "|".join([*rule, "---"]) + "|", *lines[1:]])
