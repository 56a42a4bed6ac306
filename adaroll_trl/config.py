"""The options of adaptive rollout allocation, and `AdaRollGRPOConfig`: GRPOConfig plus these options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from trl import GRPOConfig

from .allocators import ALLOCATOR_NAMES, allocator_class, check_own_options, check_own_values
from .beliefs import PRIOR_STRENGTH
from .checks import check_max_rollouts, explain_batch_size
from .utilities import UTILITY_NAMES
from .values import choice, integer, is_number

__all__ = ["AdaRollGRPOConfig", "AdaRollOptions"]

# Fields that are left open: the paper's reading, and what goes with deciding by earlier visits of a prompt, before the
# first reward. docs/results.md has the evidence for both.
WITHIN_A_BATCH: Mapping[str, Any] = {"rounds": 4, "belief_decay": 0.0, "prompt_weighting": "rollout"}
BY_EARLIER_VISITS: Mapping[str, Any] = {"rounds": 1, "belief_decay": 0.7, "prompt_weighting": "prompt"}
PROMPT_WEIGHTINGS = ("rollout", "prompt", "uniform", "unbiased", "progress")

if TYPE_CHECKING:  # never None once a config is made
    OpenText = str
    OpenInt = int
    OpenFloat = float
else:  # what a parser goes by
    OpenText = str | None
    OpenInt = int | None
    OpenFloat = float | None


@dataclass
class AdaRollOptions:
    """The fields that AdaRoll adds to a TRL config.

    They are apart from `AdaRollGRPOConfig` so that they mix into the config of any GRPOTrainer subclass. A trainer
    whose config lacks them takes the defaults; docs/results.md has the evidence for each of them.

    `utility`, `rounds`, `belief_decay` and `prompt_weighting` are None where they are left open, and get their values
    when the config is made. They stay as they are where `utility` or `allocator` is changed in a config that is made
    already, and the trainer warns where they then go with another way to decide; one that is set to None is chosen
    anew when the trainer is made.

    ```python
    @dataclass
    class MyConfig(AdaRollOptions, GMPOConfig): ...
    ```
    """

    allocator: str = field(
        default="adaroll",
        metadata={
            "help": "Who decides how many rollouts each prompt gets: 'adaroll' (the rounds plan), 'adaroll_joint' "
            "(exact tables in blocks of `block_size` prompts), 'uniform' (plain GRPO), a published method ('cero', "
            "'vip', 'knapsack', 'hora', 'reinforce_ada', 'vigor', 'pilot_commit', 'dars'), 'thompson', or "
            "'package.module:Class' for an allocator of your own."
        },
    )
    allocator_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Options of the allocator alone, as a dict or a JSON string, such as "
            "'{\"mode\": \"pos\"}' for allocator='reinforce_ada'. A class of your own gets them as keyword arguments."
        },
    )
    utility: OpenText = field(
        default=None,  # type: ignore[assignment]
        metadata={
            "help": "What a group with s successes and f failures is worth: 'mixed', 'variance', 'std', 'mass', "
            "'std_mass', 'balanced', 'progress', or 'package.module:function' for a function of two float arrays. "
            "None is 'progress' for allocator='adaroll', which learnt most in our benchmark where prompts come back, "
            "and 'mixed' for the others."
        },
    )
    rounds: OpenInt = field(
        default=None,  # type: ignore[assignment]
        metadata={
            "help": "Generation rounds per generation batch. More rounds adapt better, and each one waits for its "
            "longest completion. 1 decides everything from the beliefs before the first rollout. None is 1 where "
            "earlier visits of a prompt decide (allocator 'adaroll' with utility 'progress'; allocators 'cero', "
            "'vip', 'knapsack'), since more learnt less in our benchmark; else 4, the paper's way as we read it."
        },
    )
    stream_rollouts: bool = field(
        default=False,
        metadata={
            "help": "Decide rollout by rollout inside one generation call, without rounds: when a completion ends it "
            "is scored and the next prompt is chosen. Needs vLLM or transformers' continuous batching."
        },
    )
    in_flight: int | None = field(
        default=None,
        metadata={
            "help": "Only with `stream_rollouts`: requests in an engine at once. Fewer adapt better and take more "
            "engine steps. None means 1/8 of the rollouts, as far as the engine can run that many."
        },
    )
    stream_order: Literal["finish", "start"] = field(
        default="finish",
        metadata={
            "help": "Only with `stream_rollouts`. 'finish': each decision knows every score so far. 'start': scores "
            "become known in the order in which rollouts were started, the oldest of `in_flight` first, so that "
            "decisions do not depend on completion lengths or on timing; a long completion holds up those behind it."
        },
    )
    draws_per_round: int = field(
        default=1,
        metadata={
            "help": "Rollouts that each block gets per round after the first. Only for allocator='adaroll_joint', "
            "which ignores `rounds`; 1 is fully sequential."
        },
    )
    min_rollouts: int = field(
        default=2,
        metadata={
            "help": "Every prompt gets at least this many rollouts. Must stay below `num_generations` to adapt. "
            "In our benchmark 0 to 4 learnt alike within the error; with 2 no prompt starves."
        },
    )
    max_rollouts: int | None = field(
        default=None,
        metadata={"help": "Every prompt gets at most this many rollouts. None means 4 * num_generations."},
    )
    prior_alpha: float = field(
        default=1.0, metadata={"help": "Beta prior on a prompt's success probability: pseudo-count of successes."}
    )
    prior_beta: float = field(
        default=1.0, metadata={"help": "Beta prior on a prompt's success probability: pseudo-count of failures."}
    )
    prior_source: Literal["fixed", "empirical_bayes"] = field(
        default="fixed",
        metadata={
            "help": "'fixed': the prior is Beta(prior_alpha, prior_beta). 'empirical_bayes': it starts there, and "
            "before each batch is fitted to the outcomes of all prompts so far, which taught no more in our benchmark."
        },
    )
    prior_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the data set with each prompt's pass rate, 0 to 1 (None where it is not known). Adds "
            "prior_strength * rate to prior_alpha and the rest of prior_strength to prior_beta."
        },
    )
    prior_strength: float = field(
        default=PRIOR_STRENGTH,
        metadata={"help": "Only with `prior_column`: how many rollouts a pass rate of the data set counts for."},
    )
    kappa: float = field(
        default=2.0,
        metadata={
            "help": "Only for utility='progress' and prompt_weighting='progress': the noise of one rollout against "
            "the spread between prompts. Our benchmark's starts had 0.6 to 4.1, and more where success is sparse; 8 "
            "and a measured one learnt less than 2."
        },
    )
    kappa_every: int | None = field(
        default=None,
        metadata={
            "help": "Only where `kappa` is used: measure it every that many steps, from gradients of single rollouts, "
            "and use the running value instead; `kappa` is where it starts. A measurement costs about twice the "
            "forward and backward passes of 32 groups. None keeps `kappa`."
        },
    )
    block_size: int = field(
        default=4,
        metadata={"help": "Only for allocator='adaroll_joint': prompts per exact table. Its size grows steeply."},
    )
    belief_decay: OpenFloat = field(
        default=None,  # type: ignore[assignment]
        metadata={
            "help": "What a prompt's outcomes count for at its next visit, per visit: 0 forgets them, 1 keeps them "
            "all. Prompts are told apart by a `prompt_id` column, else by a hash of the prompt. None is 0.7 where "
            "`rounds` is 1 by default, as 0.5 and 0.7 lose least while a policy drifts (simulated); else 0."
        },
    )
    success_reward: str | None = field(
        default=None,
        metadata={
            "help": "Name of the reward function that says whether a rollout succeeded. None takes the weighted sum."
        },
    )
    success_threshold: float | None = field(
        default=None,
        metadata={
            "help": "A rollout succeeds where the success reward is at or above this. None means 0.5, and warns once "
            "if the rewards do not look binary around it."
        },
    )
    prompt_weighting: OpenText = field(
        default=None,  # type: ignore[assignment]
        metadata={
            "help": "'rollout': a prompt weighs as much as its rollouts, as in TRL's loss. 'prompt': as any other "
            "prompt. 'uniform': the update's weight at each pass rate is brought to that of equal groups; "
            "'package.module:function' to that function of the pass rate. 'unbiased': exactly uniform, where one "
            "prompt's rollouts do not depend on another's. 'progress': by 1 / (s f / n + kappa). None is 'prompt' "
            "where `rounds` is 1 by default, which is GRPO where groups are equal and in our benchmark learnt no less "
            "than 'progress'; else 'rollout'."
        },
    )
    table_cache_dir: str | None = field(
        default=None, metadata={"help": "Folder for policy tables. None takes the user's cache folder."}
    )

    def __post_init__(self) -> None:
        self._choose_open()
        if hasattr(super(), "__post_init__"):  # of the config that these options are mixed into
            super().__post_init__()  # type: ignore[misc]

    def _choose_open(self) -> None:
        """What is left open is chosen by the allocator and the utility."""
        for name in ("utility", "prompt_weighting"):  # of a command line: TRL's parser keeps the word in texts
            if str(getattr(self, name)).lower() in ("none", "null"):
                setattr(self, name, None)
        if self.utility is None:
            self.utility = "progress" if self.allocator == "adaroll" else "mixed"
        kind = allocator_class(self.allocator) if isinstance(self.allocator, str) else None
        by_visits = (self.allocator, self.utility) == ("adaroll", "progress") or (kind and kind.needs_beliefs)
        for name, value in (BY_EARLIER_VISITS if by_visits else WITHIN_A_BATCH).items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def defaults(self) -> AdaRollOptions:
        """The options as they are where only the allocator and the utility are given."""
        return AdaRollOptions(allocator=self.allocator, utility=self.utility)

    def validate_adaroll(self) -> None:
        """Raise `ValueError` for the first field whose value cannot be right; a JSON string becomes its dict."""
        self._choose_open()
        for name, least in (("rounds", 1), ("draws_per_round", 1), ("min_rollouts", 0), ("block_size", 1)):
            integer(name, getattr(self, name), least)
        if self.max_rollouts is not None:
            integer("max_rollouts", self.max_rollouts, 2)
        if not isinstance(self.stream_rollouts, bool):
            raise ValueError(f"stream_rollouts={self.stream_rollouts!r} must be True or False.")
        if self.in_flight is not None:
            integer("in_flight", self.in_flight, 1)
        choice("stream_order", self.stream_order, ("finish", "start"))
        for name in ("prior_alpha", "prior_beta", "prior_strength", "kappa"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r} must be a finite number above 0.")
        self._validate_kappa_every()
        if not (is_number(self.belief_decay) and 0 <= self.belief_decay <= 1):
            raise ValueError(
                f"belief_decay={self.belief_decay!r} must be in [0, 1]: 0 forgets a prompt's outcomes, 1 keeps them."
            )
        if self.success_threshold is not None and not is_number(self.success_threshold):
            raise ValueError(f"success_threshold={self.success_threshold!r} must be a finite number, or None for 0.5.")
        for name in ("success_reward", "table_cache_dir"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (str, os.PathLike)) and str(value)):
                raise ValueError(f"{name}={value!r} must be a text, or None.")
        self._validate_prior()
        choice("prompt_weighting", self.prompt_weighting, PROMPT_WEIGHTINGS, "'package.module:function'")
        choice("allocator", self.allocator, ALLOCATOR_NAMES, "'package.module:Class'")
        choice("utility", self.utility, UTILITY_NAMES, "'package.module:function'")
        self.allocator_kwargs = _parse_kwargs("allocator_kwargs", self.allocator_kwargs)
        if self.allocator in ALLOCATOR_NAMES:
            with naming_allocator_kwargs(self.allocator):
                check_own_options(self.allocator, self.allocator_kwargs or {})
                if self.allocator_kwargs:
                    check_own_values(self.allocator, self.allocator_kwargs)

    def _validate_kappa_every(self) -> None:
        if self.kappa_every is None:
            return
        integer("kappa_every", self.kappa_every, 1)
        if "progress" not in (self.utility, self.prompt_weighting):
            raise ValueError(
                f"kappa_every={self.kappa_every} measures a kappa that nothing reads. Set utility='progress' or "
                "prompt_weighting='progress', or remove it: `adaroll_trl.noise.KappaCallback` measures for the log."
            )
        if self.allocator == "adaroll_joint" and self.utility == "progress":
            raise ValueError(
                f"kappa_every={self.kappa_every} with allocator='adaroll_joint': its tables take seconds to hours for "
                "each kappa. Remove it, or use allocator='adaroll'."
            )

    def _validate_prior(self) -> None:
        """What beliefs start from, and what the allocator can take."""
        choice("prior_source", self.prior_source, ("fixed", "empirical_bayes"))
        if self.prior_column is not None and not (isinstance(self.prior_column, str) and self.prior_column):
            raise ValueError(f"prior_column={self.prior_column!r} must be the name of a column, or None.")
        if self.prior_column is None and self.prior_strength != PRIOR_STRENGTH:
            raise ValueError(
                f"prior_strength={self.prior_strength!r} has no effect without a prior_column. Name the column with "
                "the pass rates, or remove it."
            )
        if self.allocator != "adaroll_joint":
            return
        for name, plain in (("belief_decay", 0), ("prior_column", None)):
            if getattr(self, name) != plain:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} with allocator='adaroll_joint': its tables need one prior "
                    f"for all prompts. Set {name}={plain}, or use allocator='adaroll', which takes a prior for each "
                    "prompt."
                )
        if self.prior_source != "fixed":
            raise ValueError(
                f"prior_source={self.prior_source!r} with allocator='adaroll_joint': its tables take seconds to hours "
                "for each prior, and a fitted prior moves. Set prior_source='fixed', or use allocator='adaroll'."
            )


@dataclass
class AdaRollGRPOConfig(AdaRollOptions, GRPOConfig):
    """Configuration of [`AdaRollGRPOTrainer`]: every field of TRL's `GRPOConfig`, and those of `AdaRollOptions`.

    Example:

    ```python
    args = AdaRollGRPOConfig(output_dir="out", num_generations=8, steps_per_generation=8)
    ```
    """

    def __post_init__(self) -> None:
        self.validate_adaroll()
        try:
            super().__post_init__()
        except ValueError as error:
            if "must be divisible by" not in str(error):
                raise
            raise ValueError(explain_batch_size(self)) from error
        if self.max_rollouts is not None and self.num_generations is not None:
            check_max_rollouts(self.num_generations, self.min_rollouts, self.max_rollouts)


def options_of(args: Any) -> AdaRollOptions:
    """The AdaRoll options in a trainer's `args`, or the defaults for a config without them such as `GRPOConfig`."""
    if not isinstance(args, AdaRollOptions):
        return AdaRollOptions()
    args.validate_adaroll()
    return AdaRollOptions(**{item.name: getattr(args, item.name) for item in fields(AdaRollOptions)})


@contextmanager
def naming_allocator_kwargs(allocator: str) -> Iterator[None]:
    """An error of an allocator's own options says that they are those in `allocator_kwargs`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"allocator_kwargs of allocator {allocator!r}: {error}") from error


def load_by_path(name: str, path: str) -> Any:
    """What 'package.module:attribute' points to; an error that names the field where it cannot be loaded.

    Modules are looked for in the working directory too, as by TRL's own scripts.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{name}={path!r} cannot be loaded: {error}. It must be 'package.module:attribute'."
        ) from error


def _parse_kwargs(name: str, value: Any) -> dict[str, Any] | None:
    """A dict with names as keys, from itself or from JSON; None for none."""
    parsed = value
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f'{name}={value!r:.200} is not JSON: {error}. Write it like {{"mode": "pos"}}.'
            ) from error
    if parsed is not None and not (isinstance(parsed, dict) and all(isinstance(key, str) for key in parsed)):
        raise ValueError(f"{name}={value!r} must be a dict of options by name, or that in JSON.")
    return parsed
