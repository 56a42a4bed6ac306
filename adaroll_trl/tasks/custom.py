"""Any data set of a user's own, by the names of its columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from .base import Task


class ColumnTask(Task):
    """A task out of any data set: a Hub id (`id` or `id:config`), or a local .jsonl, .json, .csv or .parquet file.

    `load(split, source)` first (`source` is needed), then `reward`: without `verifier`, the loaded gold answers decide
    how completions are compared with them.

    Args:
        prompt_column (`str`, *optional*): the question, or a conversation. None: the first usual name that is there.
        answer_column (`str`, *optional*): the gold answer; `#### 12` and `\\boxed{12}` inside a solution are found.
            None: the first usual name that is there.
        id_column (`str`, *optional*): becomes `prompt_id`. None: a hash of the prompt.
        level_column (`str`, *optional*): a difficulty such as 3 or "Level 3", becomes `level`.
        verifier (`str`, *optional*): `"number"`, `"math"`, `"letter"`, `"yes_no"` or `"text"`. None: guessed from the
            gold answers.
        instruction (`str`, *optional*): what each prompt ends with. None: the verifier's own.
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

    def records(self, split: str, source: str | None) -> Iterable[dict[str, Any]]:
        raise NotImplementedError("under way")

    def extract(self, completion: str) -> str | None:
        raise NotImplementedError("under way")

    def verify(self, completion: str, answer: str) -> bool:
        raise NotImplementedError("under way")
