"""A Llama of 83 thousand parameters with a tokenizer of single characters, and its supervised warm-up.

Reinforcement learning needs a policy that succeeds sometimes. The warm-up is ordinary next-character training on
problems of the built-in task, stopped early: it leaves a model whose success rate falls smoothly with the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .problems import LONGEST, SHORTEST, Problem, string_problem

CHARACTERS = "0123456789RS="
WARM_UP_STEPS = 300
_BATCH = 64
_LEARNING_RATE = 3e-3


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; left padding, since the prompts are generated from."""
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=64,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Two layers, hidden size 64, untrained."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def _encode(tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the right, and labels that are -100 on the prompt and on the padding."""
    width = 2 * LONGEST + 3  # the operation, the string, "=", the answer, <eos>
    ids = torch.full((len(problems), width), int(tokenizer.pad_token_id))
    labels = torch.full((len(problems), width), -100)
    for row, problem in enumerate(problems):
        prompt = tokenizer(problem.prompt)["input_ids"]
        answer = [*tokenizer(problem.answer)["input_ids"], tokenizer.eos_token_id]
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    steps: int,
    seed: int,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train `model` in place on `steps` batches of fresh problems. `on_step(step, loss)` follows along.

    Short strings are drawn more often than long ones, so the warm-up leaves a wide spread of difficulty.
    """
    rng = np.random.default_rng(seed)
    lengths = np.arange(SHORTEST, LONGEST + 1)
    chances = (LONGEST + 1 - lengths) / (LONGEST + 1 - lengths).sum()
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps + 1, pct_start=0.1)
    model.train()
    for step in range(steps):
        problems = [string_problem(rng, int(length)) for length in rng.choice(lengths, size=_BATCH, p=chances)]
        ids, labels = _encode(tokenizer, problems)
        logits = model(input_ids=ids).logits[:, :-1]  # padding on the right is out of sight of a causal model
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step + 1, loss.item())
    model.eval()
