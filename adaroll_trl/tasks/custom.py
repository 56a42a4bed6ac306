"""Any data set of a user's own, by the names of its columns."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from .answers import gold_answer, solution_steps
from .base import Completion, Prompt, Task, level_number, prompt_hash
from .mathematics import MathVerifier, require_math_verify
from .sources import Row, read_rows
from .verifiers import LetterVerifier, NumberVerifier, TextVerifier, Verifier, YesNoVerifier

PROMPT_COLUMNS = ("question", "problem", "prompt", "query", "instruction", "input")
ANSWER_COLUMNS = ("answer", "solution", "target", "output", "response")
VERIFIERS: dict[str, type[Verifier]] = {
    one.name: one for one in (NumberVerifier, MathVerifier, LetterVerifier, YesNoVerifier, TextVerifier)
}


def pick_verifier(answers: Sequence[str]) -> str:
    r"""The verifier that fits all of these gold answers: numbers, letters, yes or no, LaTeX (if any has a backslash),
    or text.

    >>> pick_verifier(["1", "$2,000"]), pick_verifier(["b", "A"]), pick_verifier(["12", r"\frac{1}{2}"])
    ('number', 'letter', 'math')
    """
    for kind in (NumberVerifier, LetterVerifier, YesNoVerifier):
        if all(map(kind().readable, answers)):
            return kind.name
    return "math" if any("\\" in answer for answer in answers) else "text"


class ColumnTask(Task):
    """A task out of any data set: a Hub id (`id` or `id:config`), or a local .jsonl, .json, .csv or .parquet file.

    `load(split, source)` first (`source` is needed), then `reward`: without `verifier`, the gold answers of the first
    split that is loaded decide how completions are compared with them. The data set's other columns stay, for reward
    functions of your own; without an answer column there is no reward but those. Rows without a prompt or an answer
    are left out, with a warning.

    Args:
        prompt_column (`str`, *optional*): the question, or a conversation. None: the first usual name that is there.
        answer_column (`str`, *optional*): the gold answer; `#### 12` and `\\boxed{12}` inside a solution are found.
            None: the first usual name that is there.
        id_column (`str`, *optional*): becomes `prompt_id`. None: a hash of the prompt; of prompt and answer where one
            prompt has several gold answers.
        level_column (`str`, *optional*): a difficulty such as 3 or "Level 3", becomes `level`. None: the data set's
            own `level`, or the calculator spans of a solution in GSM8K's form.
        verifier (`str`, *optional*): `"number"`, `"math"`, `"letter"`, `"yes_no"` or `"text"`. None: guessed from the
            gold answers.
        instruction (`str`, *optional*): what each prompt ends with. None: the verifier's own; none where the prompt is
            a conversation.

    Raises:
        ValueError: if there is no such verifier.
    """

    name: ClassVar[str] = "answer"

    def __init__(
        self,
        prompt_column: str | None = None,
        answer_column: str | None = None,
        *,
        id_column: str | None = None,
        level_column: str | None = None,
        verifier: str | None = None,
        instruction: str | None = None,
    ):
        self.prompt_column, self.answer_column = prompt_column, answer_column
        self.id_column, self.level_column = id_column, level_column
        self.own_instruction = instruction
        self.columns: tuple[str, ...] | None = None  # of the loaded data, where no answers are among them
        if verifier is not None:
            self._choose(verifier)

    def _choose(self, verifier: str) -> None:
        if verifier not in VERIFIERS:
            raise ValueError(f"verifier={verifier!r} is not known. Use one of {', '.join(map(repr, VERIFIERS))}.")
        if verifier == MathVerifier.name:
            require_math_verify()
        self.verifier = VERIFIERS[verifier]()
        self.instruction = self.verifier.instruction if self.own_instruction is None else self.own_instruction

    def records(self, split: str, source: str | None) -> list[dict[str, Any]]:
        if not source:
            raise ValueError("A task made of columns needs a source: a Hub id (`id` or `id:config`) or a local path.")
        return self.records_of(read_rows(source, split))

    def records_of(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The records of rows that have been read, and from them the verifier where none was named.

        Raises:
            ValueError: if a column is not there, an id stands for two prompts, or a gold answer is a list.
        """
        columns = list(rows[0])
        prompt = _column(columns, "prompt_column", self.prompt_column, PROMPT_COLUMNS)
        if prompt is None:
            raise ValueError(
                f"None of the data set's columns ({', '.join(columns)}) has a usual name for the question: say "
                "prompt_column."
            )
        answer = _column(columns, "answer_column", self.answer_column, ANSWER_COLUMNS)
        for option in ("id_column", "level_column"):
            _column(columns, option, getattr(self, option), ())
        used = [prompt] if answer is None else [prompt, answer]
        complete = [row for row in rows if all(row.get(name) not in (None, "", []) for name in used)]
        if len(complete) < len(rows):
            warnings.warn(
                f"{len(rows) - len(complete)} of {len(rows)} rows have nothing in {' or '.join(map(repr, used))} and "
                "are left out.",
                stacklevel=2,
            )
        if not complete:
            raise ValueError(f"No row has something in {' and '.join(map(repr, used))}.")
        records = [self._record(row, prompt, answer) for row in complete]
        if self.id_column is None and answer is not None:
            self._tell_apart(records)
        _check_ids(records)
        self.columns = tuple(columns) if answer is None else None
        if answer is not None and not hasattr(self, "verifier"):
            self._choose(pick_verifier([record["answer"] for record in records]))
        elif answer is None:
            self.instruction = self.own_instruction or ""
        return records

    def _record(self, row: Row, prompt: str, answer: str | None) -> dict[str, Any]:
        question = row[prompt]
        text = question if isinstance(question, str) else json.dumps(question, sort_keys=True, default=str)
        record = {name: value for name, value in row.items() if name not in ("prompt", "prompt_id", "question")}
        record["question"] = question
        record["prompt_id"] = prompt_hash(self.name, text) if self.id_column is None else str(row[self.id_column])
        if answer is not None:
            gold = row[answer]
            if isinstance(gold, (list, tuple, dict)):
                raise ValueError(
                    f"answer_column={answer!r} holds {str(gold)[:60]}, but a gold answer must be one text, number or "
                    "true/false: name another column, or make a column with one answer out of it."
                )
            record["answer"] = ("yes" if gold else "no") if isinstance(gold, bool) else gold_answer(str(gold))
            if "level" not in row and (steps := solution_steps(str(gold))) is not None:
                record["level"] = steps
        if self.level_column is not None:
            record["level"] = level_number(row[self.level_column])
        return record

    def _tell_apart(self, records: Sequence[dict[str, Any]]) -> None:
        """A question with several gold answers is several prompts: each has a success rate of its own."""
        golds: dict[str, set[str]] = {}
        for record in records:
            golds.setdefault(record["prompt_id"], set()).add(record["answer"])
        for record in records:
            if len(golds[record["prompt_id"]]) > 1:
                record["prompt_id"] = prompt_hash(self.name, f"{record['prompt_id']}\n{record['answer']}")

    def prompt(self, record: dict[str, Any], instruction: str | None = None) -> Prompt:
        question = record["question"]
        if isinstance(question, str):
            return super().prompt(record, instruction)
        last_words = self.own_instruction if instruction is None else instruction
        if not last_words:
            return list(question)
        *before, last = question
        return [*before, {**last, "content": f"{last['content']}\n\n{last_words}"}]

    @property
    def reward(self) -> Callable[..., list[float | None]]:
        """As of every task.

        Raises:
            ValueError: if the data that was loaded has no answers.
        """
        if self.columns is not None:
            raise ValueError(
                f"The data set has no answers to compare with; its columns are {', '.join(self.columns)}. Name one "
                "with answer_column, or give reward functions of your own."
            )
        return super().reward

    def grade(self, completion: Completion, answer: str) -> float | None:
        if not hasattr(self, "verifier"):
            raise ValueError("Nothing says how to compare answers: load a split first, or name a verifier.")
        return super().grade(completion, answer)


def _column(columns: Sequence[str], option: str, given: str | None, usual: Iterable[str]) -> str | None:
    """The column that the user named, or the first of the usual names that exists, if any."""
    if given is not None and given not in columns:
        raise ValueError(f"{option}={given!r}: the data set has no such column; it has {', '.join(columns)}.")
    return given or next((name for name in usual if name in columns), None)


def _check_ids(records: Sequence[dict[str, Any]]) -> None:
    prompts: dict[str, Any] = {}
    for record in records:
        first = prompts.setdefault(record["prompt_id"], record["question"])
        if first != record["question"]:
            raise ValueError(
                f"id_column: {record['prompt_id']!r} stands for two prompts, {str(first)[:60]!r} and "
                f"{str(record['question'])[:60]!r}. Leave id_column out: prompts are then told apart by a hash."
            )
