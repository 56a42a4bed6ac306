"""A completion's tokens as reward functions get them, before TRL decodes the whole batch.

TRL decodes inside the method that also generates, so what it will say has to be said again here. Whether both say the
same is checked for every row of every batch (`StreamedBatch.rewards`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from trl import chat_template_utils
from trl.data_utils import is_conversational


def decode(
    trainer: Any, prompts: Sequence[Any], prompt_ids: Sequence[list[int]], completion_ids: Sequence[list[int]]
) -> list[Any]:
    """Completions as text, or as messages where the prompts are messages."""
    if not is_conversational({"prompt": prompts[0]}):
        return list(trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True))
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    formats = ("response_template", "response_schema")  # the latter in transformers below 5.13
    if all(getattr(tokenizer, name, None) is None for name in formats):
        texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return [[{"role": "assistant", "content": text}] for text in texts]
    parse = chat_template_utils.parse_response
    known = inspect.signature(parse).parameters  # TRL 1.8 has no `tools`
    completions = []
    for prefix, ids in zip(prompt_ids, completion_ids, strict=True):
        own: dict[str, Any] = {"prefix": prefix, "tools": trainer.tools}
        completions.append([parse(tokenizer, ids, **{name: own[name] for name in own if name in known})])
    return completions
