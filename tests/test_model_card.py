"""The model card: which method, whose paper, which library; and that checkpoints and pushes carry it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from trl import GRPOTrainer

import adaroll_trl
from adaroll_trl import AdaRollGRPOTrainer, AdaRollMixin
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.model_card import complete_model_card

TITLE = "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training"


@pytest.fixture
def card(build: Any, tmp_path: Path) -> str:
    trainer = build(AdaRollGRPOTrainer, hub_model_id="someone/tiny-adaroll")
    trainer.create_model_card(model_name="tiny-adaroll", dataset_name="someone/sums", tags=["arithmetic"])
    return (tmp_path / "README.md").read_text()


def test_it_names_the_method_and_the_paper(card):
    text = " ".join(card.split())
    assert "This model was trained with AdaRoll-GRPO." in text
    assert f'AdaRoll-GRPO, a method introduced in "{TITLE}" (October 2026)' in text
    assert "implemented in adaroll_trl" in text


def test_it_says_how_rollouts_were_allocated(build, tmp_path):
    build(AdaRollGRPOTrainer, utility=None, rounds=2).create_model_card(model_name="tiny")
    text = (tmp_path / "README.md").read_text()
    for part in ("`utility='progress'`", "`rounds=2`", "`belief_decay=0.7`", "`prompt_weighting='prompt'`"):
        assert part in text
    assert "the paper's setting, as that library reads it, has `utility='mixed'`" in text


def test_it_cites_the_paper_grpo_this_library_and_trl(card):
    entries = dict(re.findall(r"(?ms)^@\w+\{(\w+),\n(.*?)^\}", card))
    paper, library = entries["adaroll2026"], entries["adaroll_trl"]
    assert TITLE in paper
    assert "2026" in paper
    assert "oct" in paper
    assert "adaroll_trl" in library
    assert "DeepSeekMath" in entries["shao2024deepseekmath"]
    assert "Transformers Reinforcement Learning" in card
    assert card.count("```") % 2 == 0


def test_it_names_the_librarys_version(card):
    assert f"- adaroll_trl: {adaroll_trl.__version__}" in card
    assert "- TRL:" in card


def test_its_header_is_valid_and_has_the_tags(card, tmp_path):
    header = yaml.safe_load(card.split("---")[1])
    assert {"trl", "grpo", "adaroll", "arithmetic", "generated_from_trainer"} <= set(header["tags"])
    assert header["model_name"] == "tiny-adaroll"
    assert header["datasets"] == "someone/sums"
    assert ModelCard.load(tmp_path / "README.md").data.model_name == "tiny-adaroll"


def test_a_checkpoint_saves_it(build, tmp_path):
    trainer = build(AdaRollGRPOTrainer, save_strategy="steps", save_steps=1, max_steps=1)
    trainer.train()
    assert TITLE in (tmp_path / "README.md").read_text()
    assert {"trl", "grpo", "adaroll"} <= set(trainer.model.model_tags)


def test_a_push_carries_it(build, tmp_path, monkeypatch):
    """All of `push_to_hub` up to the upload itself, which needs a network."""
    hub = FakeHub()
    monkeypatch.setattr("transformers.trainer.hf_api", lambda *args, **kwargs: hub)
    trainer = build(AdaRollGRPOTrainer, push_to_hub=True, hub_model_id="someone/tiny-adaroll", max_steps=1)
    trainer.train()
    assert trainer.push_to_hub(dataset_name="someone/sums") == "pushed"
    repository, files, card = hub.uploads[-1]
    assert repository == "someone/tiny-adaroll"
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= files
    assert TITLE in card
    assert "someone/sums" in card


class FakeHub:
    """Takes what would be uploaded."""

    def __init__(self) -> None:
        self.uploads: list[tuple[str, set[str], str]] = []

    def create_repo(self, repo_id: str, **kwargs: Any) -> Any:
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id: str, folder_path: str, **kwargs: Any) -> str:
        folder = Path(folder_path)
        names = {path.name for path in folder.iterdir()}
        self.uploads.append((repo_id, names, (folder / "README.md").read_text()))
        return "pushed"


def test_a_trainer_over_another_method_keeps_that_methods_card(build, tmp_path):
    class OtherTrainer(GRPOTrainer):
        _name = "Other"
        _tag_names = ["trl", "other"]  # noqa: RUF012

    class AdaRollOtherTrainer(AdaRollMixin, OtherTrainer):
        pass

    trainer = build(AdaRollOtherTrainer)
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()
    assert "This model was trained with Other," in card
    assert "- other" in card
    assert TITLE in card
    assert card.count("@article{adaroll2026") == 1


def test_a_card_that_is_written_twice_says_it_once(card, tmp_path):
    complete_model_card(tmp_path / "README.md", [], AdaRollOptions())
    again = (tmp_path / "README.md").read_text()
    assert again.count("@software{adaroll_trl") == again.count("@article{adaroll2026") == 1
    assert again == card


def test_a_card_of_another_template_gets_everything_at_its_end(tmp_path):
    (tmp_path / "README.md").write_text("# A model\n")
    complete_model_card(tmp_path / "README.md", [], AdaRollOptions())
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# A model\n")
    assert all(part in text for part in (TITLE, "@article{adaroll2026", "@software{adaroll_trl", "- adaroll_trl: "))
