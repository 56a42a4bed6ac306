"""docs/metrics.md has every metric that is logged, no other, and the limits of `AdviceCallback`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from adaroll_trl import AdaRollGRPOTrainer, noise
from adaroll_trl.callbacks import advice
from tests.tiny import sums_dataset

PAGE = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()
ROWS = [row.strip("| ").split(" | ") for row in re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)]
METRICS = {row[0]: row for row in ROWS if row[0].startswith("`")}
WARNINGS = {row[0]: row[1] for row in ROWS if len(row) == 3}


def names_in(cell: str) -> Iterator[str]:
    """The metrics that a first cell names: `a/{b,c}` is two of them.

    >>> list(names_in("`a/{b,c}`, `d`"))
    ['a/b', 'a/c', 'd']
    """
    for code in re.findall(r"`([^`]+)`", cell):
        stem, _, choice = code.partition("{")
        yield from (stem + one for one in choice.rstrip("}").split(",")) if choice else (code,)


def documented() -> set[str]:
    return {f"adaroll/{name}" for cell in METRICS for name in names_in(cell)}


def logged(trainer: Any) -> set[str]:
    trainer.train()
    names = {name for entry in trainer.state.log_history for name in entry if name.startswith("adaroll/")}
    return {re.sub(r"(?<=prompt_weight/curve/)[\d.]+-[\d.]+$", "<bin>", name) for name in names}


def test_every_metric_is_on_the_page(build, sent, monkeypatch):
    """Those of rounds and of a stream, with every option that adds some: each has its row, and each row is logged."""
    found = noise.KappaEstimate(2.0, 0.5, 0.1, 2.0, 1.0, 8, 64)  # a model as tiny seldom shows a finite one
    monkeypatch.setattr(noise, "measure_kappa", lambda *args: found)
    data = sums_dataset(48)
    data = data.add_column("rate", [index / 48 for index in range(48)])
    options = {"num_generations": 8, "per_device_train_batch_size": 4, "steps_per_generation": 8, "dataset": data}
    beliefs = {"belief_decay": 0.5, "prior_source": "empirical_bayes", "prior_column": "rate"}
    kappa = {"utility": "progress", "kappa_every": 1}
    seen = logged(build(AdaRollGRPOTrainer, **options, **beliefs, **kappa, max_steps=9))
    expected = documented()
    if Version(version("trl")) < Version("1.16"):  # which the stand-in engine speaks to
        expected = {name for name in expected if not name.startswith("adaroll/stream/")}
    else:
        engine = {"use_vllm": True, "vllm_mode": "colocate", "stream_rollouts": True}
        seen |= logged(build(AdaRollGRPOTrainer, **options, **engine, max_steps=1))
    assert seen == expected


@pytest.mark.parametrize("cell", METRICS)
def test_each_has_a_range_a_red_flag_and_what_to_turn(cell):
    row = METRICS[cell]
    assert len(row) == 4
    assert all(row)


@pytest.mark.parametrize(
    ("metric", "warning", "limits"),
    [
        ("`frac_prompts_mixed`", "no signal", [advice.LEAST_SIGNAL]),
        ("`calibration/ece`", "calibration", [advice.LARGEST_ECE]),
        ("`calibration/{predicted,realised}`", "calibration", [advice.LARGEST_BIAS]),
        ("`rollouts_per_prompt/{min,mean,max,std}`", "one prompt", [advice.LARGEST_SHARE, advice.EQUAL_SHARES]),
        (None, "time", [advice.TIME_MARGIN]),
    ],
)
def test_limits_are_those_of_the_advice(metric, warning, limits):
    """The page's two tables have the numbers at which `AdviceCallback` warns."""
    for text in [WARNINGS[warning]] + ([METRICS[metric][2]] if metric else []):
        numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)
        assert all(f"{limit:g}" in numbers for limit in limits), (text, limits)


def test_the_evidence_is_that_of_the_advice():
    assert f"the latest {advice.EVIDENCE} prompts and at least {advice.LEAST_LOGS} logging\nsteps" in PAGE
