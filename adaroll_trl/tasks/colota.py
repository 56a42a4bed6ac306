"""CoLoTa: yes-or-no questions about little-known entities (Toroghi et al. 2025), its question-answering part."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from .base import Task, check_split, prompt_hash, take
from .sources import Row, read_rows
from .verifiers import YesNoVerifier

TEST_SHARE = (170, 1_691)  # the paper's test set, of all records
SPLIT_SEED = 0

# This record repeats its question where the answer belongs. By its own reasoning steps, the time span that it asks
# about fell short.
READ_FROM_STEPS = {"S39": "no"}


class CoLoTa(Task):
    """1,691 questions, `id`, `query` and `answer` (bool), which the paper on AdaRoll-GRPO splits into 1,521 and 170.

    Which ones it tests on is not public. Here a hash of the question decides, whatever the order of the file, with yes
    and no as frequent in the test split as in all; the copies of a question (12 questions make up 25 records) are in
    one split. All records are used: the answer of S39, which holds text where the bool belongs, is read from its
    reasoning steps. The id S200 stands twice, for two questions; `prompt_id` is made of the question instead. The
    prompt is ours.
    """

    name: ClassVar[str] = "colota"
    verifier = YesNoVerifier()
    instruction = YesNoVerifier.instruction

    def records(self, split: str, source: str | None) -> Iterator[dict[str, Any]]:
        check_split(self.name, split)
        if source is None:
            raise ValueError(
                "The task 'colota' needs a source: its authors publish CoLoTa_qa.json, and no Hub id is in common "
                "use. Give the local path of that file or of its folder, or a Hub id whose train split has the "
                "columns query and answer."
            )
        rows = read_rows(source, "train", files=("CoLoTa_qa.json",), advice="CoLoTa is published as CoLoTa_qa.json.")
        records = [_record(self.name, row, source) for row in rows]
        test = _test_questions(records)
        for record in records:
            if (record["prompt_id"] in test) == (split == "test"):
                yield record


def _record(name: str, row: Row, source: str) -> dict[str, Any]:
    query, answer = " ".join(str(take(row, "query", source)).split()), take(row, "answer", source)
    said = READ_FROM_STEPS.get(row.get("id", "")) if answer == row["query"] else str(answer).strip().lower()
    words = {"true": "yes", "yes": "yes", "false": "no", "no": "no"}
    if said not in words:
        raise ValueError(f"source={source!r}: answer={answer!r} of {query!r} must be true or false.")
    return {"question": query, "answer": words[said], "prompt_id": prompt_hash(name, query.casefold())}


def _test_questions(records: list[dict[str, Any]]) -> set[str]:
    """The ids of the test split's questions: in the order of a hash, the test set's share of each answer's records."""
    wanted = _share(len(records))
    of_yes = _share(sum(record["answer"] == "yes" for record in records))
    chosen: set[str] = set()
    for answer, left in (("yes", of_yes), ("no", wanted - of_yes)):
        counts = Counter(record["prompt_id"] for record in records if record["answer"] == answer)
        for question in sorted(counts, key=lambda name: hashlib.blake2b(f"{SPLIT_SEED} {name}".encode()).digest()):
            if counts[question] <= left:
                chosen.add(question)
                left -= counts[question]
    return chosen


def _share(number: int) -> int:
    return round(number * TEST_SHARE[0] / TEST_SHARE[1])
