"""The tables: our figures with their intervals beside the paper's, as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ..evaluation.compare import check_comparable, values_of
from ..evaluation.statistics import Estimate, mean_interval, paired_difference
from ..evaluation.store import read_results
from ..markdown import markdown_table
from .cells import Cell
from .paper import METHODS, OF_PAPER, TEST_PROMPTS, paper_accuracy

_ON_PAPER = (
    "The paper gives single runs without intervals; its six utilities are not public, ours stand in, and its headline "
    "AdaRoll figures stand beside `mixed`."
)
_ON_OURS = (
    "This table is not the paper's: each prompt comes back, in all arms as often, and `progress_carry` decides by its "
    "earlier visits (docs/recipes.md)."
)
HEADINGS = ("data set", "method", "ours", "paper", "ours - paper", "gain", "paper's gain")


@dataclass(frozen=True)
class Row:
    """A method on a model and data set, over all seeds. Figures are in percent.

    Attributes:
        state (`str`): "done", "failed", or how far it is.
        ours (`Estimate` or `None`): accuracy, each prompt's averaged over seeds.
        spread (`float` or `None`): standard deviation over seeds, from two seeds on.
        gain (`Estimate` or `None`): accuracy minus the baseline's, paired over prompts.
    """

    table: int
    model: str
    dataset: str
    method: str
    seeds: tuple[int, ...]
    state: str
    ours: Estimate | None
    spread: float | None
    gain: Estimate | None

    @property
    def paper(self) -> float | None:
        return None if self.table not in OF_PAPER else paper_accuracy(self.model, self.dataset, self.method)

    @property
    def paper_gain(self) -> float | None:
        baseline = METHODS[self.method].baseline
        before = None if baseline is None else paper_accuracy(self.model, self.dataset, baseline)
        return None if self.paper is None or before is None else self.paper - before


def make_rows(table: int, cells: Sequence[Cell], failures: Mapping[Path, str]) -> list[Row]:
    """The rows of a table from its cells. `failures` holds the reason by the cell's folder."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.dataset, cell.method.name), []).append(cell)
    return [_row(table, group, groups, failures) for group in groups.values()]


def _row(
    table: int, group: Sequence[Cell], groups: Mapping[tuple[str, str, str], list[Cell]], failures: Mapping[Path, str]
) -> Row:
    first = group[0]
    results = _results(group, failures)
    baseline = groups.get((first.model, first.dataset, str(first.method.baseline)), [])
    return Row(
        table,
        first.model,
        first.dataset,
        first.method.name,
        tuple(cell.seed for cell in group if first.method.trained),
        _state(group, failures),
        _estimate(results),
        float(np.std([values_of(one, "accuracy").mean() for one in results], ddof=1)) if len(results) > 1 else None,
        _gain(results, _results(baseline, failures)),
    )


def _results(cells: Sequence[Cell], failures: Mapping[Path, str]) -> list[dict[str, Any]]:
    done = [cell for cell in cells if cell.state() == "done" and cell.folder not in failures]
    return [read_results(cell.results) for cell in done]


def _state(cells: Sequence[Cell], failures: Mapping[Path, str]) -> str:
    if any(cell.folder in failures for cell in cells):
        return "failed"
    states = [cell.state() for cell in cells]
    return next((state for state in states if state != "done"), "done")


def _accuracies(results: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Accuracy of each prompt, averaged over seeds."""
    return np.mean([values_of(one, "accuracy") for one in results], axis=0)


def _estimate(results: Sequence[Mapping[str, Any]]) -> Estimate | None:
    if not results:
        return None
    samples = sum(one["prompts"][0]["num_samples"] for one in results)
    return mean_interval(_accuracies(results), samples)


def _gain(results: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]) -> Estimate | None:
    if not results or not baseline:
        return None
    check_comparable(baseline[0], results[0])
    return paired_difference(_accuracies(baseline), _accuracies(results))


def rich_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """A table for each model."""
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        title = f"Table {of_model[0].table}, {model}: test accuracy in percent, 95 % intervals over test prompts"
        table = Table(title=title, title_justify="left", title_style="bold")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
        before = None
        for row in of_model:
            if row.dataset != before:
                table.add_section()
            table.add_row(row.dataset if row.dataset != before else "", *_cells(row))
            before = row.dataset
        yield table


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        lines += ["", f"### Table {rows[0].table}, {model}", ""]
        lines += markdown_table(HEADINGS, ([row.dataset, *_cells(row)] for row in rows if row.model == model), texts=2)
    return "\n".join(lines[1:]) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """The same as CSV, each figure in a column of its own, in percent."""
    names = ["table", "model", "dataset", "method", "seeds", "state", "prompts", "accuracy", "low", "high", "seed_std"]
    names += ["paper", "gain", "gain_low", "gain_high", "paper_gain"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        ours, gain = row.ours, row.gain
        writer.writerow(
            [
                *(row.table, row.model, row.dataset, row.method, " ".join(map(str, row.seeds)), row.state),
                None if ours is None else ours.num_prompts,
                *_percents([None] * 3 if ours is None else [ours.value, ours.low, ours.high]),
                *_percents([row.spread]),
                row.paper,
                *_percents([None] * 3 if gain is None else [gain.value, gain.low, gain.high]),
                None if row.paper_gain is None else f"{row.paper_gain:.2f}",
            ]
        )
    return text.getvalue()


def notes(rows: Sequence[Row], cells: Sequence[Cell], failures: Mapping[Path, str]) -> list[str]:
    """What a reader of the tables must know."""
    lines = [
        "Intervals hold what other test prompts would change, not what another seed would. `gain` is over GRPO, Dr. "
        "GRPO or DAPO's loss without adaptive rollouts, paired over prompts. "
        + (_ON_PAPER if any(row.table in OF_PAPER for row in rows) else _ON_OURS)
    ]
    found = {row.dataset: row.ours.num_prompts for row in rows if row.ours is not None}
    other = [
        f"{name} {size} (paper {TEST_PROMPTS[name]})" for name, size in found.items() if size != TEST_PROMPTS[name]
    ]
    if other:
        lines.append(f"Not the paper's test sets, by their size: {', '.join(other)}.")
    failed = [cell for cell in cells if cell.folder in failures]
    return lines + [f"Failed: {cell.name}: {failures[cell.folder]}; log: {cell.log}" for cell in failed]


def _cells(row: Row) -> list[str]:
    """Method and figures of a row, as text."""
    label = METHODS[row.method].label
    unknown = "not public" if row.table in OF_PAPER else ""
    paper = unknown if row.paper is None else f"{row.paper:.2f}"
    if row.ours is None:
        return [label, row.state, paper, "", "", _signed(row.paper_gain)]
    ours = f"{100 * row.ours.value:.2f} ± {100 * row.ours.half_width:.2f}"
    if row.spread is not None:
        ours += f" (seeds ± {100 * row.spread:.2f})"
    if row.state != "done":
        ours += f" ({row.state})"
    difference = None if row.paper is None else 100 * row.ours.value - row.paper
    gain = "" if row.gain is None else f"{100 * row.gain.value:+.2f} ± {100 * row.gain.half_width:.2f}"
    return [label, ours, paper, _signed(difference), gain, _signed(row.paper_gain)]


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _percents(values: Sequence[float | None]) -> list[str | None]:
    return [None if value is None else f"{100 * value:.3f}" for value in values]
