"""training_args.json: what of a trainer's arguments is written, where, by whom, and what a failure costs."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BitsAndBytesConfig
from trl import GRPOConfig

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.callbacks import SettingsCallback, save_settings
from adaroll_trl.config import AdaRollOptions
from adaroll_trl.report.settings import MAIN_SETTINGS
from adaroll_trl.settings_file import plain
from tests.tiny import parity_reward

STATE = SimpleNamespace(global_step=2)


def config(folder: Path, kind: type[GRPOConfig] = GRPOConfig, **options: Any) -> GRPOConfig:
    return kind(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **options)


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "training_args.json").read_text(encoding="utf-8"))


def test_all_that_was_given_is_written_and_no_secret(tmp_path):
    loading = {
        "dtype": torch.bfloat16,
        "token": "hf_mine",
        "quantization_config": BitsAndBytesConfig(load_in_8bit=True),
    }
    url = "http://me:hf_mine@host:8000"
    args = config(tmp_path, AdaRollGRPOConfig, hub_token="hf_mine", vllm_server_base_url=url, belief_decay=0.5)
    args.model_init_kwargs = dict(loading)
    path = save_settings(args)
    assert path == tmp_path / "training_args.json"
    assert "hf_mine" not in path.read_text()
    found = written(tmp_path)
    assert found.keys() >= {"belief_decay", *MAIN_SETTINGS}
    assert found["generation_batch_size"] == args.generation_batch_size
    assert (found["lr_scheduler_type"], found["vllm_server_base_url"]) == ("linear", "http://host:8000")
    assert found["model_init_kwargs"]["dtype"] == "bfloat16"
    assert found["model_init_kwargs"]["quantization_config"]["load_in_8bit"] is True
    assert args.model_init_kwargs == loading, "the run's own arguments stay as they are"


class Kind(Enum):
    ONE = "one"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (True, True),
        (Kind.ONE, "one"),
        (parity_reward, "tests.tiny:parity_reward"),
        (Path("a") / "b", os.path.join("a", "b")),
        ({2, 1}, [1, 2]),
        (object(), "object"),
        (math.nan, "nan"),
        ("http://me:p@ss@host:8000/v1?api_key=1#2, and http://host", "http://host:8000/v1 and http://host"),
        ("betas=0.9,api_token=1 password: 2", "betas=0.9,api_token=... password: ..."),
        (["hf_abcdefgh", "Bearer abc"], ["...", "Bearer ..."]),
        (
            {"auth": 1, "aws_access_key_id": 2, "key_1": 3, "api_key ": 4, "author": 5, "compass": 6},
            {"author": 5, "compass": 6},
        ),
        (
            [{"API_KEY": 1, "Authorization": 2, "max_tokens_per_batch": 3, 4: None}],
            [{"max_tokens_per_batch": 3, "4": None}],
        ),
    ],
)
def test_values_that_json_does_not_have(value, expected):
    assert plain(value) == expected
    json.dumps(plain(value))


def test_a_value_that_holds_itself_ends(tmp_path):
    args = config(tmp_path)
    args.generation_kwargs = {}
    args.generation_kwargs["self"] = args.generation_kwargs
    save_settings(args)
    assert "..." in (tmp_path / "training_args.json").read_text()


def test_the_callback_writes_on_the_main_process_into_folder_and_checkpoint_and_anew_on_resume(tmp_path, monkeypatch):
    callback, control = SettingsCallback(), object()
    args = config(tmp_path, save_strategy="no")
    with monkeypatch.context() as another_process:
        another_process.setattr(GRPOConfig, "should_save", False)
        callback.on_train_begin(args, STATE, control)
    assert list(tmp_path.iterdir()) == []
    callback.on_train_begin(args, STATE, control)
    first = written(tmp_path)
    args.max_steps = 77
    callback.on_train_begin(args, STATE, control)
    assert written(tmp_path) == {**first, "max_steps": 77}
    callback.on_save(args, STATE, control)
    assert not (tmp_path / "checkpoint-2").exists(), "a search of hyperparameters saves elsewhere"
    (tmp_path / "checkpoint-2").mkdir()
    callback.on_save(args, STATE, control)
    assert written(tmp_path / "checkpoint-2") == written(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoint-2").iterdir()] == ["training_args.json"]


def test_a_new_run_in_the_folder_of_another_is_told(tmp_path, recwarn):
    args = config(tmp_path)
    recwarn.clear()
    SettingsCallback().on_train_begin(args, SimpleNamespace(global_step=0), object())
    assert not recwarn, "its own settings file is none"
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "completions").mkdir()
    (tmp_path / "completions" / "completions_00001.parquet").touch()
    SettingsCallback().on_train_begin(args, SimpleNamespace(global_step=4), object())
    assert not recwarn, "it is resumed"
    with pytest.warns(UserWarning, match="has 1 checkpoints and 1 completions tables of an earlier run"):
        SettingsCallback().on_train_begin(args, SimpleNamespace(global_step=0), object())


def test_our_trainer_brings_it_with_the_options_of_a_plain_config(build):
    """`GRPOConfig` has none of AdaRoll's options; what the trainer takes for them is written too."""
    trainer = build(AdaRollGRPOTrainer, config_class=GRPOConfig)
    (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, SettingsCallback))
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    found = written(Path(trainer.args.output_dir))
    assert {name: found[name] for name in vars(AdaRollOptions())} == vars(AdaRollOptions())
    assert found["num_generations"] == trainer.args.num_generations


def full_disk(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_place_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rmdir()
    folder.write_text("")


def on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaroll_trl.files.os.fsync", full_disk)


@pytest.mark.parametrize(
    ("fault", "message"), [(in_place_of_a_folder, "FileExistsError"), (on_a_full_disk, "No space left")]
)
def test_settings_that_cannot_be_written_are_a_warning(
    fault: Callable[[Path, pytest.MonkeyPatch], None], message: str, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    folder.mkdir()
    args = config(folder)
    fault(folder, monkeypatch)
    with pytest.warns(UserWarning, match=rf"settings could not be written to .*{message}.*Training goes on"):
        SettingsCallback().on_train_begin(args, STATE, None)
    assert folder.is_file() or list(folder.iterdir()) == []


def test_a_value_that_fails_when_it_is_written_is_a_warning(tmp_path):
    class Broken:
        def to_dict(self) -> dict[str, Any]:
            raise KeyError("broken")

    args = config(tmp_path)
    args.generation_kwargs = {"processor": Broken()}
    with pytest.warns(UserWarning, match="KeyError: 'broken'"):
        SettingsCallback().on_train_begin(args, STATE, None)
