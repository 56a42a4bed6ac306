"""Rounds through TRL's own vLLM integration, without a vLLM: a server over real HTTP, and an LLM in the process.

The stand-ins (`tests/standin.py`) answer each prompt with tokens and log-probabilities that tell the prompt, so that
every row is checked from dataset to merged batch. A real vLLM on the CPU is tested by `scripts/test_vllm.sh`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from peft import LoraConfig

if Version(version("trl")) < Version("1.16"):
    pytest.skip("the stand-in server speaks the protocol of TRL 1.16's client", allow_module_level=True)

from tests.compatibility import BUDGET, GROUP, PROMPTS, adaptive, number_in
from tests.environments import TOOLS, add, build_tool_model_dir, check_tool_rows
from tests.standin import MARK, StandInLLM, StandInServer, check_rows, fingerprint
from tests.tiny import completions_of, prompts_of, weights
from tests.workers.standin import PLANS, ROUNDS

SYNC = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]


@pytest.fixture
def make(model_dir: Path, tmp_path: Path) -> Any:
    """Builds an adaptive trainer on batches of 4 prompts and 16 rollouts: `make(server, rounds=2)`."""

    def build(server: StandInServer | None = None, **options: Any) -> Any:
        mode = {"vllm_mode": "colocate"}
        if server is not None:
            mode = {"vllm_mode": "server", "vllm_server_base_url": server.url}
        return adaptive(options.pop("model_dir", model_dir), tmp_path, use_vllm=True, **mode, **options)

    return build


def sampled_of(output: dict[str, Any]) -> list[list[float]]:
    """What each row was sampled with, without padding."""
    return [
        values[mask.bool()].tolist()
        for values, mask in zip(output["sampling_per_token_logps"], output["completion_mask"], strict=True)
    ]


def check_output(output: dict[str, Any]) -> None:
    check_rows(prompts_of(output), completions_of(output), sampled_of(output))


def mark_reward(prompts: list[Any], completion_ids: list[list[int]], number: list[int], **kwargs: Any) -> list[float]:
    """0 or 1 by the tokens behind the mark, about evenly; fails where a row's columns are not those of its prompt."""
    assert [number_in(prompt) for prompt in prompts] == number
    return [float(ids[MARK] % 3 == 0) for ids in completion_ids]


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_server(make, server, sent, rounds):
    trainer = make(server, rounds=rounds, max_steps=4, reward=mark_reward)
    start = weights(trainer)
    assert server.paths == ["/init_weight_transfer_engine"]
    trainer.train()
    outputs = [output for _, output in trainer.recorded]
    assert len(outputs) == 2
    asked = [[tuple(prompt) for prompt in body["prompt"]] for body in server.generations]
    assert len(asked) == 2 * rounds
    assert all(body["n"] == 1 for body in server.generations)
    for batch, output in enumerate(outputs):
        check_output(output)
        of_batch = [prompt for part in asked[batch * rounds : (batch + 1) * rounds] for prompt in part]
        assert len(of_batch) == BUDGET
        assert of_batch == prompts_of(output)
        assert len(Counter(of_batch)) == PROMPTS
    if rounds > 1:
        assert any(max(Counter(prompts_of(output)).values()) > GROUP for output in outputs)
    # One transfer for a batch, before its first round
    one_batch = [*SYNC, *["/v1/completions"] * rounds]
    assert server.paths[1:] == one_batch * 2
    assert all(torch.equal(sent[0][name], value) for name, value in start.items())
    assert any(not torch.equal(sent[1][name], value) for name, value in start.items())
    announced = [body["update_info"]["names"] for path, body in server.requests if path == "/update_weights"]
    assert announced == [list(start)] * 2


def test_a_server_that_mixes_rows_up_is_seen(make, sent):
    with StandInServer(mix_up=True) as server:
        trainer = make(server, max_steps=1, reward=mark_reward)
        trainer.train()
    (_, output) = trainer.recorded[0]
    with pytest.raises(AssertionError):
        check_output(output)


