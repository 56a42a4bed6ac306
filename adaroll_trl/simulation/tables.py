"""What `adaroll simulate` and `adaroll plan` print."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from .compare import BOUND, Row, Setting
from .planning import EDGES, ExpectedRollouts


def comparison_table(setting: Setting, rows: Sequence[Row]) -> Table:
    """A row for each allocator, in percent."""
    table = Table(title=setting.text, title_justify="left", title_style="bold")
    table.add_column("allocator", no_wrap=True)
    for heading in (
        "prompts with\nsignal, %",
        "rollouts with\nsignal, %",
        "utility of\na prompt",
        "gain over\nuniform",
        "of sequential\ngain, %",
        "batches",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.allocator,
            row.signal.text(100),
            row.rollouts_with_signal.text(100),
            row.utility.text(1, 4),
            row.gain.text(1, 4, "+"),
            row.sequential_share.text(100, 1),
            f"{row.batches:,}" if row.batches else "exact",
            style="dim" if row.allocator == BOUND else None,
        )
    return table


def plan_tables(expected: ExpectedRollouts) -> tuple[Table, Table]:
    """Prompts with signal and savings; and rollouts by pass rate."""
    signal = Table(title="Prompts with signal, %", title_justify="left", title_style="bold")
    for heading in ("G", "rounds", "uniform", "adaroll", "gain", "bound", "rollouts with signal"):
        signal.add_column(heading, justify="right", no_wrap=True)
    signal.add_column("as many as uniform with", justify="right", no_wrap=True)
    signal.add_column("saved, %", justify="right", no_wrap=True)
    rollouts = Table(title="Rollouts of a prompt, by its pass rate", title_justify="left", title_style="bold")
    bins = [f"{100 * low:g}-{100 * high:g} %" for low, high in pairwise(EDGES)]
    for heading in ("G", "rounds", *bins, "largest"):
        rollouts.add_column(heading, justify="right", no_wrap=True)
    shares = [f"{100 * mass:.1f} %" for mass in expected.bin_masses]
    rollouts.add_row("", "prompts", *shares, "")
    for row, match in zip(expected.rows, expected.matches, strict=True):
        enough = "-" if match.num_generations is None else f"G = {match.num_generations} ({match.equal_at.text()})"
        signal.add_row(
            f"{row.num_generations}",
            f"{row.rounds}",
            f"{100 * row.uniform:.2f}",
            row.adaptive.text(100),
            row.gain.text(100, 2, "+"),
            f"{100 * row.bound:.2f}",
            row.rollouts_with_signal.text(100),
            enough,
            match.saving.text(100, 1),
        )
        each = [one.text(1, 2) for one in row.rollouts]
        rollouts.add_row(f"{row.num_generations}", f"{row.rounds}", *each, f"{row.largest_group}")
    return signal, rollouts


def print_table(console: Console, table: Table, keys: Collection[str]) -> None:
    """Print a table that is wider than the console in parts, each with the columns `keys`; nothing is cut off."""
    for part in _parts(console, table, keys):
        console.width = max(console.width, _width(console, part))
        console.print(part)


def _width(console: Console, table: Table) -> int:
    return int(table.__rich_measure__(console, console.options.update_width(10_000)).maximum)


def _parts(console: Console, table: Table, keys: Collection[str]) -> Iterator[Table]:
    fixed = [column for column in table.columns if column.header in keys]
    rest = [column for column in table.columns if column.header not in keys]
    while rest:
        part = copy(table)
        part.columns = [*fixed, rest.pop(0)]
        while rest:
            part.columns = [*part.columns, rest[0]]
            if _width(console, part) > console.width:
                part.columns = part.columns[:-1]
                break
            rest.pop(0)
        yield part
        table.title = None
