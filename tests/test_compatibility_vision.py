"""Images in the prompt, with tiny LLaVA, Gemma 3 and Qwen2-VL: each image stays with its prompt through the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from tests.compatibility import BUDGET, adaptive, check_run, number_in, parity
from tests.tiny import FixedCounts, prompts_of
from tests.vision import build_qwen2_vl, build_vision_dir, picture, pictures_dataset


@pytest.fixture(scope="module", params=["llava", "gemma3"])
def vision_dir(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_vision_dir(tmp_path_factory.mktemp("vision") / request.param, request.param)


def check_pixels(trainer: Any, output: dict[str, Any]) -> None:
    """The pixels of each row are those of its own prompt's pictures."""
    process = trainer.processing_class.image_processor
    numbers = [number_in(trainer.processing_class.tokenizer.decode(ids)) for ids in prompts_of(output)]
    pixels = torch.split(output["pixel_values"], output["num_images"])
    for number, mine in zip(numbers, pixels, strict=True):
        expected = process(images=[picture(number)], return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(mine, expected.expand_as(mine))


def test_an_image_for_each_prompt(vision_dir, tmp_path):
    seen = []

    def reward(image: list[Any], **kwargs: Any) -> list[float]:
        seen.extend(zip(image, kwargs["number"], strict=True))
        return parity(**kwargs)

    trainer = adaptive(vision_dir, tmp_path, reward=reward, dataset=pictures_dataset(24), log_completions=True)
    for output in check_run(trainer):
        assert output["num_images"] == [1] * BUDGET
        check_pixels(trainer, output)
    assert len(seen) == 2 * BUDGET
    assert all(image.getpixel((0, 0)) == picture(number).getpixel((0, 0)) for image, number in seen)
    assert [images[0].size for images in trainer._logs["images"]] == [
        picture(number_in(prompt)).size for prompt in trainer._logs["prompt"]
    ]


def test_one_or_two_images_for_each_prompt(vision_dir, tmp_path):
    trainer = adaptive(vision_dir, tmp_path, dataset=pictures_dataset(24, "images"), beta=0.1)
    for output in check_run(trainer):
        assert set(output["num_images"]) == {1, 2}
        check_pixels(trainer, output)


@pytest.mark.parametrize("column", ["image", "images"])
def test_a_round_of_prompts_without_images(vision_dir, tmp_path, column):
    """Text prompts among those with images may end up alone in a round."""

    def rows() -> Any:
        for row in pictures_dataset(8, column):
            yield row if row["number"] % 2 == 0 else {**row, column: None}

    data = Dataset.from_generator(rows, features=pictures_dataset(1, column).features, cache_dir=str(tmp_path))
    trainer = adaptive(vision_dir, tmp_path, dataset=data, shuffle_dataset=False, max_steps=2)
    trainer.allocator = FixedCounts([[5, 0, 3, 0], [0, 2, 0, 6]])
    trainer.train()
    ((_, output),) = trainer.recorded
    assert [bool(count) for count in output["num_images"]] == [True] * 8 + [False] * 8
    check_pixels(trainer, output)
    assert all(entry["grad_norm"] > 0 for entry in trainer.state.log_history if "loss" in entry)


def test_images_in_the_messages_and_their_beliefs(vision_dir, tmp_path):
    """Prompts whose text is the same and whose pictures differ are different prompts."""
    options: dict[str, Any] = {"dataset": pictures_dataset(24), "belief_decay": 1.0, "max_steps": 2}
    trainer = adaptive(vision_dir, tmp_path, **options)
    check_run(trainer, batches=1)
    assert len(trainer._beliefs.state_dict()) == 4
    same_text = pictures_dataset(24).map(lambda row: {"prompt": [{"role": "user", "content": "Which colour?"}]})

    def by_tokens(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [float(sum(ids) % 2) for ids in completion_ids]

    trainer = adaptive(vision_dir, tmp_path, reward=by_tokens, **{**options, "dataset": same_text})
    trainer.train()
    assert len(trainer._beliefs.state_dict()) == 4


def test_images_with_a_number_of_patches_of_their_own(tmp_path):
    """Qwen2-VL stacks the patches of all images: rounds must hand each row its own."""
    model, processor = build_qwen2_vl()
    model.save_pretrained(tmp_path / "model")
    kwargs = {"processing_class": processor}
    trainer = adaptive(tmp_path / "model", tmp_path, dataset=pictures_dataset(24, "images"), trainer_kwargs=kwargs)
    for output in check_run(trainer):
        patches = output["image_grid_thw"].prod(dim=1).tolist()
        assert len(set(patches)) > 1
        assert output["pixel_values"].shape[0] == sum(patches)
        images = iter(torch.split(output["pixel_values"], patches))
        for ids, count in zip(prompts_of(output), output["num_images"], strict=True):
            number = number_in(processor.tokenizer.decode(ids))
            expected = processor.image_processor(images=[picture(number)], return_tensors="pt")["pixel_values"]
            for _ in range(count):
                torch.testing.assert_close(next(images), expected)
        assert output["mm_token_type_ids"].sum() == sum(
            ids.count(processor.image_token_id) for ids in prompts_of(output)
        )
