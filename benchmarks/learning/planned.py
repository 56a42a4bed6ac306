"""Which runs each table of the page needs: from the design, so that nothing stored decides what counts as complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from design import STAGES, seeds_of
from regimes import REGIMES

GRPO = "grpo"
_PLANNED = {(cell.regime, cell.arm, cell.factor): cell for stage in STAGES.values() for cell in stage}


def planned_runs() -> set[tuple[tuple[str, str, str], int]]:
    """((regime, arm, factor), seed) of all stages."""
    return {(key, seed) for key in _PLANNED for seed in seeds_of(key[2])}


def tables() -> list[tuple[str, str]]:
    """(regime, factor) of every comparison with GRPO; the base point has no factor."""
    found = {(regime, factor) for regime, arm, factor in _PLANNED if arm != GRPO}
    return sorted(found, key=lambda table: (list(REGIMES).index(table[0]), table[1]))


def planned_arms(regime: str, factor: str) -> list[str]:
    """The arms of a table, without GRPO."""
    return [arm for r, arm, f in _PLANNED if (r, f) == (regime, factor) and arm != GRPO]


def complete(cells: Mapping[tuple[str, str, str], Mapping[int, Any]], regime: str, factor: str) -> bool:
    """Whether all planned runs of a table, and those that it compares with, are stored."""
    due = [key for key in _PLANNED if key[0] == regime and key[2] == factor]
    if (regime, GRPO, factor) not in due:
        due.append((regime, GRPO, ""))
    return all(cells.get(key, {}).keys() >= set(seeds_of(key[2])) for key in due)
