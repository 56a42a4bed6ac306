"""Learning curves of the arms, and below them where each ends, by regime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from differences import Cells, arms_of, difference
from planned import GRPO
from regimes import REGIMES
from summary import curve, final

from adaroll_trl.plots import require_matplotlib

_COLUMNS = 3


def draw(cells: Cells, path: Path) -> None:
    """Held-out pass@1 less that of GRPO with the same seed: means over seeds, on the way and at the end.

    Below a regime's curves stand its arms with their 95 % interval (thick) and the one for all arms of the regime at
    once (thin), in the curves' colours.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    shown = [name for name in REGIMES if arms_of(cells, name) and (name, GRPO, "") in cells]
    names = sorted({arm for name in shown for arm in arms_of(cells, name)})
    colours = dict(zip(names, matplotlib.colormaps["turbo"](np.linspace(0.02, 0.98, len(names))), strict=True))
    rows = -(-len(shown) // _COLUMNS)
    tall = [
        0.24 * max(len(arms_of(cells, name)) for name in shown[_COLUMNS * k : _COLUMNS * (k + 1)]) + 0.6
        for k in range(rows)
    ]
    figure = Figure(figsize=(4.8 * _COLUMNS, sum(3.2 + high for high in tall)), layout="constrained")
    ratios = [ratio for high in tall for ratio in (3.2, high)]
    panels = figure.subplots(2 * rows, _COLUMNS, squeeze=False, height_ratios=ratios)
    for place, regime in enumerate(shown):
        row, column = divmod(place, _COLUMNS)
        above, below = panels[2 * row : 2 * row + 2, column]
        _curves(above, cells, regime, colours)
        _ends(below, cells, regime, colours)
        above.set_title(f"{regime}: {REGIMES[regime].description}", fontsize=9)
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    figure.savefig(path, dpi=110)


def _curves(axes: Any, cells: Cells, regime: str, colours: dict[str, Any]) -> None:
    grpo = cells[regime, GRPO, ""]
    axes.axhline(0, color="black", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("pass@1 less GRPO's, points", fontsize=8)
    for arm in arms_of(cells, regime):
        of = cells[regime, arm, ""]
        pairs = [(of[seed], grpo[seed]) for seed in sorted(of.keys() & grpo.keys())]
        if pairs:
            gap = np.mean([curve(run)[1] - curve(plain)[1] for run, plain in pairs], axis=0)
            axes.plot(curve(pairs[0][0])[0], 100 * gap, color=colours[arm], linewidth=1.2)


def _ends(axes: Any, cells: Cells, regime: str, colours: dict[str, Any]) -> None:
    found = {arm: difference(cells, regime, arm, "", final) for arm in arms_of(cells, regime)}
    found = {arm: one for arm, one in found.items() if one.seeds}
    arms = sorted(found, key=lambda arm: found[arm].mean)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel("at the end: less GRPO's, points")
    axes.set_yticks(range(len(arms)), [f"{arm} ({found[arm].seeds})" for arm in arms], fontsize=7)
    for place, arm in enumerate(arms):
        one = found[arm]
        axes.plot(100 * one.mean, place, "o", color=colours[arm], markersize=4)
        for half, width in ((one.half, 2.5), (one.simultaneous, 0.8)):
            if np.isfinite(half):
                ends = 100 * np.array([one.mean - half, one.mean + half])
                axes.plot(ends, [place, place], color=colours[arm], linewidth=width)
    if arms:
        widest = max(abs(one.mean) for one in found.values())
        axes.set_xlim(-100 * widest - 2, 100 * widest + 2)  # a wide interval of few seeds does not squeeze the others
