"""Arms against GRPO: which runs are compared, with what correction, and how that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from planned import GRPO, planned_arms
from summary import Difference, Run, compare

from adaroll_trl.markdown import markdown_table

Cells = Mapping[tuple[str, str, str], Mapping[int, Run]]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(heads, rows)
    yield ""


def cell_text(difference: Difference, scale: float, digits: int = 1, finished: bool = True) -> str:
    if difference.seeds == 0 or not np.isfinite(difference.mean):
        return ""
    mean = f"{scale * difference.mean:+.{digits}f}"
    text = f"{mean} ± {scale * difference.half:.{digits}f}" if difference.seeds > 1 else f"{mean} (one seed)"
    return f"**{text}**" if finished and difference.found else text


def arms_of(cells: Cells, regime: str, factor: str = "") -> list[str]:
    return [arm for r, arm, f in cells if r == regime and f == factor and arm != GRPO]


def baseline(cells: Cells, regime: str, factor: str) -> Mapping[int, Run]:
    """GRPO's runs to compare with: those of the base point where it does not know the factor (rounds, minimum)."""
    return cells.get((regime, GRPO, factor)) or cells.get((regime, GRPO, ""), {})


def difference(cells: Cells, regime: str, arm: str, factor: str, outcome: Callable[[Run], float]) -> Difference:
    grpo, of = baseline(cells, regime, factor), cells.get((regime, arm, factor), {})
    return compare(of, grpo, outcome, len(planned_arms(regime, factor)))
