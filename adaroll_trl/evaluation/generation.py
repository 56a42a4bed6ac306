"""Sampling a model outside its training: the one place where prompts become token ids and completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import torch

Prompt: TypeAlias = "str | list[dict[str, Any]]"  # plain text, or a conversation


@dataclass(frozen=True)
class Completion:
    """A sampled text.

    Attributes:
        text (`str`): without special tokens.
        num_tokens (`int`): with the token that ended it.
        finished (`bool`): whether the model ended it; False where `max_tokens` cut it off.
    """

    text: str
    num_tokens: int
    finished: bool


def tokenizer_of(processing_class: Any) -> Any:
    """The tokenizer of a processor, or the tokenizer itself."""
    return getattr(processing_class, "tokenizer", processing_class)


def prompt_token_ids(processing_class: Any, prompt: Prompt) -> list[int]:
    """The ids that the model continues, special tokens once each, as TRL makes them in training.

    Args:
        processing_class: tokenizer, or processor of a vision-language model.
        prompt: plain text, or a conversation of text, for the chat template.

    Raises:
        ValueError: for a conversation without a chat template.
    """
    if isinstance(prompt, str):
        return list(tokenizer_of(processing_class)(prompt)["input_ids"])
    if processing_class.chat_template is None:
        raise ValueError(
            f"{type(processing_class).__name__} has no chat template, and the prompts are conversations: use an "
            "instruction-tuned model, or save a chat template with it."
        )
    if processing_class is not tokenizer_of(processing_class):  # templates of processors expect lists of parts
        from trl.data_utils import prepare_multimodal_messages

        prompt = prepare_multimodal_messages(prompt)
    encoded = processing_class.apply_chat_template(
        [prompt], add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(encoded["input_ids"][0])


@contextmanager
def _sampling_mode(model: Any, seed: int) -> Iterator[None]:
    """Evaluation mode and a generator of its own, so that looking at a policy does not change its training."""
    was_training = model.training
    model.eval()
    try:
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(seed)
            yield
    finally:
        model.train(was_training)


def sample_completions(
    model: Any,
    processing_class: Any,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    batch_size: int,
    seed: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> list[Completion]:
    """One completion of each prompt. Changes neither the model's mode nor torch's random state.

    Args:
        model: a model with `generate`, in any mode.
        processing_class: its tokenizer or processor.
        prompts (sequence of `Prompt`): repeat a prompt to sample it several times.
        max_tokens (`int`): tokens of a completion, at most.
        batch_size (`int`): prompts in one call of `generate`.
        seed (`int`): of the sampling; the same seed, prompts and batch size give the same completions.
        temperature (`float`): 0 takes the likeliest token each time.
        top_p (`float`): nucleus sampling, in (0, 1]. The model's own sampling defaults are not used.
    """
    tokenizer = tokenizer_of(processing_class)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    ends = _end_tokens(model, tokenizer)
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": top_p}
    completions: list[Completion] = []
    with _sampling_mode(model, seed):
        for start in range(0, len(prompts), batch_size):
            ids = []
            for prompt, same in groupby(prompts[start : start + batch_size]):  # those of a prompt follow each other
                ids += [prompt_token_ids(processing_class, prompt)] * len(list(same))
            input_ids, mask = _pad_left(ids, pad, model.device)
            output = model.generate(
                input_ids=input_ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                pad_token_id=pad,
                eos_token_id=ends,
                use_cache=True,
                **sampling,
            )
            rows = output[:, input_ids.shape[1] :].tolist()
            completions.extend(_completion(tokenizer, row, ends) for row in rows)
    return completions


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """What ends a completion: the model's own end tokens (a chat model may have several) and the tokenizer's."""
    own = model.generation_config.eos_token_id
    found = own if isinstance(own, list) else [own]
    return sorted({int(token) for token in [*found, tokenizer.eos_token_id] if token is not None})


def _pad_left(rows: list[list[int]], pad: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, int64 of shape (rows, longest)."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def _completion(tokenizer: Any, ids: list[int], ends: list[int]) -> Completion:
    last = next((place for place, token in enumerate(ids) if token in ends), None)
    kept = ids if last is None else ids[: last + 1]
    return Completion(tokenizer.decode(kept, skip_special_tokens=True), len(kept), last is not None)
