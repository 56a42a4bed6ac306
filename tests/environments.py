"""What the tests of tools, environments and `rollout_func` act out: a model that calls tools, and what it calls."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl.chat_template_utils import qwen3_chat_template

from tests.compatibility import BUDGET, number_in
from tests.tiny import build_tokenizer, completions_of, prompts_of


def echoing_rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """One completion a prompt, which starts with the prompt's own number, and fields that rewards can read."""
    tokenizer, random = trainer.processing_class, np.random.default_rng(len(prompts) + trainer.state.global_step)
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True, return_dict=False) for p in prompts]
    completions = [
        [*tokenizer(f"{number_in(p)}:", add_special_tokens=False)["input_ids"], int(random.integers(5, 200)), 1]
        for p in prompts
    ]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completions,
        "logprobs": [[-1.0] * len(ids) for ids in completions],
        "env_mask": [[1] * (len(ids) - 1) + [0] for ids in completions],
        "seen": [number_in(p) for p in prompts],
        "backend": "local",
    }


TOOL_SPECIAL = ["<pad>", "<|im_end|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<tool_response>"]


def build_tool_model_dir(path: Path) -> Path:
    """A tiny Llama whose chat template can call tools (Qwen3's, which TRL knows how to parse)."""
    base = build_tokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base.backend_tokenizer,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        chat_template=qwen3_chat_template,
    )
    tokenizer.add_tokens(TOOL_SPECIAL[1:], special_tokens=False)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class ScriptedModel:
    """Stands in for `generate`: calls the tool on every other prompt, with the number of the row's own prompt."""

    def __init__(self, trainer: Any) -> None:
        self.tokenizer = trainer.processing_class
        self.random = np.random.default_rng(0)
        trainer.model.generate = self

    def __call__(self, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        texts = [self.tokenizer.decode(ids) for ids in input_ids]
        rows = [
            torch.tensor(self.tokenizer(self.answer(text), add_special_tokens=False)["input_ids"]) for text in texts
        ]
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        padded = torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=pad) for row in rows])
        return torch.cat([input_ids, padded], dim=1)

    def answer(self, text: str) -> str:
        number = number_in(text)
        if number % 2 and "<tool_response>" not in text:
            call = json.dumps({"name": "add", "arguments": {"a": number, "b": number}})
            return f"<tool_call>\n{call}\n</tool_call><|im_end|>"
        return f"{number} is {self.random.integers(10, 99)}<|im_end|>"


def check_tool_rows(trainer: Any, outputs: list[dict[str, Any]], result: Any = lambda n: 2 * n) -> None:
    """Rows of odd prompts called the tool with their own number, and its answer is masked from the loss."""
    for output in outputs:
        texts = [trainer.processing_class.decode(ids) for ids in completions_of(output)]
        called = 0
        for prompt, text, mask in zip(prompts_of(output), texts, output["tool_mask"], strict=True):
            number = number_in(trainer.processing_class.decode(prompt))
            answers = re.findall(r"<tool_response>\n(\S+)\n</tool_response>", text)
            assert answers == ([str(result(number))] if number % 2 else [])
            assert bool((mask == 0).any()) == bool(number % 2)
            called += number % 2
        assert 0 < called < BUDGET
        assert output["num_items_in_batch"] == (output["completion_mask"] * output["tool_mask"]).sum()
    last = trainer.state.log_history[2]
    assert last["tools/call_frequency"] == pytest.approx(called / BUDGET)
    assert last["tools/failure_frequency"] == 0


TOOLS: dict[str, Any] = {"max_completion_length": 160, "shuffle_dataset": False}


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        The sum.
    """
    return a + b


async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


add_later.__name__, add_later.__doc__ = add.__name__, add.__doc__


class Adder:
    """An environment whose tool adds a secret that `reset` draws from the row."""

    def reset(self, number: int, **kwargs: Any) -> str:
        self.number, self.calls = number, 0
        return f" Secret {100 + number}."

    def add(self, a: int, b: int) -> int:
        """
        Add two numbers and the secret.

        Args:
            a: The first number.
            b: The second number.

        Returns:
            The sum.
        """
        assert a == self.number
        self.calls += 1
        return a + b + 100 + self.number

    def get_reward(self) -> float:
        return float(self.calls)


class Doubler(Adder):
    """Another environment, for rows that name it."""
