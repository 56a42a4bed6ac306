"""Which cells are run, fixed before they are: PLAN.md says why.

A stage is a list of cells. Runs are ordered by seed and then by cell, so that an interrupted benchmark has compared
everything with a few seeds rather than a few things with all.
"""

from __future__ import annotations

from typing import Any

from cell import Cell

SEEDS = tuple(range(8))
CONFIRM = "confirm"  # the factor of cells that are run again
LARGE = "P128-fresh"  # the factor of cells with large batches of fresh prompts
# Seeds of their own: nothing was chosen on them; and starts are a machine's own, so that a later table needs others
_OTHER_SEEDS = {CONFIRM: tuple(range(8, 16)), LARGE: tuple(range(16, 24))}
FRESH, REPEATED = ("H", "U", "HH"), ("HR", "UR")
RETURNING = ("HHR", *REPEATED)  # all whose prompts come back
KAPPA = 2.0  # measured before the first run, and anew since: see PLAN.md and docs/results/learning/kappa.json
_CARRY = {"belief_decay": 0.7, "min_rollouts": 0}
_PROGRESS = {"utility": "progress", "kappa": KAPPA, "prompt_weighting": "progress", "scale_rewards": "none"}
_ASYMMETRIC = {"utility": "asymmetric:hard_mixed", "prompt_weighting": "prompt"}

GRPO: dict[str, Any] = {"allocator": "uniform", "rounds": 1}
# Fresh prompts: beliefs start at the prior, so only what is learned within a batch can move rollouts
FRESH_ARMS: dict[str, dict[str, Any]] = {
    "grpo": GRPO,
    "grpo-unscaled": {**GRPO, "scale_rewards": "none"},  # what `progress` changes besides its allocation
    "mixed": {},
    "mixed-prompt": {"prompt_weighting": "prompt"},
    "mixed-uniform": {"prompt_weighting": "uniform"},
    "variance": {"utility": "variance", "prompt_weighting": "prompt"},
    "progress": _PROGRESS,
    "asymmetric": _ASYMMETRIC,
    "hora": {"allocator": "hora", "rounds": 2},
    "reinforce-ada": {"allocator": "reinforce_ada", "allocator_kwargs": {"mode": "balance"}},
}
# Prompts that come back: beliefs are carried, with a decay of 0.7 a visit
REPEATED_ARMS: dict[str, dict[str, Any]] = {
    "grpo": GRPO,
    "mixed-prompt": {"prompt_weighting": "prompt"},
    "carry-1-round": {**_CARRY, "rounds": 1, "prompt_weighting": "prompt"},
    "carry-2-rounds": {**_CARRY, "rounds": 2, "prompt_weighting": "prompt"},
    "carry-progress": {**_CARRY, **_PROGRESS, "rounds": 1},
    "carry-asymmetric": {**_CARRY, **_ASYMMETRIC, "rounds": 1},
    "cero": {"allocator": "cero", "belief_decay": 0.7, "rounds": 1, "prompt_weighting": "prompt"},
    "vip": {"allocator": "vip", "belief_decay": 0.7, "rounds": 1, "prompt_weighting": "prompt"},
    "knapsack": {"allocator": "knapsack", "belief_decay": 0.7, "rounds": 1, "prompt_weighting": "prompt"},
}

# Where docs/results/worth_of_allocation.md says that allocation can be worth most: see the amendment in PLAN.md
_FITTED = {"prior_source": "empirical_bayes"}
_PROGRESS_FITTED = {**_PROGRESS, **_FITTED}
_PROGRESS_8 = {**_PROGRESS, "kappa": 8.0}
WORTH_ARMS: dict[str, dict[str, Any]] = {
    **{
        arm: REPEATED_ARMS[arm]
        for arm in ("grpo", "mixed-prompt", "carry-1-round", "carry-2-rounds", "carry-progress")
    },
    "carry-progress-8": {**_CARRY, **_PROGRESS_8, "rounds": 1},
    "carry-progress-2-rounds": {**_CARRY, **_PROGRESS, "rounds": 2},
    **{arm: REPEATED_ARMS[arm] for arm in ("cero", "vip", "knapsack")},
}

