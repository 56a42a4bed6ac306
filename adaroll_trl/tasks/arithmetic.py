"""Generated arithmetic: needs no download, and spans the whole range of success rates for a small language model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .base import Task

_NUMBER = re.compile(r"-?\d[\d,]*")


class Arithmetic(Task):
    """Sums, differences and products of whole numbers of one to three digits.

    `source` is `"<number of records>"` or `"<number of records>:<seed>"` (default `"2000:0"`). Train and test share no
    question. `level` is the number of digits of both operands, and 1 more for a product.
    """

    name: ClassVar[str] = "arithmetic"

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        size, _, seed = (source or "2000:0").partition(":")
        rng = np.random.default_rng([int(seed or 0), 0 if split == "train" else 1])
        seen: set[str] = set()
        while len(seen) < int(size):
            digits = rng.integers(1, 4, size=2)
            a, b = (int(rng.integers(10 ** (d - 1), 10**d)) for d in digits)
            operator = "+-*"[rng.integers(0, 3)]
            question = f"{a} {operator} {b}"
            # Which split a question belongs to depends on its numbers only, so that the splits never meet.
            if question in seen or ((7 * a + 13 * b) % 10 == 0) != (split == "test"):
                continue
            seen.add(question)
            answer = {"+": a + b, "-": a - b, "*": a * b}[operator]
            level = int(digits.sum()) + (operator == "*")
            yield {"question": question, "answer": str(answer), "prompt_id": question, "level": level}

    def question_text(self, record: dict[str, Any]) -> str:
        return f"What is {record['question']}? Answer with the number only."

    def extract(self, completion: str) -> str | None:
        numbers = _NUMBER.findall(completion)
        return numbers[-1].replace(",", "") if numbers else None

    def verify(self, completion: str, answer: str) -> bool:
        return self.extract(completion) == answer
