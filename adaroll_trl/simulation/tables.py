"""What `adaroll simulate` and `adaroll plan` print."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from ..utilities import as_utility, make_utility
from .compare import BOUND, Row, Setting
from .measured import Measured
from .planning import EDGES, Expectation, ExpectedRollouts


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


def plan_tables(expected: ExpectedRollouts) -> list[Table]:
    """Prompts with signal; the utility, unless it is the same; and rollouts by pass rate."""
    utility, known = as_utility(expected.setting.utility), expected.setting.known
    tables = [_expectation_table(f"Prompts with signal, %{known}", expected, "signal", 100, 2)]
    if utility != make_utility("mixed"):
        tables.append(_expectation_table(f"Utility of a prompt, {utility.key}{known}", expected, "utility", 1, 4))
    return [*tables, _rollouts_table(expected)]


def _expectation_table(title: str, expected: ExpectedRollouts, quantity: str, scale: float, digits: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    plain = ["G", "rounds", "uniform", "adaroll", "gain", "bound"]
    if quantity == "signal":
        plain.append("rollouts\nwith signal")
    for heading in (*plain, "worth equal\ngroups of", "as much as\nuniform with", "saved, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in expected.rows:
        found: Expectation = getattr(row, quantity)
        match = found.match
        table.add_row(
            f"{row.num_generations}",
            f"{row.rounds}",
            Measured(found.uniform).text(scale, digits),
            found.adaptive.text(scale, digits),
            found.gain.text(scale, digits, "+"),
            Measured(found.bound).text(scale, digits),
            *([row.rollouts_with_signal.text(100)] if quantity == "signal" else []),
            found.equal_groups.text(),
            "-" if match.num_generations is None else f"G = {match.num_generations} ({match.equal_at.text()})",
            match.saving.text(100, 1),
        )
    return table


def _rollouts_table(expected: ExpectedRollouts) -> Table:
    title = f"Rollouts of a prompt, by its pass rate{expected.setting.known}"
    table = Table(title=title, title_justify="left", title_style="bold")
    bins = [f"{100 * low:g}-{100 * high:g} %" for low, high in pairwise(EDGES)]
    for heading in ("G", "rounds", *bins, "largest"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("", "prompts", *(f"{100 * mass:.1f} %" for mass in expected.bin_masses), "")
    for row in expected.rows:
        each = [one.text(1, 2) for one in row.rollouts]
        table.add_row(f"{row.num_generations}", f"{row.rounds}", *each, f"{row.largest_group}")
    return table


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
