"""The last round is solved exactly, whatever the shape of the values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaroll_trl.solver.knapsack import solve_knapsack


def best_by_dynamic_programming(values, low, high, total):
    best = {0: 0.0}
    for row, least, most in zip(values, low, high, strict=True):
        new = {}
        for spent, value in best.items():
            for m in range(least, most + 1):
                if spent + m <= total:
                    new[spent + m] = max(new.get(spent + m, -np.inf), value + row[m])
        best = new
    return best[total]


@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from(["rough", "rounded", "rising", "convex", "alike"]))
@settings(max_examples=300, deadline=None)
def test_knapsack_is_exact(seed, shape):
    rng = np.random.default_rng(seed)
    n, width = rng.integers(1, 7), rng.integers(1, 9)
    values = rng.normal(size=(n, width + 1))
    if shape == "rounded":
        values = values.round(0)
    elif shape == "rising":
        values = np.cumsum(np.abs(values), axis=1)
    elif shape == "convex":
        values = np.cumsum(np.sort(np.abs(values), axis=1), axis=1)
    elif shape == "alike":
        values = np.tile(values[0], (n, 1))
    low = rng.integers(0, width + 1, n)
    high = np.minimum(width, low + rng.integers(0, width + 1, n))
    total = int(rng.integers(low.sum(), high.sum() + 1))
    counts = solve_knapsack(np.ascontiguousarray(values), low, high, total)
    assert counts.sum() == total
    assert ((counts >= low) & (counts <= high)).all()
    found = values[np.arange(n), counts].sum()
    assert found == pytest.approx(best_by_dynamic_programming(values, low, high, total), abs=1e-9)


def test_equal_values_go_to_the_lowest_prompts():
    values = np.tile([0.0, 1.0, 1.5], (4, 1))
    assert solve_knapsack(values, np.zeros(4, int), np.full(4, 2), 5).tolist() == [2, 1, 1, 1]
