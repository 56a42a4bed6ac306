"""Rounds against a real vLLM on the CPU: a server with one process and with two ZeRO-3 ranks, and colocate with one.

`bash scripts/test_vllm.sh` makes the environment and runs these; elsewhere they are skipped. One launch runs every
case (`tests/workers/vllm.py`); the tests read what each rank left. The figure that tells whether a completion was
sampled for its row's prompt, from the present weights, is the difference between the log-probabilities that vLLM
sampled with and the trainer's own for the same tokens: float noise if so. The controls show that it is live.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_equivalence import TIMES
from tests.tiny import build_lively_model_dir, same_weights

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: run scripts/test_vllm.sh"),
]

NOISE, LIVE = 1e-5, 1e-2  # mean differences; float32 sums in another order make some 1e-7
PROCESSES = {"server": 1, "zero3": 2, "colocate": 1}
ROUNDS = {"1 round": 1, "2 rounds": 2, "4 rounds": 4, "uniform": 1, "sleep mode, 1 round": 1}  # 3 in the others
SLEEPING = ["sleep mode", "sleep mode, LoRA", "sleep mode, 1 round"]
CASES = ["1 round", "2 rounds", "4 rounds", "uniform", "LoRA", "token_truncate", "no correction", *SLEEPING]
ONE_STEP = "two batches in a step"
STREAMS = ["stream", "stream, LoRA", "stream, sleep mode"]
CONTROLS = ["control: stream, weights sent once", "control: weights sent once", "control: asleep, weights not sent"]


@pytest.fixture(scope="module")
def lively_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_lively_model_dir(tmp_path_factory.mktemp("vllm") / "lively-llama")


@pytest.fixture(scope="module")
def url(lively_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of vLLM's server, for all launches that need one."""
    from tests.cpu_vllm import serving

    with serving(lively_model_dir, tmp_path_factory.mktemp("server") / "log") as url:
        yield url


@pytest.fixture(scope="module", params=PROCESSES)
def launch(
    request: pytest.FixtureRequest, lively_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Each rank's results."""
    from tests.cpu_vllm import VLLM_ENVIRONMENT

    mode, world = request.param, PROCESSES[request.param]
    folder = tmp_path_factory.mktemp(mode)
    command = [sys.executable]
    if world > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    command += ["-m", "tests.workers.vllm", str(lively_model_dir), str(folder), mode]
    if mode != "colocate":
        command.append(request.getfixturevalue("url"))
    root = Path(__file__).parent.parent
    environment = {**os.environ, **VLLM_ENVIRONMENT}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    ranks = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(world)]
    if table := os.environ.get("ADAROLL_VLLM_TABLE"):
        with Path(table).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in table_rows(mode, ranks))
    return ranks


def case_of(launch: list[dict[str, Any]], case: str) -> list[dict[str, Any]]:
    if case not in launch[0]:
        pytest.skip("this launch leaves the case out: sleep mode is of colocate mode, and ZeRO-3 is slow")
    return [rank[case] for rank in launch]


def means(ranks: list[dict[str, Any]]) -> list[float]:
    """The mean difference of each generation batch, over the ranks."""
    return [
        statistics.fmean(rank["differences"][batch]["mean"] for rank in ranks)
        for batch in range(len(ranks[0]["differences"]))
    ]


def group_sizes(ranks: list[dict[str, Any]]) -> list[list[int]]:
    """How many completions each prompt of each batch got."""
    batches = zip(*(rank["prompts"] for rank in ranks), strict=True)
    return [list(Counter(prompt for part in batch for prompt in part).values()) for batch in batches]


def completions(main: dict[str, Any], streamed: bool) -> int:
    """Those that vLLM finished, by the server's count, or the engine's outputs."""
    if main["finished"] is not None:
        return int(main["finished"])
    return sum(map(len, main["prompts"])) if streamed else sum(map(sum, main["asked"]))


