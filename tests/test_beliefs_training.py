"""Priors and calibration in the trainer: end to end on a tiny model, over stop and resume, and bad input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.calibration import Calibration
from adaroll_trl.priors import PriorFit
from tests.tiny import RandomCounts, sums_dataset

SAVE = {"save_strategy": "steps", "save_steps": 1, "steps_per_generation": 3}


class Watching(RandomCounts):
    """Keeps what it was told at the start of each batch, and at the end of its first round."""

    def allocate(self, state: Any, rollouts_left: int, rounds_left: int) -> np.ndarray:
        if rounds_left == self.rounds:
            self.starts = [*getattr(self, "starts", []), state]
        elif rounds_left == self.rounds - 1:
            self.firsts = [*getattr(self, "firsts", []), (state.successes, state.failures)]
        return super().allocate(state, rollouts_left, rounds_left)


def run(build: Any, seed: int = 0, *, resume: str | None = None, **options: Any) -> Any:
    """Batches of 3 prompts and 12 rollouts in 3 rounds, played at random."""
    trainer = build(AdaRollGRPOTrainer, **{"allocator": "uniform", "min_rollouts": 1, **options})
    trainer.allocator = Watching(3, seed)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[f"adaroll/{name}"] for entry in trainer.state.log_history if f"adaroll/{name}" in entry]


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_a_fitted_prior_is_used_logged_and_the_same_after_resume(build, tmp_path, decay):
    options = {**SAVE, "prior_source": "empirical_bayes", "prior_alpha": 0.8, "belief_decay": decay, "max_steps": 9}
    options["dataset"] = sums_dataset(6)
    whole = run(build, **options)
    fit, fits = PriorFit(0.8, 1.0), []
    visits = whole._beliefs.prior_fit.state_dict()["visits"]
    assert len(visits) == 9
    for batch in range(3):
        fits.append(fit.prior())
        fit.update(visits[3 * batch : 3 * batch + 3])
    starts = whole.allocator.starts
    for start, (alpha, beta), batch in zip(starts, fits, range(3), strict=True):
        own = np.array(visits[3 * batch : 3 * batch + 3])[:, 2:]
        assert (own.sum() > 0) == (decay > 0 and batch == 2), "prompts come back in the third batch"
        np.testing.assert_array_equal(start.prior_alpha, alpha + own[:, 0])
        np.testing.assert_array_equal(start.prior_beta, beta + own[:, 1])
    assert fits[0] == (0.8, 1.0) != fits[1]
    # TRL averages over the steps of a log entry: a batch is logged at the first of its three steps
    assert logged(whole, "prior/alpha") == pytest.approx([a for a, _ in fits])
    assert logged(whole, "prior/mean") == pytest.approx([a / (a + b) for a, b in fits])

    saved = {step: json.loads((tmp_path / f"checkpoint-{step}" / "adaroll_state.json").read_text()) for step in (5, 6)}
    assert saved[5]["prior"]["visits"] == visits[:3], "the batch of step 5 is only partly used"
    assert saved[6]["prior"]["visits"] == visits[:6]
    resumed = run(build, resume=str(tmp_path / "checkpoint-6"), **options)
    assert resumed._beliefs.prior_fit.state_dict()["visits"][:6] == visits[:6]
    assert logged(resumed, "prior/alpha") == logged(whole, "prior/alpha"), "the log is part of the checkpoint"
    known = saved[6]["beliefs"]
    assert bool(known) == (decay > 0)
    (start,) = resumed.allocator.starts
    for key, alpha, beta in zip(start.prompt_ids, start.prior_alpha, start.prior_beta, strict=True):
        s, f = known.get(key, (0, 0))
        assert (alpha, beta) == (fits[2][0] + s, fits[2][1] + f)
    scored = Calibration()
    scored.load_state_dict(saved[6]["calibration"])
    s, f = resumed.allocator.firsts[0]
    own = np.full(3, decay > 0)
    expected = scored.observe(start.prior_alpha / (start.prior_alpha + start.prior_beta), s, f, own)
    assert resumed._calibration.state_dict() == scored.state_dict()
    if decay:
        assert logged(resumed, "calibration/ece")[-1] == pytest.approx(expected["ece"])


def test_the_calibration_logged_is_that_of_first_rounds(build):
    data = sums_dataset(6).add_column("rate", [0.1, None, 0.9, 0.5, 0.4, None])
    trainer = run(build, dataset=data, prior_column="rate", prior_strength=8.0, steps_per_generation=3, max_steps=6)
    for batch, (start, (s, f)) in enumerate(zip(trainer.allocator.starts, trainer.allocator.firsts, strict=True)):
        q = start.prior_alpha / (start.prior_alpha + start.prior_beta)
        assert logged(trainer, "calibration/predicted")[batch] == pytest.approx((s + f) @ q / (s + f).sum())
        assert logged(trainer, "calibration/realised")[batch] == pytest.approx(s.sum() / (s + f).sum())
        own = start.prior_alpha + start.prior_beta > 2
        assert logged(trainer, "calibration/frac_own")[batch] == pytest.approx(own.mean())


def test_a_columns_pass_rates_reach_the_allocator_also_where_unused_columns_are_removed(build):
    rates = [0.0, 0.25, None, 1.0, 0.5, float("nan")]
    data = sums_dataset(6).add_column("rate", rates).add_column("prompt_id", list(range(6)))
    trainer = run(build, dataset=data, prior_column="rate", remove_unused_columns=True, max_steps=6)
    seen = {}
    for start in trainer.allocator.starts:
        for key, alpha, beta in zip(start.prompt_ids, start.prior_alpha, start.prior_beta, strict=True):
            seen[int(key)] = (alpha, beta)
    expected = {0: (1, 5), 1: (2, 4), 2: (1, 1), 3: (5, 1), 4: (3, 3), 5: (1, 1)}
    assert seen == expected
    assert "adaroll/prior/alpha" not in trainer.state.log_history[0]


def test_a_bad_column_is_refused_before_training(build):
    data = sums_dataset(6)
    with pytest.raises(ValueError, match=r"prior_column='rate': the data set has no such column; it has prompt, num"):
        build(AdaRollGRPOTrainer, dataset=data, prior_column="rate")
    per_cent = data.add_column("rate", [1.0, 40.0, 50.0, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"prior_column='rate': row 1 has 40.0, .* per cent"):
        build(AdaRollGRPOTrainer, dataset=per_cent, prior_column="rate")


def test_a_transform_that_drops_or_spoils_the_column_is_named(build):
    dropped = sums_dataset(6).with_transform(lambda rows: {"prompt": rows["prompt"]})
    with pytest.raises(ValueError, match=r"prior_column='rate' is not in the rows of a batch, which have prompt"):
        run(build, dataset=dropped, prior_column="rate")
    spoiled = sums_dataset(6).with_transform(lambda rows: {**rows, "rate": [30] * len(rows["prompt"])})
    with pytest.raises(ValueError, match=r"prior_column='rate': row [0-9a-f]{32} has 30, .* per cent"):
        run(build, dataset=spoiled, prior_column="rate")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_source": "fitted"}, r"prior_source='fitted' is not known. Use one of 'fixed', 'empirical_bayes'"),
        ({"prior_column": ""}, r"prior_column='' must be the name of a column"),
        ({"prior_column": "rate", "prior_strength": 0}, r"prior_strength=0 must be a finite number above 0"),
        ({"prior_strength": 8.0}, r"prior_strength=8.0 has no effect without a prior_column"),
        ({"allocator": "adaroll_joint", "prior_column": "rate"}, r"prior_column='rate' with .* one prior for all"),
        ({"allocator": "adaroll_joint", "prior_source": "empirical_bayes"}, r"a fitted prior moves"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        AdaRollGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options)
