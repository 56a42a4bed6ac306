"""What a task is: where its records come from, what the model is asked, and when a completion is right."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .verifiers import Verifier

if TYPE_CHECKING:
    from datasets import Dataset

Completion = str | list[dict[str, Any]]  # plain text, or a conversation
Prompt = str | list[dict[str, Any]]


def completion_text(completion: Completion) -> str:
    """What the model says in the end: a string as it is, or the content of a conversation's last message.

    Empty where a conversation ends on something that the model did not say, such as a tool's result.

    >>> completion_text([{"role": "tool", "content": "4"}, {"role": "assistant", "content": "It is 4."}])
    'It is 4.'
    >>> completion_text([{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "4"}])
    ''
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else {}
    if last.get("role", "assistant") != "assistant":
        return ""
    content = last.get("content")
    if isinstance(content, list):  # parts, as chat templates of processors want them
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def prompt_hash(name: str, text: str) -> str:
    """A `prompt_id` that depends on the task and the words of the prompt only: the same in every copy of a data set.

    >>> prompt_hash("gsm8k", "How many?")
    'gsm8k-c74cfe70c897'
    """
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def check_split(name: str, split: str, splits: Sequence[str] = ("train", "test")) -> None:
    """
    Raises:
        ValueError: if the task has no such split.
    """
    if split not in splits:
        raise ValueError(f"split={split!r}: the task {name!r} has {', '.join(map(repr, splits))}.")


def take(row: Mapping[str, Any], column: str, source: str) -> Any:
    """The value of a column that every row must have.

    Raises:
        ValueError: if there is none, with the columns that are there.
    """
    if row.get(column) is None or row[column] == "":
        raise ValueError(f"source={source!r}: a record has no {column!r}; it has {', '.join(map(repr, row))}.")
    return row[column]


def level_number(level: Any) -> int | None:
    """The number in a difficulty such as 3 or "Level 3"; None where there is none.

    >>> level_number("Level 3"), level_number("Level ?")
    (3, None)
    """
    digits = re.search(r"[0-9]+", str(level))
    return int(digits.group()) if digits else None


class Task(ABC):
    """A data set with a verifiable answer.

    A subclass says how records are read (`records`), and when a completion is right: by a `verifier`, or by `extract`
    and `verify` of its own. The rest follows.

    Attributes:
        name (`str`): the name that `--task` takes.
        hub_id (`str` or `None`): the Hub id that records come from where no `source` is given.
        verifier (`Verifier`): compares completions with gold answers, unless `extract` and `verify` are overridden.
        instruction (`str`): what each prompt ends with: how the final answer is to be stated. May be empty.
    """

    name: ClassVar[str]
    hub_id: ClassVar[str | None] = None
    verifier: Verifier
    instruction: str = ""

    @abstractmethod
    def records(self, split: str, source: str | None) -> Iterable[dict[str, Any]]:
        """The records of a split, each with `question` (str), `answer` (str), `prompt_id` (str) and, where known,
        `level` (int). Any other keys become columns too.

        Args:
            split (`str`): `"train"` or `"test"`.
            source (`str` or `None`): Hub id or local path; None takes `hub_id`.

        Raises:
            ValueError: if there are no such records, with both ways of naming them.
        """

    def extract(self, completion: str) -> str | None:
        """The answer that a completion gives, or None if it gives none."""
        return self.verifier.extract(completion)

    def verify(self, completion: str, answer: str) -> bool:
        """Whether the completion's answer is the gold answer. Never raises on any text, and ends in bounded time."""
        return self.verifier.verify(completion, answer)

    def readable(self, answer: str) -> bool:
        """Whether the verifier can read this gold answer. Where it cannot, no completion can be right or wrong."""
        return not hasattr(self, "verifier") or self.verifier.readable(answer)

    def question_text(self, record: dict[str, Any]) -> str:
        """What the user message says for a record, before the instruction."""
        return str(record["question"])

    def prompt(self, record: dict[str, Any], instruction: str | None = None) -> Prompt:
        """What the model continues: a conversation of one user message, the question and the instruction.

        Args:
            record (`dict`): one of `records`.
            instruction (`str`, *optional*): replaces the task's own; the empty string leaves it out.
        """
        last_words = self.instruction if instruction is None else instruction
        question = self.question_text(record)
        return [{"role": "user", "content": f"{question}\n\n{last_words}" if last_words else question}]

    def load(self, split: str = "train", source: str | None = None, instruction: str | None = None) -> Dataset:
        """A split as a TRL data set.

        Args:
            split (`str`): `"train"` or `"test"`.
            source (`str`, *optional*): Hub id (`id` or `id:config`), local file or local folder; None takes `hub_id`.
            instruction (`str`, *optional*): replaces the task's own; the empty string leaves it out.

        Returns:
            `datasets.Dataset` with the columns `prompt` (one user message), `answer`, `prompt_id` and, where records
            have one, `level`.

        Raises:
            ValueError: if there are no such records, with both ways of naming them.
        """
        from datasets import Dataset

        rows: list[dict[str, Any]] = []
        for record in self.records(split, source):
            row: dict[str, Any] = {"prompt": self.prompt(record, instruction)}
            rows.append(row | {name: value for name, value in record.items() if name != "question"})
        return Dataset.from_list(rows)

    def grade(self, completion: Completion, answer: str) -> float | None:
        """1.0 if the completion is right, 0.0 if not, None if the gold answer is not `readable`."""
        if not self.readable(answer):
            return None
        return float(self.verify(completion_text(completion), answer))

    @property
    def reward(self) -> Callable[..., list[float | None]]:
        """TRL reward function `<name>_accuracy`: `grade` of each completion. It reads the column `answer`.

        None where the gold answer cannot be read: TRL leaves such a completion out of this reward.
        """

        def accuracy(completions: list[Completion], answer: list[str], **kwargs: Any) -> list[float | None]:
            return [self.grade(completion, gold) for completion, gold in zip(completions, answer, strict=True)]

        accuracy.__name__ = f"{self.name}_accuracy"
        return accuracy
