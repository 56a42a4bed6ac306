"""What all pictures of a report share: their size and style, and the lines over the steps."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...plots import COLOURS, tidy
from ..run import Run, smooth, smoothing_window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]

_SIZE = (4.8, 3.5)  # inches: text stays readable where a page is 360 pixels wide
_DPI = 220
_LEGEND_WIDTH = 50  # characters
MUTED = "#777777"
MARKERS = ("o", "^")


@dataclass(frozen=True)
class Picture:
    """A drawn figure.

    Args:
        name (`str`): of its file, without the ending.
        title, caption, alt (`str`): what it shows, how to read it, and what is seen in it.
        png (`bytes`): the image.
    """

    name: str
    title: str
    caption: str
    alt: str
    png: bytes
    width: int
    height: int


def picture(name: str, title: str, caption: str, alt: str, draw: Callable[[Axes], None]) -> Picture:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from PIL import Image

    raw = io.BytesIO()
    with rc_context({"text.parse_math": False}):  # names of runs and rewards may hold any sign
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        tidy([axes])
        draw(axes)
        figure.savefig(raw, format="png", dpi=_DPI)
    image = Image.open(raw).convert("RGB").quantize(128)  # a third of the size, alike to the eye
    packed = io.BytesIO()
    image.save(packed, format="PNG", optimize=True)
    return Picture(name, title, caption, alt, packed.getvalue(), image.width, image.height)


def draw_line(axes: Axes, run: Run, steps: FloatArray, values: FloatArray, label: str, **style: Any) -> None:
    """The smoothed values as a line, the values themselves faint behind it."""
    style = {"color": COLOURS[run.colour], "linewidth": 1.8, **style}
    if smoothing_window(values.size) > 1:
        axes.plot(steps, values, color=style["color"], linewidth=0.7, alpha=0.22)
    axes.plot(steps, smooth(values), label=label, **style)


def finish(axes: Axes, ylabel: str, xlabel: str = "step", legend: Literal["best", "upper right"] = "best") -> None:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    labels = [textwrap.fill(label, _LEGEND_WIDTH) for label in labels]
    if len(labels) > 2 or longest > _LEGEND_WIDTH // 2:  # below the axes, where it hides nothing
        columns = 1 if longest > _LEGEND_WIDTH // 2 else 2
        axes.figure.legend(handles, labels, frameon=False, fontsize=8.5, loc="outside lower center", ncols=columns)
    elif labels:
        axes.legend(handles, labels, frameon=False, fontsize=9, loc=legend)


def plain_number(value: float, place: float | None = None) -> str:
    """A tick of a logarithmic axis: 0.01 and not a power of ten."""
    return f"{value:g}"


def label_of(run: Run, runs: Sequence[Run], text: str) -> str:
    return f"{run.name}: {text}" if len(runs) > 1 else text


def ends_of(values: FloatArray) -> str:
    """First and last fifth, in words for those who do not see the line."""
    part = max(1, values.size // 5)
    return f"{values[:part].mean():.3f} in the first fifth, {values[-part:].mean():.3f} in the last"
