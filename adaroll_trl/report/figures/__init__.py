"""The pictures of a report. Each `draw` function yields none where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...plots import require_matplotlib
from ..run import Run
from .curves import draw_held_out, draw_rewards, draw_signal, draw_utility
from .drawing import Picture
from .rollouts import draw_difficulty, draw_phases, draw_time_map
from .update import draw_calibration, draw_time, draw_weights

_Draw = Callable[[Sequence[Run]], Iterator[Picture]]
_LOG = "completions with rewards (log_completions=True)"
_SECTIONS: dict[str, tuple[tuple[_Draw, str], ...]] = {
    "Learning": (
        (draw_rewards, "Training reward: there is no trainer_state.json, or nothing is logged in it yet."),
        (draw_held_out, "Held-out results: the log has none (no evaluation while training)."),
    ),
    "Signal and difficulty": (
        (draw_signal, "Prompts with signal: neither a log nor completions tell of them."),
        (draw_utility, ""),
        (draw_difficulty, f"Difficulty: it needs {_LOG}."),
    ),
    "Where the rollouts went": (
        (draw_phases, f"Rollouts against success rate: they need {_LOG} of a run with unequal groups."),
        (draw_time_map, ""),
    ),
    "Weights, beliefs, time": (
        (
            draw_weights,
            "Prompt weights: AdaRoll's trainer logs them (adaroll/prompt_weight/curve); this log has none.",
        ),
        (
            draw_calibration,
            "Beliefs: they need a checkpoint of AdaRoll's trainer with belief_decay above 0, or with a prior_column.",
        ),
        (draw_time, "Time: the log has neither step_time nor adaroll/time."),
    ),
}


def pictures(runs: Sequence[Run]) -> tuple[dict[str, list[Picture]], list[str]]:
    """All pictures by section, and what is missing and why.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    require_matplotlib()
    found: dict[str, list[Picture]] = {}
    missing: list[str] = []
    for section, draws in _SECTIONS.items():
        for draw, without in draws:
            drawn = list(draw(runs))
            found.setdefault(section, []).extend(drawn)
            missing += [without] if without and not drawn else []
    return {section: drawn for section, drawn in found.items() if drawn}, missing
