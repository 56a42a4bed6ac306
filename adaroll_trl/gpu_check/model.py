"""A tiny random Llama with a byte-level tokenizer and a chat template: made on the spot, so nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ["<pad>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """300 tokens: all bytes, the special tokens, and a few merges of questions about sums."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([f"What is {i} + {j}?" for i in range(20) for j in range(20)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def build_model_dir(
    path: Path,
    layers: int = 2,
    heads: int = 2,
    head_dim: int = 32,
    positions: int = 256,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write model and tokenizer to a folder, and return it. The same arguments give the same weights.

    Args:
        path (`Path`): the folder; it is made.
        layers, heads (`int`): of the Llama; as many key and value heads as query heads.
        head_dim (`int`): vLLM's attention wants 32 or more on a CPU, flash attention a multiple of 8.
        positions (`int`): the longest sequence, in tokens.
        dtype (`torch.dtype`): of the weights on disk, which vLLM takes for its own.
    """
    tokenizer = build_tokenizer()
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=heads * head_dim,
        intermediate_size=2 * heads * head_dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(dtype).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def main(folder: str, device: str) -> None:
    """The model of the check: larger on a GPU, in the precision that it is trained in."""
    if device == "cpu":
        build_model_dir(Path(folder))
    else:
        build_model_dir(Path(folder), layers=4, heads=4, head_dim=64, positions=1024, dtype=torch.bfloat16)


if __name__ == "__main__":
    main(*sys.argv[1:])