def test_two_batches_in_one_optimizer_step_share_one_weight_transfer(make, server):
    trainer = make(server, rounds=2, gradient_accumulation_steps=4, steps_per_generation=2, max_steps=2)
    trainer.train()
    assert len(trainer.recorded) == 4
    two_batches = [*SYNC, *["/v1/completions"] * 4]
    assert server.paths[1:] == two_batches * 2
    for _, output in trainer.recorded:
        check_output(output)


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_importance_sampling_ratios_are_those_of_the_rows(make, server, mode):
    clip = {"vllm_importance_sampling_clip_max": 1e30, "vllm_importance_sampling_clip_min": None}
    trainer = make(server, max_steps=2, vllm_importance_sampling_mode=mode, **clip)
    trainer.train()
    (_, output) = trainer.recorded[0]
    check_output(output)
    difference = (output["old_per_token_logps"] - output["sampling_per_token_logps"]) * output["completion_mask"]
    if mode == "sequence_mask":
        difference = difference.sum(1, keepdim=True)
    torch.testing.assert_close(output["importance_sampling_ratio"], difference.exp())
    assert len(set(output["importance_sampling_ratio"].flatten().tolist())) > PROMPTS
    counted = output["completion_mask"].bool()
    token_difference = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()[counted]
    log = trainer.state.log_history[0]
    assert log["sampling/sampling_logp_difference/max"] == pytest.approx(token_difference.max().item())
    assert log["sampling/sampling_logp_difference/mean"] == pytest.approx(token_difference.mean().item())
    if mode == "token_truncate":
        expected = output["importance_sampling_ratio"][counted].mean().item()
        assert log["sampling/importance_sampling_ratio/mean"] == pytest.approx(expected)


def test_without_the_correction_there_are_no_ratios(make, server):
    trainer = make(server, max_steps=2, vllm_importance_sampling_correction=False)
    trainer.train()
    (_, output) = trainer.recorded[0]
    check_output(output)
    assert "importance_sampling_ratio" not in output


def test_lora_is_merged_into_what_is_sent(make, server, sent):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = make(server, max_steps=4, reward=mark_reward, trainer_kwargs={"peft_config": lora})
    before = weights(trainer)
    trainer.train()
    for _, output in trainer.recorded:
        check_output(output)
    assert len(sent) == 2
    assert not [name for name in sent[0] if "lora" in name or "base_layer" in name]
    name = "model.layers.0.self_attn.q_proj"
    module = f"base_model.model.{name}"
    base = before[f"{module}.base_layer.weight"]
    delta = before[f"{module}.lora_B.default.weight"] @ before[f"{module}.lora_A.default.weight"]
    scaling = lora.lora_alpha / lora.r
    torch.testing.assert_close(sent[0][f"{name}.weight"], base + scaling * delta)
    assert not torch.equal(sent[1][f"{name}.weight"], sent[0][f"{name}.weight"])


def test_evaluation_asks_for_whole_groups(make, server, sums):
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "max_steps": 2}
    trainer = make(server, **options, trainer_kwargs={"eval_dataset": sums.select(range(4))})
    trainer.train()
    assert [body["n"] for body in server.generations if body["n"] != 1] == [GROUP] * 2


def test_tools_with_a_server_on_one_process(make, sent, tmp_path):
    model_dir = build_tool_model_dir(tmp_path / "tools")
    with StandInServer(lambda prompt, number, max_tokens: caller.answer(prompt, number)) as server:
        trainer = make(server, model_dir=model_dir, trainer_kwargs={"tools": [add]}, **TOOLS)
        caller = ToolCaller(trainer.processing_class)
        trainer.train()
    outputs = [output for _, output in trainer.recorded]
    check_tool_rows(trainer, outputs)
    assert server.paths.count("/update_weights") == len(outputs)


