"""Simulated epochs: what is paired, what is played, and that beliefs are the trainer's."""

from __future__ import annotations

import numpy as np
import pytest

from adaroll_trl.allocators import Allocator
from adaroll_trl.allocators.uniform import UniformAllocator
from adaroll_trl.simulation.epochs import Drift, simulate_epochs

SMALL = {"num_prompts": 50, "batch_size": 16, "num_generations": 4, "epochs": 3, "repeats": 2}


class Watching(Allocator):
    """One round, everything to the first prompts, as much as each may have; keeps what it was told."""

    name = "watching"

    def __init__(self) -> None:
        self.states = []

    def allocate(self, state, rollouts_left, rounds_left):
        self.states.append(state)
        counts = np.full(state.num_prompts, state.min_rollouts)
        for i in range(state.num_prompts):
            counts[i] += min(state.max_rollouts - counts[i], rollouts_left - counts.sum())
        return counts


def test_equal_groups_are_uniform_and_paired_with_themselves():
    result = simulate_epochs("uniform", drift="fast", **SMALL)
    assert result.signal.shape == (2, 3, 3)
    np.testing.assert_array_equal(result.signal, result.uniform_signal)
    np.testing.assert_array_equal(result.utilities, result.uniform_utilities)
    assert result.gain() == (0.0, 0.0)


def test_all_allocators_decays_and_priors_meet_the_same_outcomes():
    plain = simulate_epochs("uniform", seed=3, **SMALL)
    other = simulate_epochs("adaroll", seed=3, decay=0.9, prior_source="empirical_bayes", rounds=1, **SMALL)
    np.testing.assert_array_equal(plain.uniform_signal, other.uniform_signal)
    assert (other.priors[:, 0, 0] == 1).all()
    assert (other.priors[:, -1, -1] != 1).any()
    assert not np.array_equal(plain.uniform_signal, simulate_epochs("uniform", seed=4, **SMALL).uniform_signal)


def test_beliefs_are_carried_by_prompt_and_fade():
    watching = Watching()
    simulate_epochs(watching, decay=0.5, rounds=1, min_rollouts=1, **{**SMALL, "repeats": 1})
    assert len(watching.states) == 9
    known: dict[str, float] = {}
    for state in watching.states:
        before = [known.get(key, 0.0) for key in state.prompt_ids]
        np.testing.assert_allclose(state.prior_alpha + state.prior_beta - 2, before)
        for place, key in enumerate(state.prompt_ids):  # 64 rollouts: 16 to the first three, 13 to one, 1 to the rest
            spent = [16, 16, 16][place] if place < 3 else (4 if place == 3 else 1)
            known[key] = 0.5 * (known.get(key, 0.0) + spent)


def test_the_policy_drifts_as_told():
    options = {**SMALL, "num_prompts": 160, "num_generations": 8, "repeats": 3}
    still = simulate_epochs("uniform", drift="none", **options)
    rising = simulate_epochs("uniform", drift=Drift(lambda done: 20.0 if done >= 0.5 else 0.0), **options)
    np.testing.assert_array_equal(rising.realised[:, 0], still.realised[:, 0])
    assert (rising.realised[:, 2] > 0.99).all()
    assert still.realised[:, 2].mean() == pytest.approx(still.realised[:, 0].mean(), abs=0.05)


def test_pass_rates_from_before_training_tell_prompts_apart():
    options = {**SMALL, "num_prompts": 160, "num_generations": 8, "epochs": 1, "drift": "none", "decay": 0.0}
    watching = Watching()
    simulate_epochs(watching, rounds=1, prior_strength=10.0, **{**options, "repeats": 1})
    means = np.concatenate([state.prior_alpha / (state.prior_alpha + state.prior_beta) for state in watching.states])
    assert means.min() < 0.15
    assert means.max() > 0.85


def test_allocators_with_state_start_afresh_with_each_repeat():
    made = []

    def make():
        made.append(UniformAllocator())
        return made[-1]

    simulate_epochs(make, **SMALL)
    assert len(made) == 2
    result = simulate_epochs("cero", rounds=1, **SMALL)
    assert np.isfinite(result.utilities).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 51}, "batch_size=51 is more than num_prompts=50"),
        ({"drift": "gentle"}, "drift='gentle' is not known. Use one of 'none', 'slow', 'fast', 'jump'"),
        ({"max_rollouts": 3}, "num_generations=4, max_rollouts=3"),
        ({"epochs": 0}, "epochs=0"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        simulate_epochs("uniform", **{**SMALL, **options})
