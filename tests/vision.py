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
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
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


class ImagesOnlyQwen2VLProcessor(Qwen2VLProcessor):
    """Qwen2-VL's processor without its video processor, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.image_token_id = tokenizer.image_token, tokenizer.image_token_id
        self.video_token, self.video_token_id = tokenizer.video_token, tokenizer.video_token_id
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def build_qwen2_vl() -> tuple[Any, Any]:
    """A tiny Qwen2-VL, whose images have as many patches as their size asks for."""
    tokenizer = _tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>", start="<|vision_start|>")
    processor = ImagesOnlyQwen2VLProcessor(
        Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=84 * 84),
        tokenizer,
        CHAT_TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|>"),
    )
    set_seed(0)
    text = {**_TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}
    del text["head_dim"]
    config = Qwen2VLConfig(
        text_config={**text, "hidden_size": 64, "vocab_size": len(tokenizer), **_ids(tokenizer)},
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 1},
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
    )
    return Qwen2VLForConditionalGeneration(config), processor


def colour(number: int) -> tuple[int, int, int]:
    return (number * 37 % 256, number * 91 % 256, 255 - number * 5)


def picture(number: int) -> Image.Image:
    """One colour and size for each number, so that an image tells which prompt it belongs to."""
    return Image.new("RGB", (30 + 10 * (number % 4), 40 + number % 7), colour(number))


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
