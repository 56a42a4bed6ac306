"""Twins of the three models and samples of the four data sets, generated here: all cells run on a CPU.

The twins have the architectures of the real models (two Llamas of different size, Gemma3ForConditionalGeneration with
a processor) and one tokenizer. A few supervised steps teach them to answer with a random box (`\\boxed{3}`), so that
they are right about as often as chance: there is something to reward, and nothing to conclude from the figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)

from ..evaluation.generation import prompt_token_ids, tokenizer_of
from ..tasks import get_task
from .paper import DATASETS, MODELS

TRAIN, TEST = 48, 24  # records of a data set
WARM_UP_STEPS = 40

OVERRIDES: dict[str, Any] = {"use_cpu": True, "disable_tqdm": True}
# Instead of what the recipes set for eight GPUs.
REPLACEMENTS: dict[str, Any] = {
    "bf16": False,
    "use_vllm": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch",
    "num_generations": 4,
    "max_rollouts": 16,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 4,
    "soft_punish_cache": 2,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "save_steps": 1,
    "save_total_limit": 1,
}

_SPECIAL = [
    "<pad>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<image_soft_token>",
    "<start_of_image>",
    "<end_of_image>",
]
_ANSWERS = {"math": "1234", "gsm8k": "1234", "logiqa": "ABCD", "colota": ("yes", "no")}
_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_IMAGE_SIZE, _PATCH = 28, 14


def write_data(folder: Path) -> None:
    """A folder for each data set, in its authors' format."""
    rng = np.random.default_rng(0)
    for name in DATASETS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for split, size in (("train", TRAIN), ("test", TEST)):
        _write_jsonl(folder / "math" / f"{split}.jsonl", [_math(rng) for _ in range(size)])
        _write_jsonl(folder / "gsm8k" / f"{split}.jsonl", [_gsm8k(rng) for _ in range(size)])
        lines = [line for _ in range(size) for line in _logiqa(rng)]
        (folder / "logiqa" / f"{split.title()}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    colota = [_colota(rng, number) for number in range(10 * TEST)]  # a tenth of it is the test split
    (folder / "colota" / "CoLoTa_qa.json").write_text(json.dumps(colota), encoding="utf-8")


def _write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _math(rng: np.random.Generator) -> dict[str, Any]:
    answer, added, factor = rng.integers(1, [5, 90, 90])
    problem = f"Solve ${factor} x + {added} = {factor * answer + added}$ for $x$."
    solution = f"${factor} x = {factor * answer}$, so $x = \\boxed{{{answer}}}$."
    return {"problem": problem, "level": f"Level {rng.integers(1, 6)}", "type": "Algebra", "solution": solution}


def _gsm8k(rng: np.random.Generator) -> dict[str, Any]:
    answer, eaten = rng.integers(1, [5, 900])
    question = f"Ann has {answer + eaten} plums and eats {eaten}. How many are left?"
    return {"question": question, "answer": f"<<{answer + eaten}-{eaten}={answer}>>{answer}\n#### {answer}"}


def _logiqa(rng: np.random.Generator) -> list[str]:
    heights = rng.choice(900, size=4, replace=False) + 1000
    context = "Four towers: " + ", ".join(
        f"{letter} is {h} feet high" for letter, h in zip("ABCD", heights, strict=True)
    )
    options = [f"{letter}.The tower {letter}." for letter in "ABCD"]
    return ["", "abcd"[int(np.argmax(heights))], f"{context}.", "Which is the highest?", *options]


def _colota(rng: np.random.Generator, number: int) -> dict[str, Any]:
    first, second = rng.choice(np.arange(1500, 1990), size=2, replace=False)
    query = f"Was the painter {number} (born in {first}) older than the painter born in {second}?"
    return {"id": f"S{number}", "query": query, "answer": bool(first < second)}


def build_twins(folder: Path, data: Path, models: Sequence[str] = MODELS) -> dict[str, str]:
    """The twins' folders by the name of the model; `data` is what `write_data` wrote."""
    prompts = {name: get_task(name).load("train", str(data / name))["prompt"] for name in DATASETS}
    tokenizer = _tokenizer([prompt[0]["content"] for some in prompts.values() for prompt in some])
    places = {}
    for seed, name in enumerate(models):
        torch.manual_seed(seed)
        model, processing_class = _gemma(tokenizer) if "gemma" in name else _llama(tokenizer, "8b" in name)
        _warm_up(model, processing_class, prompts, seed)
        places[name] = str(folder / name)
        model.save_pretrained(places[name])
        processing_class.save_pretrained(places[name])
    return places


def _tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level pieces of the prompts, and a token for each answer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(sorted({_box(answer) for answers in _ANSWERS.values() for answer in answers}))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<|end|>",
        chat_template=_TEMPLATE,
        padding_side="left",
        extra_special_tokens={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
    )


def _box(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _sizes(tokenizer: Any, hidden: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }


def _llama(tokenizer: Any, large: bool) -> tuple[Any, Any]:
    return LlamaForCausalLM(LlamaConfig(**_sizes(tokenizer, 64 if large else 32))), tokenizer


def _gemma(tokenizer: Any) -> tuple[Any, Any]:
    image_tokens = (_IMAGE_SIZE // _PATCH) ** 2
    size = {"height": _IMAGE_SIZE, "width": _IMAGE_SIZE}
    processor = Gemma3Processor(
        Gemma3ImageProcessor(size=size), tokenizer, chat_template=_TEMPLATE, image_seq_length=image_tokens
    )
    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=_IMAGE_SIZE,
        patch_size=_PATCH,
    )
    config = Gemma3Config(
        text_config=Gemma3TextConfig(**_sizes(tokenizer, 48), sliding_window=64),
        vision_config=vision,
        mm_tokens_per_image=image_tokens,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    return Gemma3ForConditionalGeneration(config), processor


def _warm_up(model: Any, processing_class: Any, prompts: dict[str, Any], seed: int) -> None:
    """Teach the model, in place, to answer each data set's prompts with one of its boxes, whichever."""
    tokenizer, rng = tokenizer_of(processing_class), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    encoded = {name: [prompt_token_ids(processing_class, one) for one in some] for name, some in prompts.items()}
    for step in range(WARM_UP_STEPS):
        name = DATASETS[step % len(DATASETS)]
        rows = [encoded[name][number] for number in rng.integers(0, len(encoded[name]), size=16)]
        boxes = tokenizer.convert_tokens_to_ids([_box(answer) for answer in _ANSWERS[name]])
        answers = [[int(box), tokenizer.eos_token_id] for box in rng.choice(boxes, size=len(rows))]
        ids = torch.full((len(rows), max(map(len, rows)) + 2), tokenizer.pad_token_id)
        for row, (prompt, answer) in enumerate(zip(rows, answers, strict=True)):
            ids[row, ids.shape[1] - len(prompt) - 2 :] = torch.tensor(prompt + answer)
        mask = (ids != tokenizer.pad_token_id).long()
        more = {"token_type_ids": torch.zeros_like(ids)} if processing_class is not tokenizer else {}
        logits = model(input_ids=ids, attention_mask=mask, **more).logits[:, -3:-1]
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, -2:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