# After the regimes with repeated prompts were complete: see the second amendment in PLAN.md
LATER_ARMS: dict[str, dict[str, Any]] = {
    "mixed": {},  # the paper, as we read it
    "carry-progress-fitted": {**_CARRY, **_PROGRESS, **_FITTED, "rounds": 1},
}
# What `carry-progress` changes besides its allocation, and kappa measured while training
CONTROL_ARMS: dict[str, dict[str, Any]] = {
    "grpo-unscaled": FRESH_ARMS["grpo-unscaled"],
    "grpo-progress-weights": {**FRESH_ARMS["grpo-unscaled"], "prompt_weighting": "progress", "kappa": KAPPA},
    "carry-progress-measured": {**_CARRY, **_PROGRESS, "kappa_every": 25, "rounds": 1},
}
# Allocates as `carry-progress`, and is GRPO itself where all groups are equal: the fifth amendment
PROMPT_ALIKE: dict[str, Any] = {
    **_CARRY,
    "utility": "progress",
    "kappa": KAPPA,
    "prompt_weighting": "prompt",
    "rounds": 1,
}
DEFAULT: dict[str, Any] = {**PROMPT_ALIKE, "min_rollouts": 2}
# By mean area under the curve over HR, UR and HHR: the seventh amendment
BEST: dict[str, dict[str, Any]] = {
    "carry-progress-prompt-min2": DEFAULT,
    "cero": REPEATED_ARMS["cero"],
    "carry-progress": REPEATED_ARMS["carry-progress"],
}
# By mean area under the curve over H, U and HH, and the paper's setting: the ninth amendment
FRESH_BEST: dict[str, dict[str, Any]] = {
    **{arm: FRESH_ARMS[arm] for arm in ("mixed", "hora", "progress")},
    "progress-fitted": _PROGRESS_FITTED,
}
_MANY: dict[str, Any] = {"prompts": 128, "steps": 50, "learning_rate": 5e-4}


def one_factor(regime: str, arms: dict[str, dict[str, Any]]) -> list[Cell]:
    """What changes for these arms, and GRPO where it is changed too, if one factor of the base point is another."""
    return [
        Cell(regime, "grpo", GRPO, **_MANY, factor="P128"),
        *(
            cell
            for arm, options in arms.items()
            for cell in (
                *(Cell(regime, arm, options, num_generations=size, factor=f"G{size}") for size in (4, 16)),
                Cell(regime, arm, options, **_MANY, factor="P128"),
                *(Cell(regime, arm, {**options, "min_rollouts": least}, factor=f"min{least}") for least in (1, 4)),
            )
        ),
    ]


def seeds_of(factor: str) -> tuple[int, ...]:
    """The seeds of a cell with this factor."""
    return _OTHER_SEEDS.get(factor, SEEDS)


STAGES: dict[str, list[Cell]] = {
    # Does it help at all to have more rollouts? If not, no allocation can be seen to.
    "gain": [
        Cell(regime, "grpo", GRPO, num_generations=size, factor=f"G{size}")
        for regime in (*FRESH, *REPEATED, "HHR")
        for size in (4, 16)
    ],
    "base": [
        *(Cell(regime, arm, options) for regime in FRESH for arm, options in FRESH_ARMS.items()),
        *(Cell(regime, arm, options) for regime in REPEATED for arm, options in REPEATED_ARMS.items()),
    ],
    "worth": [
        *(Cell("HHR", arm, options) for arm, options in WORTH_ARMS.items()),
        *(Cell(regime, "progress-fitted", _PROGRESS_FITTED) for regime in FRESH),
        *(Cell(regime, "carry-progress-8", WORTH_ARMS["carry-progress-8"]) for regime in REPEATED),
    ],
    "later": [
        *(Cell("HHR", arm, options) for arm, options in CONTROL_ARMS.items()),
        *(Cell(regime, arm, options) for regime in RETURNING for arm, options in LATER_ARMS.items()),
    ],
    # Candidates for the default, and what `carry-progress` is with fresh prompts: equal groups with its weights
    "default": [
        *(Cell(regime, "carry-progress-prompt", PROMPT_ALIKE) for regime in RETURNING),
        *(Cell(regime, "carry-progress-prompt-min2", DEFAULT) for regime in RETURNING),
        *(
            Cell(regime, "grpo-progress-weights", CONTROL_ARMS["grpo-progress-weights"])
            for regime in (*FRESH, *REPEATED)
        ),
    ],
    CONFIRM: [
        Cell(regime, arm, options, factor=CONFIRM)
        for regime in RETURNING
        for arm, options in (("grpo", GRPO), ("carry-progress-prompt-min2", DEFAULT))
    ],
    "factors": [
        *one_factor("HHR", BEST),
        *(
            Cell("HHR", "carry-progress-prompt-min2", {**DEFAULT, "rounds": rounds}, factor=f"rounds{rounds}")
            for rounds in (2, 4)
        ),
    ],
    "large": [
        Cell("HH", arm, options, **_MANY, factor=LARGE) for arm, options in {"grpo": GRPO, **FRESH_BEST}.items()
    ],
}
