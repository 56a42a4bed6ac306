"""GSM8K: grade-school word problems with a number as their answer (Cobbe et al. 2021, arXiv:2110.14168)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from .answers import as_number, gold_answer, solution_steps
from .base import Task, check_split, prompt_hash, take
from .sources import read_rows
from .verifiers import NumberVerifier


class GSM8K(Task):
    """7,473 training and 1,319 test problems; `question`, and `answer` with the number after `#### `.

    `level` is the number of calculator spans `<<...>>` of the solution, a measure of ours. The prompt is ours too.
    """

    name: ClassVar[str] = "gsm8k"
    hub_id: ClassVar[str | None] = "openai/gsm8k:main"
    verifier = NumberVerifier()
    instruction = NumberVerifier.instruction

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        check_split(self.name, split)
        source = source or str(self.hub_id)
        source = "openai/gsm8k:main" if source == "openai/gsm8k" else source  # it has no default config
        for row in read_rows(source, split, advice="GSM8K is openai/gsm8k, or a folder with train.jsonl, test.jsonl."):
            question, solution = (str(take(row, name, source)) for name in ("question", "answer"))
            number = as_number(gold_answer(solution))
            if number is None:
                raise ValueError(
                    f"source={source!r}: the answer {solution[-60:]!r} of {question[:60]!r} ends on no number."
                )
            yield {
                "question": question,
                "answer": format(number, "f"),
                "prompt_id": prompt_hash(self.name, question),
                "level": solution_steps(solution),
            }