def table_rows(mode: str, launch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What docs/results/vllm_cpu.md shows of each case."""
    rows = []
    for case in launch[0]:
        ranks = [rank[case] for rank in launch]
        first, batches, streamed = ranks[0], len(ranks[0]["prompts"]), "stream" in case
        rows.append(
            {
                "mode": {"zero3": "server", "server": "server", "colocate": "colocate"}[mode],
                "processes": f"{len(launch)}, ZeRO-3" if mode == "zero3" else str(len(launch)),
                "case": case,
                "rounds": "stream" if streamed else "-".join(map(str, sorted({len(c) for c in first["asked"]}))),
                "steps": first["steps"],
                "batches": batches,
                "budget": first["budget"] * batches,
                "completions": completions(first, streamed),
                "weights sent": first["transfers"],
                "first": means(ranks)[0],
                "later": max(means(ranks)[1:]),
            }
        )
    return rows


def test_the_processes_are_what_they_are_meant_to_be(launch):
    world = len(launch)
    for rank in launch:
        for result in rank.values():
            assert result["world"] == world
            assert world == 1 or result["engine"] == ("DeepSpeedEngine", 3)


@pytest.mark.parametrize("case", [*CASES, ONE_STEP, *STREAMS])
def test_every_row_was_sampled_for_its_prompt_from_the_present_weights(launch, case):
    ranks = case_of(launch, case)
    for rank in ranks:
        assert len(rank["differences"]) == len(rank["prompts"]) >= 3
        for difference in rank["differences"]:
            assert difference["mean"] < NOISE
            assert difference["max"] < 10 * NOISE
        # Row by row without TRL, of the first batch, when the weights are the checkpoint's
        assert rank["rescored"] < 10 * NOISE


@pytest.mark.parametrize("case", CONTROLS)
def test_stale_weights_are_seen(launch, case):
    """The first batch has the right weights, later ones do not."""
    first, *later = means(case_of(launch, case))
    assert first < NOISE
    assert min(later) > LIVE


def test_a_stream_whose_prompts_are_not_exchanged_is_seen(launch):
    """TRL then trains on completions of other prompts than it believes."""
    assert min(means(case_of(launch, "control: stream, prompts not exchanged"))) > LIVE


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_spends_the_budget_unequally(launch, case):
    ranks = case_of(launch, case)
    main, budget, batches = ranks[0], ranks[0]["budget"], len(ranks[0]["prompts"])
    assert main["finished"] in (None, budget * batches)
    sizes = group_sizes(ranks)
    assert [sum(batch) for batch in sizes] == [budget] * batches
    assert all(len(batch) == 4 for batch in sizes)
    assert any(len(set(batch)) > 1 for batch in sizes)
    assert main["transfers"] == batches  # once a batch
    logged = [entry["adaroll/stream/in_flight"] for entry in main["log"] if "adaroll/rounds" in entry]
    assert logged == [4] * batches


def test_a_stream_of_equal_groups_is_grpo(launch):
    """Whatever else ran beside a request: the same seed gave the same completion, and then the same weights."""
    if "plain and streamed" not in launch[0]["stream"]:
        pytest.skip("seeds for each completion can be set in the process only")
    plain, streamed = launch[0]["stream"]["plain and streamed"]
    assert same_weights(plain["weights"], streamed["weights"])
    for expected, found in zip(plain["log"], streamed["log"], strict=True):
        assert all(found[name] == value for name, value in expected.items() if name not in TIMES)


def test_rows_with_the_answer_to_another_prompt_are_seen(launch):
    ranks = case_of(launch, "control: rows mixed up")
    assert min(means(ranks)) > LIVE
    assert min(rank["rescored"] for rank in ranks) > LIVE


@pytest.mark.parametrize("case", [*CASES, ONE_STEP])
def test_the_budget_is_exact(launch, case):
    ranks = case_of(launch, case)
    main, budget, batches = ranks[0], ranks[0]["budget"], len(ranks[0]["prompts"])
    assert [sum(counts) for counts in main["asked"]] == [budget] * batches
    assert main["finished"] in (None, budget * batches)  # what the server counted itself
    rounds = [len(counts) for counts in main["asked"]]
    assert max(rounds) <= ROUNDS.get(case, 3)  # fewer where the budget is spent before
    assert (max(rounds) > 1) == (ROUNDS.get(case, 3) > 1)
    logged = [entry["adaroll/rounds"] for entry in main["log"] if "adaroll/rounds" in entry]
    assert case == ONE_STEP or logged == rounds
    for batch, sizes in enumerate(group_sizes(ranks)):
        assert sum(sizes) == budget
        assert len(sizes) == 4
        assert all(len(rank["prompts"][batch]) == budget // len(ranks) for rank in ranks)
        assert max(rounds) > 1 or set(sizes) == {4}


def test_groups_become_unequal(launch):
    batches = [sizes for case in ("2 rounds", "4 rounds", "LoRA") for sizes in group_sizes(case_of(launch, case))]
    assert any(len(set(sizes)) > 1 for sizes in batches)


@pytest.mark.parametrize("case", [*CASES, ONE_STEP])
def test_weights_are_sent_once_for_an_optimizer_step(launch, case):
    """Before the first round of the first batch after a step; not once a round."""
    main, *others = case_of(launch, case)
    sharing = 2 if case == ONE_STEP else 1
    expected = []
    for number, counts in enumerate(main["asked"]):
        before, after = (["weights"] if number % sharing == 0 else []), []
        if case in SLEEPING:
            before, after = ["wake weights", "weights", "wake kv_cache"], ["sleep"]
        expected += [*before, *["generate"] * len(counts), *after]
    assert main["calls"] == expected
    assert main["calls_of_init"] == (["sleep"] if case in SLEEPING else [])
    assert main["transfers"] == main["steps"] // (1 if case == ONE_STEP else 2) == len(main["asked"]) // sharing
    assert all(other["calls"] == [] for other in others)  # the main process alone talks to the server


@pytest.mark.parametrize("case", ["2 rounds", "token_truncate", "LoRA"])
def test_importance_sampling_ratios_are_one(launch, case):
    for rank in case_of(launch, case):
        for difference in rank["differences"]:
            ratios = difference["ratios"]
            assert (ratios.shape[1] > 1) == (case == "token_truncate")
            torch.testing.assert_close(ratios, torch.ones_like(ratios), rtol=0, atol=1e-4)


def test_importance_sampling_ratios_follow_stale_weights(launch):
    for rank in case_of(launch, "control: weights sent once"):
        assert (rank["differences"][-1]["ratios"] - 1).abs().max() > LIVE


def test_the_correction_can_be_left_out(launch):
    for rank in case_of(launch, "no correction"):
        assert all(difference["ratios"] is None for difference in rank["differences"])
        assert not [name for entry in rank["log"] for name in entry if name.startswith("sampling/")]


@pytest.mark.parametrize("case", ["1 round", "2 rounds", "4 rounds", "LoRA"])
def test_the_logged_difference_is_that_of_the_batch(launch, case):
    ranks = case_of(launch, case)
    for rank in ranks:
        logged = [entry for entry in rank["log"] if "sampling/sampling_logp_difference/mean" in entry]
        assert len(logged) == len(rank["differences"])
        for entry, mean in zip(logged, means(ranks), strict=True):
            assert entry["sampling/sampling_logp_difference/mean"] == pytest.approx(mean, rel=0.2)
