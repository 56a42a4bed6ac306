"""Beliefs: how outcomes fade, what tells prompts apart, and what a checkpoint in mid-batch saves."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from adaroll_trl.beliefs import Beliefs, prompt_key

CHAT = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.mark.parametrize(
    ("decay", "expected"), [(0.0, (1.0, 2.0)), (0.5, (1 + 2.0, 2 + 0.75)), (1.0, (1 + 5.0, 2 + 2.0))]
)
def test_outcomes_fade_by_visit(decay, expected):
    beliefs = Beliefs(prior_alpha=1.0, prior_beta=2.0, decay=decay)
    beliefs.update(["a", "b"], np.array([2, 0]), np.array([1, 3]))
    beliefs.update(["a"], np.array([3]), np.array([1]))
    alpha, beta = beliefs.prior(["a", "unseen"])
    # decay 0.5: ((2 * 0.5) + 3) * 0.5 successes, ((1 * 0.5) + 1) * 0.5 failures
    assert (alpha[0], beta[0]) == expected
    assert (alpha[1], beta[1]) == (1.0, 2.0)


def test_a_prompt_twice_in_a_batch_is_pooled_before_it_fades():
    beliefs = Beliefs(decay=0.5)
    beliefs.update(["a", "a"], np.array([2, 4]), np.array([0, 2]))
    alpha, beta = beliefs.prior(["a"])
    assert (alpha[0], beta[0]) == (1 + 3.0, 1 + 1.0)


def test_zero_decay_stores_nothing():
    beliefs = Beliefs(decay=0.0)
    beliefs.update(["a"], np.array([2]), np.array([1]))
    assert len(beliefs) == 0
    beliefs.load_state_dict({"a": [5.0, 5.0]})
    assert beliefs.prior(["a"])[0] == 1.0


def test_the_state_before_the_last_batch_can_be_saved():
    beliefs = Beliefs(decay=1.0)
    beliefs.update(["a", "b"], np.array([1, 1]), np.array([0, 0]))
    before = beliefs.state_dict()
    snapshot = beliefs.snapshot()
    assert snapshot() == before
    beliefs.update(["b", "c", "c"], np.array([1, 2, 3]), np.array([0, 0, 0]))
    assert snapshot() == before
    beliefs.update(["b"], np.array([0]), np.array([0]))
    assert snapshot() == before
    assert beliefs.state_dict() == {"a": [1.0, 0.0], "b": [2.0, 0.0], "c": [5.0, 0.0]}


def test_state_survives_json():
    beliefs = Beliefs(decay=0.3)
    beliefs.update(["a", "b"], np.array([1, 2]), np.array([3, 4]))
    copy = Beliefs(decay=0.3)
    copy.load_state_dict(json.loads(json.dumps(beliefs.state_dict())))
    assert copy.state_dict() == beliefs.state_dict()


def test_a_prompt_id_column_names_the_prompt():
    assert prompt_key({"prompt": "x", "prompt_id": 7}) == "7"
    assert prompt_key({"prompt": "y", "prompt_id": 7}) == "7"
    with pytest.raises(ValueError, match="prompt_id is None"):
        prompt_key({"prompt": "x", "prompt_id": None})


def test_a_hash_tells_prompts_apart_and_nothing_else():
    assert prompt_key({"prompt": CHAT, "answer": "5"}) == prompt_key({"prompt": CHAT, "answer": "6"})
    assert prompt_key({"prompt": [{"content": "What is 2 + 3?", "role": "user", "name": None}]}) == prompt_key(
        {"prompt": CHAT}
    )
    different = [
        {"prompt": "ab"},
        {"prompt": ["ab"]},
        {"prompt": ["a", "b"]},
        {"prompt": CHAT},
        {"prompt": [{"role": "system", "content": "What is 2 + 3?"}]},
        {"prompt": "1"},
        {"prompt": 1},
    ]
    assert len({prompt_key(row) for row in different}) == len(different)


def test_images_tell_prompts_apart():
    red, green = Image.new("RGB", (4, 2), "red"), Image.new("RGB", (4, 2), "green")
    turned = Image.new("RGB", (2, 4), "red")
    keys = {prompt_key({"prompt": CHAT, "images": [image]}) for image in (red, green, turned)}
    assert len(keys) == 3
    assert prompt_key({"prompt": CHAT, "image": red}) == prompt_key({"prompt": CHAT, "image": red.copy()})


def test_the_hash_is_the_same_in_another_process():
    code = f"from adaroll_trl.beliefs import prompt_key; print(prompt_key({{'prompt': {CHAT!r}}}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == prompt_key({"prompt": CHAT})
