"""LogiQA: logical reasoning with four options (Liu et al. 2020, arXiv:2007.08124), version 1 in English."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .base import Task, check_split, prompt_hash, take
from .sources import READERS, read_rows
from .verifiers import LetterVerifier

LETTERS = "ABCD"
_LABEL = re.compile(r"([A-D])\s*[.．?？:、]\s*", re.IGNORECASE)  # noqa: RUF001


def _read_txt(path: Path) -> list[Any]:
    """The authors' format: eight lines a record, of which the first is blank."""
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(lines) % 8:
        raise ValueError(f"it has {len(lines)} lines; a record has 8: blank, letter, context, question, four options")
    rows = []
    for start in range(0, len(lines), 8):
        blank, letter, context, query, *options = lines[start : start + 8]
        if blank.strip() or letter.strip().upper() not in LETTERS or not letter.strip():
            raise ValueError(f"lines {start + 1} and {start + 2} should be blank and a letter a to d, not {letter!r}")
        rows.append({"context": context, "query": query, "options": options, "letter": letter.strip().upper()})
    return rows


_READERS = {**READERS, ".txt": _read_txt}


def in_label_order(options: list[str]) -> list[str]:
    """Options without their labels, in the order of the labels where they have all four.

    42 records of Eval.txt and Test.txt have an option that does not begin with its own letter. In 19 of them, all in
    Test.txt, the labels stand in the order A, C, B, D; the gold letter means the label, not the place, in each of the
    five that we solved by hand. In the other 23 a label is missing or inside the text, which stays as it is.

    >>> in_label_order(["A.red", "C.blue", "B.green", "D.grey"])
    ['red', 'green', 'blue', 'grey']
    >>> in_label_order(["A red one", "City B.S is big", "C green", "d.grey"])
    ['A red one', 'City B.S is big', 'green', 'grey']
    """
    labels = [_LABEL.match(option) for option in options]
    found = [label[1].upper() if label else None for label in labels]
    if sorted(map(str, found)) == list(LETTERS):
        ordered = sorted(zip(found, options, labels, strict=True), key=lambda one: str(one[0]))
        return [option[label.end() :].strip() for _, option, label in ordered if label]
    bare = [option.startswith(f"{letter} ") for option, letter in zip(options, LETTERS, strict=True)]
    bare[0] = bare[0] and bare[1]  # "A " alone may be an article
    return [
        option[label.end() if label and label[1].upper() == letter else 2 * plain :].strip()
        for option, letter, label, plain in zip(options, LETTERS, labels, bare, strict=True)
    ]


class LogiQA(Task):
    """7,376 training, 651 validation and 651 test questions; `context`, `query`, `options`, `correct_option` (0 to 3),
    or the authors' Train.txt, Eval.txt and Test.txt.

    The prompt is ours.
    """

    name: ClassVar[str] = "logiqa"
    hub_id: ClassVar[str | None] = "lucasmccabe/logiqa"
    verifier = LetterVerifier()
    instruction = LetterVerifier.instruction

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        check_split(self.name, split, ("train", "validation", "test"))
        source = source or str(self.hub_id)
        advice = "LogiQA is lucasmccabe/logiqa, or a folder with the authors' Train.txt, Eval.txt and Test.txt."
        for row in read_rows(source, split, readers=_READERS, advice=advice):
            context, query, options = (take(row, name, source) for name in ("context", "query", "options"))
            if len(options) != len(LETTERS):
                raise ValueError(f"source={source!r}: {query[:60]!r} has {len(options)} options, not four.")
            letter = row.get("letter") or _letter_of(take(row, "correct_option", source), source)
            options = in_label_order(list(options))
            lines = [f"{label}. {option}" for label, option in zip(LETTERS, options, strict=True)]
            question = "\n".join([str(context).strip(), str(query).strip(), *lines])
            yield {"question": question, "answer": letter, "prompt_id": prompt_hash(self.name, question)}


def _letter_of(place: Any, source: str) -> str:
    if str(place) not in ("0", "1", "2", "3"):
        raise ValueError(f"source={source!r}: correct_option={place!r} must be 0, 1, 2 or 3.")
    return LETTERS[int(place)]
