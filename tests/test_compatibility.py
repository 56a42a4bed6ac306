"""What TRL's GRPOTrainer can do, this one can: each case trains a few steps with groups that AdaRoll made unequal."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from adaroll_trl import AdaRollGRPOTrainer
from tests.compatibility import BUDGET, GROUP, PROMPTS, adaptive, check_run, ids_parity, number_in, parity
from tests.tiny import RecordingTrainer, build_tokenizer, completions_of, length_reward, prompts_of, sums_dataset


@pytest.fixture
def make(model_dir: Path, tmp_path: Path) -> Any:
    """Builds an adaptive trainer: `make(beta=0.1)`."""
    return lambda **options: adaptive(options.pop("model_dir", model_dir), tmp_path, **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "adaroll_joint": {"allocator": "adaroll_joint", "block_size": 3, "draws_per_round": 2},
    "plain_prompts": {"dataset": sums_dataset(48, plain=True)},
    "mask_truncated_completions": {"mask_truncated_completions": True, "max_completion_length": 60},
    "top_entropy_quantile": {"top_entropy_quantile": 0.4},
    "beta": {"beta": 0.1},
    "sync_ref_model": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2},
    "num_iterations": {"num_iterations": 2, "max_steps": 12},
    "bf16": {"bf16": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "gradient_accumulation": {"gradient_accumulation_steps": 3, "max_steps": 2},
    "old_logps": {"gradient_accumulation_steps": 2, "max_steps": 3},
    "lora": {"trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}, "beta": 0.05},
    "prompt_ids": {"dataset": sums_dataset(48).add_column("prompt_id", list(range(48))), "belief_decay": 0.5},
    "entropy_bonus": {"entropy_coef": 0.01},
    "adaptive_entropy": {"use_adaptive_entropy": True, "entropy_coef": 0.01},
    "sapo": {"loss_type": "sapo"},
    "sequence_level": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "vespo": {"loss_type": "vespo", "num_iterations": 2, "max_steps": 12},
    "off_policy_mask": {"off_policy_mask_threshold": 0.5, "num_iterations": 2, "max_steps": 12},
    "two_sided_clipping": {"delta": 2.0},
    "scale_by_batch": {"scale_rewards": "batch"},
    "no_scale": {"scale_rewards": False},
    "pad_to_multiple_of": {"pad_to_multiple_of": 8},
    "unused_columns_removed": {"remove_unused_columns": True, "reward": lambda completion_ids, **kwargs: [
        ids_parity(ids) for ids in completion_ids
    ]},
    "torch_compile_off_and_workers": {"dataloader_num_workers": 1},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option(make, case):
    trainer = make(**OPTIONS[case])
    check_run(trainer)
