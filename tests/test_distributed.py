"""Several real processes: DDP on gloo with 2 and 4, DeepSpeed ZeRO-2 and ZeRO-3 with 2.

One launch per backend runs every case (see `tests/workers/distributed.py`); the tests read what each rank left.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from adaroll_trl.priors import PriorFit
from tests.test_advantages import plain_advantages
from tests.tiny import length_reward, parity_reward, same_weights

pytestmark = pytest.mark.multiprocess

LAUNCHES = [("ddp", 2), ("ddp", 4), ("zero2", 2), ("zero3", 2)]
ENGINES = {"ddp": "DistributedDataParallel", "zero2": "DeepSpeedEngine", "zero3": "DeepSpeedEngine"}


@pytest.fixture(scope="module", params=LAUNCHES, ids=lambda launch: f"{launch[0]}-{launch[1]}")
def ranks(request: Any, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Each rank's results."""
    backend, world = request.param
    folder = tmp_path_factory.mktemp(f"{backend}{world}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    command += ["-m", "tests.workers.distributed", str(model_dir), str(folder), backend]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    results = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]
    assert [(r["rank"], r["world"]) for r in results] == [(rank, world) for rank in range(world)]
    for result in results:
        result["backend"] = backend
    return results


@pytest.mark.parametrize("case", ["default", "none_rewards"])
def test_uniform_is_grpo(ranks, case):
    if case not in ranks[0]:
        pytest.skip("DeepSpeed runs the default case only, for time")
    for result in ranks:
        (weights, log), (our_weights, our_log) = result[case]["plain"], result[case]["ours"]
        assert weights
        assert all(value.numel() > 0 for value in weights.values())
        assert same_weights(weights, our_weights)
        for expected, found in zip(log, our_log, strict=True):
            for name, value in expected.items():
                assert found[name] == value or (math.isnan(found[name]) and math.isnan(value)), name
        assert not same_weights(weights, result[case]["other"][0]), "another allocation must give other weights"
        assert same_weights(weights, ranks[0][case]["plain"][0])


def test_the_engine_is_what_it_is_meant_to_be(ranks):
    for result in ranks:
        name, stage, world = result["default"]["engine"]
        assert name == ENGINES[result["backend"]]
        assert stage == {"ddp": 0, "zero2": 2, "zero3": 3}[result["backend"]]
        assert world == len(ranks)


def test_every_rank_generates_the_same_number_of_rows(ranks):
    sizes = [[len(prompts) for prompts in result["unequal"]["shares"]] for result in ranks]
    assert all(size == sizes[0] for size in sizes)
    assert len(sizes[0]) == 3
    assert sum(sizes[0]) == 12 // len(ranks)
    assert all(len(result["unequal"]["advantages"]) == 12 // len(ranks) for result in ranks)


def test_the_rows_of_a_prompt_are_spread_over_the_ranks(ranks):
    shared = False
    for hands in zip(*(result["unequal"]["shares"] for result in ranks), strict=True):
        for prompt in {prompt for hand in hands for prompt in hand}:
            held = [hand.count(prompt) for hand in hands]
            assert max(held) - min(held) <= 1
            shared |= min(held) > 0
    assert shared or len(ranks) == 4  # three rows a rank and three prompts leave four ranks little to share
    characters = [sum(len("".join(prompts)) for prompts in result["unequal"]["shares"]) for result in ranks]
    lengths = {len(prompt) for result in ranks for hand in result["unequal"]["shares"] for prompt in hand}
    assert len(lengths) > 1
    assert max(characters) - min(characters) <= max(lengths) - min(lengths)


def test_advantages_are_over_the_groups_of_all_ranks(ranks):
    prompts = [prompt for result in ranks for prompt in result["unequal"]["prompts"]]
    completions = [ids for result in ranks for ids in result["unequal"]["completions"]]
    sizes = Counter(prompts)
    assert len(sizes) == 3
    assert sum(sizes.values()) == 12
    assert len(set(sizes.values())) > 1
    rewards = [
        [parity, length]
        for parity, length in zip(
            parity_reward(completions=completions, completion_ids=completions),
            length_reward(completion_ids=completions),
            strict=True,
        )
    ]
    expected = plain_advantages(rewards, prompts, [1.0, 1.0], "group", "sum_then_normalize")
    found = [advantage for result in ranks for advantage in result["unequal"]["advantages"]]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for result in ranks:
        assert result["unequal"]["num_items_in_batch"] == sum(map(len, completions))
        assert Counter(result["unequal"]["group_sizes"]) == Counter(
            size for size in sizes.values() for _ in range(size)
        )
        assert set(result["unequal"]["table"].values()) == {12}
        torch.testing.assert_close(sorted(result["unequal"]["logged_advantages"]), sorted(found))


def test_all_ranks_log_and_remember_the_same(ranks):
    first = ranks[0]["unequal"]
    totals = [s + f for s, f in first["beliefs"].values()]
    assert sum(totals) == 12 * 0.5
    assert first["log"]["adaroll/rounds"] == 3
    for result in ranks:
        assert result["unequal"]["beliefs"] == first["beliefs"]
        ours = {name: value for name, value in result["unequal"]["log"].items() if name.startswith("adaroll/")}
        assert ours == {name: value for name, value in first["log"].items() if name.startswith("adaroll/")}
        assert len(ours) > 10
        assert result["unequal"]["log"]["reward"] == first["log"]["reward"]
        assert same_weights(result["unequal"]["weights"], first["weights"])


def test_all_ranks_resume_with_the_same_beliefs_and_prior(ranks):
    before, after = ranks[0]["unequal"]["beliefs"], ranks[0]["resumed"]["after"]
    assert set(before) < set(after)
    assert sum(s + f for s, f in after.values()) == pytest.approx(12 * 0.5 + 12 * 0.5)
    for result in ranks:
        assert result["resumed"]["after"] == after
        fit = PriorFit()
        fit.load_state_dict(result["unequal"]["visits"])
        assert len(fit) == 3
        assert result["resumed"]["prior"] == fit.prior() == ranks[0]["resumed"]["prior"] != (1.0, 1.0)
        assert result["resumed"]["loaded"] == {}


def test_a_failing_allocator_fails_on_every_rank(ranks):
    assert ranks[0]["failure"] == "table is lost"
    for result in ranks[1:]:
        assert "The main process failed: RuntimeError: table is lost" in result["failure"]
