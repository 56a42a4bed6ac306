"""Markdown for pages of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> Iterator[str]:
    """The lines of a table whose first `texts` columns are text, on the left, and the others numbers, on the right."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * texts + "---:|" * (len(heads) - texts)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
