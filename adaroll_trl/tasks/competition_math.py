r"""MATH: competition problems with an expression as their answer (Hendrycks et al. 2021, arXiv:2103.03874).

The original `hendrycks/competition_math` was taken down after a notice by a publisher; copies of the same 12,500
problems are on the Hub under other names. Whether you may use one is for you to find out. Testing is on MATH-500, the
500 of the 5,000 test problems that Lightman et al. 2023 (arXiv:2305.20050) held out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .answers import last_boxed
from .base import Task, check_split, level_number, prompt_hash, take
from .mathematics import MathVerifier
from .sources import Row, is_local, read_rows

_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_ADVICE = (
    "MATH is on the Hub as DigitalLearningGmbH/MATH-lighteval, EleutherAI/hendrycks_math (train and test) and "
    "HuggingFaceH4/MATH-500 (test); or give a folder with train and test files, or with the original's one file a "
    "problem (train/algebra/1.json)."
)


class CompetitionMath(Task):
    r"""7,500 training problems and the 500 test problems of MATH-500; `problem`, `level` ("Level 3"), and `solution`
    with the answer in its last `\boxed{}`, or `answer`.

    The prompt is ours. A gold answer that math-verify cannot parse gives no reward, neither 1 nor 0.
    """

    name: ClassVar[str] = "math"
    hub_id: ClassVar[str | None] = "DigitalLearningGmbH/MATH-lighteval"
    test_hub_id: ClassVar[str] = "HuggingFaceH4/MATH-500"
    verifier = MathVerifier()
    instruction = MathVerifier.instruction

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        check_split(self.name, split)
        source = source or str(self.hub_id if split == "train" else self.test_hub_id)
        for row in _rows(source, split):
            problem = str(take(row, "problem", source))
            answer = (
                str(row["answer"]).strip() if row.get("answer") else last_boxed(str(take(row, "solution", source)))
            )
            if not answer:
                raise ValueError(f"source={source!r}: the solution of {problem[:60]!r} has no \\boxed{{}} answer.")
            yield {
                "question": problem,
                "answer": answer,
                "prompt_id": prompt_hash(self.name, problem),
                "level": level_number(row.get("level")),
            }


def _rows(source: str, split: str) -> list[Row]:
    if source == "EleutherAI/hendrycks_math":  # a config for each subject
        return [row for subject in _SUBJECTS for row in read_rows(f"{source}:{subject}", split, advice=_ADVICE)]
    folder = Path(source).expanduser() / split
    if is_local(source) and folder.is_dir():
        problems = sorted(folder.glob("*/*.json"), key=lambda path: (path.parent.name, len(path.stem), path.stem))
        if problems:
            return [json.loads(path.read_text(encoding="utf-8")) for path in problems]
    return read_rows(source, split, advice=_ADVICE)
