"""Generated arithmetic: needs no download, and spans the whole range of success rates for a small language model."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .base import Task, check_split

_NUMBER = re.compile(r"-?\d[\d,]*")
_EXAMPLES = {"12 + 30": "42", "5 * 6": "30"}
_OPERATORS = "+-*"
_FORM = "It must be '<number of records>', '<number>:<seed>' or '<number>:<seed>:<operators>', as in '2000:0:+-*'."
_Cells = dict[tuple[str, int, int], list[tuple[int, int]]]


class Arithmetic(Task):
    """Sums and differences of whole numbers of one and two digits, and products with a number of one digit.

    `source` is `"<number of records>"`, `"<number>:<seed>"` or `"<number>:<seed>:<operators>"`, by default
    `"2000:0:+-*"`. Operators are equally frequent, and so are the numbers of digits within an operator, until the
    questions of a kind are used up. No question comes twice. Train and test share no question for any two sources,
    and `a + b` is on the same side as `b + a`. `level` is the number of digits of both operands.

    The prompt is plain text, two solved examples and the question, for a model to continue: SmolLM2-135M-Instruct
    solves hardly anything when asked in its chat template, and a third of this.
    """

    name: ClassVar[str] = "arithmetic"

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        check_split(self.name, split)
        size, seed, operators = _parse(source or "2000")
        rng = np.random.default_rng([seed, 0 if split == "train" else 1])
        cells = _cells(operators, test=split == "test")
        available = sum(map(len, cells.values()))
        if size > available:
            raise ValueError(f"source={source!r} asks for {size} records, but {split!r} has {available} of them.")
        for pairs in cells.values():
            rng.shuffle(pairs)
        for _ in range(size):
            operator = rng.choice(sorted({kind[0] for kind, pairs in cells.items() if pairs}))
            kinds = [kind for kind, pairs in cells.items() if pairs and kind[0] == operator]
            kind = kinds[rng.integers(len(kinds))]
            a, b = cells[kind].pop()
            question = f"{a} {operator} {b}"
            answer = {"+": a + b, "-": a - b, "*": a * b}[str(operator)]
            yield {"question": question, "answer": str(answer), "prompt_id": question, "level": kind[1] + kind[2]}

    def question_text(self, record: dict[str, Any]) -> str:
        """Solved examples, and the question as the last line."""
        solved = "".join(f"{question} = {answer}\n" for question, answer in _EXAMPLES.items())
        return f"{solved}{record['question']} ="

    def prompt(self, record: dict[str, Any], instruction: str | None = None) -> Any:
        """The text that the model continues; no conversation.

        Raises:
            ValueError: for an instruction, which this prompt has no place for.
        """
        if instruction:
            raise ValueError(f"instruction={instruction!r}: the task {self.name!r} has none. Leave it out.")
        return self.question_text(record)

    def extract(self, completion: str) -> str | None:
        """The first whole number: a model that continues the examples goes on with questions of its own."""
        number = _NUMBER.search(completion)
        return number.group().replace(",", "") if number else None

    def verify(self, completion: str, answer: str) -> bool:
        return self.extract(completion) == answer


def _parse(source: str) -> tuple[int, int, str]:
    size, _, rest = source.partition(":")
    seed, _, operators = rest.partition(":")
    operators = operators or _OPERATORS
    if not (size.isdecimal() and int(size) > 0 and (seed or "0").isdecimal() and set(operators) <= set(_OPERATORS)):
        raise ValueError(f"source={source!r} is no arithmetic. {_FORM}")
    return int(size), int(seed or 0), operators


def _cells(operators: str, test: bool) -> _Cells:
    """The questions of one side, by operator and the operands' digits."""
    cells: _Cells = {}
    for operator in sorted(set(operators)):
        for a in range(1, 100):
            for b in range(1, 10 if operator == "*" else 100):
                if operator == "-" and a < b:
                    continue
                if f"{a} {operator} {b}" not in _EXAMPLES and _is_test(a, operator, b) == test:
                    cells.setdefault((operator, len(str(a)), len(str(b))), []).append((a, b))
    return cells


def _is_test(a: int, operator: str, b: int) -> bool:
    """Every fifth question, by its numbers only."""
    low, high = (a, b) if operator == "-" else sorted((a, b))
    return zlib.crc32(f"{low} {operator} {high}".encode()) % 5 == 0
