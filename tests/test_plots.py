"""plots: pictures are drawn, saved and say what they need."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from adaroll_trl.plots import (
    BatchAllocation,
    Curve,
    comparison_figure,
    moving_average,
    require_matplotlib,
    save_figure,
)

pytest.importorskip("matplotlib")


@pytest.fixture
def batch() -> BatchAllocation:
    return BatchAllocation(
        rollouts=np.array([4, 2, 12]),
        successes=np.array([0, 1, 12]),
        success_rates=np.array([0.5, 0.1, 0.9]),
        errors=np.array([0.02, 0.01, 0.01]),
        budget_per_prompt=6.0,
    )


def test_moving_average_uses_what_is_there():
    assert moving_average([1.0, 3.0, 5.0, 7.0], 3).tolist() == [1.0, 2.0, 3.0, 5.0]
    assert moving_average([], 3).size == 0


def test_allocation_is_drawn_in_the_order_of_the_success_rates(batch):
    figure = comparison_figure({"GRPO": Curve([0, 1], [0.1, 0.2], [0.01, 0.01])}, {}, batch, heading="three prompts")
    counts = figure.axes[2]
    right, wrong = counts.containers[0], counts.containers[1]
    assert [bar.get_height() for bar in right] == [1, 0, 12]
    assert [bar.get_height() for bar in wrong] == [1, 4, 0]


def test_a_figure_without_a_batch_has_only_curves():
    figure = comparison_figure({"one": Curve([0, 1], [0.0, 1.0])}, {"one": Curve([0], [1.0])}, None, heading="")
    assert len(figure.axes) == 2


def test_save_creates_the_folder(tmp_path, batch):
    path = tmp_path / "new" / "picture.png"
    save_figure(comparison_figure({}, {}, batch, heading=""), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_names_the_extra(monkeypatch):
    real_import = builtins.__import__

    def without_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=r"adaroll_trl\[plots\]"):
        require_matplotlib()