class ToolCaller:
    """Odd prompts call the tool with their own number, then everyone answers with it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def answer(self, prompt: Any, number: int) -> list[int]:
        text = self.tokenizer.decode(prompt)
        asked = number_in(text)
        reply = f"{asked} is {10 + number % 83}<|im_end|>"
        if asked % 2 and "<tool_response>" not in text:
            call = json.dumps({"name": "add", "arguments": {"a": asked, "b": asked}})
            reply = f"<tool_call>\n{call}\n</tool_call><|im_end|>"
        return self.tokenizer(reply, add_special_tokens=False)["input_ids"]


# Colocate


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_colocate(make, sent, rounds):
    trainer = make(rounds=rounds, max_steps=4, reward=mark_reward)
    trainer.train()
    assert [len(output["advantages"]) for _, output in trainer.recorded] == [BUDGET] * 2
    for _, output in trainer.recorded:
        check_output(output)
    calls = StandInLLM.last.calls
    assert [call.split()[0] for call in calls] == [*["load", "reset"], *["generate"] * rounds] * 2
    sizes = [int(call.split()[1]) for call in calls if call.startswith("generate")]
    assert [sum(sizes[:rounds]), sum(sizes[rounds:])] == [BUDGET] * 2


@pytest.mark.parametrize("rounds", [1, 3])
def test_sleep_mode_wakes_once_for_a_batch(make, sent, rounds):
    trainer = make(rounds=rounds, max_steps=4, vllm_enable_sleep_mode=True)
    llm = StandInLLM.last
    assert llm.options["enable_sleep_mode"]
    trainer.train()
    for _, output in trainer.recorded:
        check_output(output)
    batch = ["wake weights", "load", "reset", "wake kv_cache", *["generate"] * rounds, "sleep"]
    calls = [call if call.startswith("wake") else call.split()[0] for call in llm.calls]
    assert calls == ["sleep", *batch * 2]
    assert llm.asleep


def test_sleep_mode_with_two_batches_in_one_step(make, sent):
    """Asleep in between, vLLM needs its weights again although no step was taken."""
    options = {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 1}
    trainer = make(rounds=2, vllm_enable_sleep_mode=True, **options)
    trainer.train()
    assert len(trainer.recorded) == 2
    for _, output in trainer.recorded:
        check_output(output)
    assert StandInLLM.last.calls.count("load") == 2


def test_sleep_mode_and_evaluation(make, sent, sums):
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "max_steps": 4}
    trainer = make(
        rounds=2, vllm_enable_sleep_mode=True, **options, trainer_kwargs={"eval_dataset": sums.select(range(4))}
    )
    trainer.train()
    assert StandInLLM.last.asleep
    assert len(trainer.recorded) == 2


# Two processes


@pytest.mark.multiprocess
def test_server_with_two_processes(model_dir, tmp_path):
    """Every rank's rows hold the answers to their own prompts; the main process alone talks to the server."""
    with StandInServer() as server:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        command += ["-m", "tests.workers.standin", str(model_dir), str(tmp_path), server.url]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        root = Path(__file__).parent.parent
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
    asked = [[tuple(prompt) for prompt in body["prompt"]] for body in server.generations]
    assert len(asked) == 2 * ROUNDS
    assert server.paths == ["/init_weight_transfer_engine", *[*SYNC, *["/v1/completions"] * ROUNDS] * 2]
    for batch in range(2):
        for rank in ranks:
            output = rank["outputs"][batch]
            check_output(output)
            assert len(output["advantages"]) == BUDGET // 2
            assert rank["world"] == 2
        rounds = asked[batch * ROUNDS : (batch + 1) * ROUNDS]
        assert [len(part) for part in rounds] == [sum(counts) for counts in PLANS[batch]]
        both = Counter(prompt for rank in ranks for prompt in prompts_of(rank["outputs"][batch]))
        assert both == Counter(prompt for part in rounds for prompt in part)
        assert sorted(both.values()) == sorted(map(sum, zip(*PLANS[batch], strict=True)))
        assert len({tuple(fingerprint(prompt)) for prompt in both}) == PROMPTS
    assert ranks[0]["log"] == ranks[1]["log"]
