"""Learning curves of the arms, a panel a regime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from regimes import REGIMES
from summary import curve

from adaroll_trl.plots import require_matplotlib


def draw(cells: Mapping[tuple[str, str, str], Mapping[int, Any]], path: Path) -> None:
    """Held-out pass@1 less that of GRPO with the same seed, means over seeds with standard errors."""
    require_matplotlib()
    from matplotlib.figure import Figure

    shown = [name for name in REGIMES if (name, "grpo", "") in cells]
    figure = Figure(figsize=(4.2 * len(shown), 4.6), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, regime in zip(panels, shown, strict=True):
        grpo = cells[regime, "grpo", ""]
        axes.axhline(0, color="black", linewidth=1)
        for number, arm in enumerate(arm for r, arm, f in cells if r == regime and not f and arm != "grpo"):
            of = cells[regime, arm, ""]
            seeds = sorted(of.keys() & grpo.keys())
            if not seeds:
                continue
            steps = curve(of[seeds[0]])[0]
            gap = 100 * np.array([curve(of[seed])[1] - curve(grpo[seed])[1] for seed in seeds])
            error = gap.std(axis=0, ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else np.zeros(steps.size)
            axes.errorbar(steps + number, gap.mean(axis=0), error, label=arm, linewidth=1.2, capsize=2)
        axes.set_title(f"{regime}: {REGIMES[regime].description}", fontsize=8)
        axes.set_xlabel("step")
        axes.legend(fontsize=7)
    panels[0].set_ylabel("held-out pass@1 less GRPO's, percentage points")
    figure.savefig(path, dpi=110)
