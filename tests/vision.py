"""Tiny vision-language models with processors built here, without a hub and without torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma3TextConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
    set_seed,
)

from tests.tiny import build_tokenizer

IMAGE_SIZE, PATCH = 28, 14

CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_vision_dir(path: Path, kind: str) -> Path:
    """A folder with a tiny random model and its processor; `kind` is "llava" or "gemma3"."""
    model, processor = {"llava": _llava, "gemma3": _gemma3}[kind]()
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


def _tokenizer(**special: str) -> Any:
    base = build_tokenizer()
    base.add_tokens(["<bos>", *special.values()], special_tokens=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=base.backend_tokenizer,
        pad_token="<pad>",
        eos_token="<|end|>",
        padding_side="left",
        extra_special_tokens=special,
    )


_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIZE,
    "patch_size": PATCH,
}


def _ids(tokenizer: Any) -> dict[str, Any]:
    return {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}


def _llava() -> tuple[Any, Any]:
    tokenizer = _tokenizer(image_token="<image>")
    processor = LlavaProcessor(
        LlavaImageProcessor(
            size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}
        ),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE.replace("IMAGE", "<image>"),
    )
    set_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION, projection_dim=16),
        text_config=LlamaConfig(vocab_size=len(tokenizer), **_TEXT, **_ids(tokenizer)),
        image_token_id=tokenizer.image_token_id,
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config), processor


def _gemma3() -> tuple[Any, Any]:
    tokenizer = _tokenizer(image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>")
    tokens = (IMAGE_SIZE // PATCH) ** 2
    processor = Gemma3Processor(
        Gemma3ImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}),
        tokenizer,
        chat_template=CHAT_TEMPLATE.replace("IMAGE", "<start_of_image>"),
        image_seq_length=tokens,
    )
    set_seed(0)
    config = Gemma3Config(
        text_config=Gemma3TextConfig(vocab_size=len(tokenizer), **_TEXT, **_ids(tokenizer), sliding_window=64),
        vision_config=SiglipVisionConfig(**_VISION),
        mm_tokens_per_image=tokens,
        image_token_index=tokenizer.image_token_id,
        image_token_id=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    return Gemma3ForConditionalGeneration(config), processor


def colour(number: int) -> tuple[int, int, int]:
    return (number * 37 % 256, number * 91 % 256, 255 - number * 5)


def picture(number: int, side: int = 40) -> Image.Image:
    """One colour for each number, so that an image tells which prompt it belongs to."""
    return Image.new("RGB", (side, side + number % 7), colour(number))


def pictures_dataset(size: int, column: str = "image", some_without: bool = False) -> Dataset:
    """Prompts with an image each (`image`), or with a list of zero to two (`images`)."""
    rows: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": f"What is {i} + {i * i % 97}?"}] for i in range(size)],
        "number": list(range(size)),
    }
    if column == "image":
        rows["image"] = [picture(i) for i in range(size)]
    else:
        rows["images"] = [[picture(i)] * (i % 3 if some_without else 1 + i % 2) for i in range(size)]
    return Dataset.from_dict(rows)
