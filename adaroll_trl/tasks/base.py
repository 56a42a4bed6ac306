"""What a task is: where its records come from, what the model is asked, and when a completion is right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from datasets import Dataset

Completion = str | list[dict[str, Any]]  # plain text, or a conversation


def completion_text(completion: Completion) -> str:
    """The text of a completion as TRL passes it to a reward function: a string, or the last message's content."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    return content if isinstance(content, str) else ""


class Task(ABC):
    """A data set with a verifiable answer.

    A subclass says how records are read (`records`) and when a completion is right (`verify`); the rest follows.

    Attributes:
        name (`str`): the name that `--task` takes.
        hub_id (`str` or `None`): the Hub id that records come from where no `source` is given.
    """

    name: ClassVar[str]
    hub_id: ClassVar[str | None] = None

    @abstractmethod
    def records(self, split: str, source: str | None) -> Iterable[dict[str, Any]]:
        """The records of a split, each with `question` (str), `answer` (str), `prompt_id` (str) and, where known,
        `level` (int).

        Args:
            split (`str`): `"train"` or `"test"`.
            source (`str` or `None`): Hub id or local path; None takes `hub_id`.

        Raises:
            ValueError: if there are no such records, with both ways of naming them.
        """

    @abstractmethod
    def extract(self, completion: str) -> str | None:
        """The answer that a completion gives, or None if it gives none."""

    @abstractmethod
    def verify(self, completion: str, answer: str) -> bool:
        """Whether the completion's answer is the gold answer. Never raises on any text, and ends in bounded time."""

    def question_text(self, record: dict[str, Any]) -> str:
        """What the user message says for a record."""
        return str(record["question"])

    def load(self, split: str = "train", source: str | None = None) -> Dataset:
        """The split as a TRL data set with the columns `prompt` (one user message), `answer`, `prompt_id` and, where
        records have one, `level`."""
        from datasets import Dataset

        rows = []
        for record in self.records(split, source):
            prompt = [{"role": "user", "content": self.question_text(record)}]
            kept = {name: record[name] for name in ("answer", "prompt_id", "level") if name in record}
            rows.append({"prompt": prompt, **kept})
        return Dataset.from_list(rows)

    @property
    def reward(self) -> Callable[..., list[float]]:
        """TRL reward function `<name>_accuracy`: 1.0 where the completion is right, else 0.0. Reads `answer`."""

        def accuracy(completions: list[Completion], answer: list[str], **kwargs: Any) -> list[float]:
            pairs = zip(completions, answer, strict=True)
            return [float(self.verify(completion_text(completion), gold)) for completion, gold in pairs]

        accuracy.__name__ = f"{self.name}_accuracy"
        return accuracy
