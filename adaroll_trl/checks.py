"""What the trainer refuses, and the numbers it shows when it does.

Each check raises where going on would deadlock, or train on something other than what was asked for.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trl
from trl import GRPOTrainer

from .allocators import allocator_class
from .allocators.contract import check_counts
from .priors import pass_rates

__all__ = ["check_counts"]  # the only one that users call, to try an allocator of their own

NEWEST_TESTED_TRL = "1.16"
_ROUND_METHODS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
}


def warn_if_trl_changed(trainer: type = GRPOTrainer) -> None:
    """Warn where the two methods that a round relies on do not take what they have taken since TRL 1.0."""
    for name, expected in _ROUND_METHODS.items():
        method = getattr(trainer, name, None)
        found = list(inspect.signature(method).parameters) if method is not None else None
        if found != expected:
            warnings.warn(
                f"TRL {trl.__version__} has {trainer.__name__}.{name}({', '.join(found or ['missing'])}), where "
                f"adaroll_trl expects ({', '.join(expected)}). It is tested up to TRL {NEWEST_TESTED_TRL}: look for "
                "a newer adaroll_trl, or install that TRL.",
                stacklevel=2,
            )


def check_class(cls: type, mixin: type) -> None:
    """Refuse a class in which the mixin would have no effect, and warn where a round may not mean what it says."""
    mro = cls.__mro__
    if GRPOTrainer not in mro:
        raise TypeError(
            f"{cls.__name__} mixes {mixin.__name__} into something that is not a GRPOTrainer. Adaptive rollouts need "
            f"TRL's GRPOTrainer or a subclass of it: `class {cls.__name__}({mixin.__name__}, GRPOTrainer)`."
        )
    if mro.index(mixin) > mro.index(GRPOTrainer):
        raise TypeError(
            f"{cls.__name__} lists {mixin.__name__} after GRPOTrainer, whose methods would win: it would train plain "
            f"GRPO. Put the mixin first: `class {cls.__name__}({mixin.__name__}, ...)`."
        )
    below = mro[mro.index(mixin) + 1 : mro.index(GRPOTrainer)]
    for base in below:
        if "ReplayBuffer" in base.__name__:
            raise TypeError(
                f"{cls.__name__} inherits from {base.__name__}, which swaps rollouts between groups of equal size. "
                "Groups of unequal size cannot be swapped: use GRPOTrainer as the base."
            )
        if "_generate_and_score_completions" in vars(base):
            warnings.warn(
                f"{base.__name__} overrides `_generate_and_score_completions`. {cls.__name__} calls it once per round "
                "with `num_generations` set to 1, so it must not rely on whole groups. To act on the whole batch, "
                f"override it in a subclass of {cls.__name__} instead.",
                stacklevel=4,
            )


def check_call(given: Mapping[str, Any]) -> None:
    """Refuse constructor arguments that TRL replaces, so that they can no longer be seen afterwards."""
    if given.get("train_dataset") is None and given.get("environment_factory") is not None:
        raise ValueError(
            "train_dataset=None with an `environment_factory`: the environment invents a prompt for each rollout, so "
            "no two rollouts share one and there is no group to give more rollouts to. Pass a `train_dataset` whose "
            "rows fix the task (for example a seed column that `reset` takes), or use TRL's GRPOTrainer."
        )


def check_trainer(trainer: Any) -> None:
    """Refuse combinations that would deadlock, or that make all rounds alike."""
    for base in type(trainer).__mro__:
        if "unsloth" in f"{base.__module__}.{base.__name__}".lower():
            raise ValueError(
                f"{base.__name__} comes from Unsloth, which rewrites TRL's GRPOTrainer and with it the methods that "
                "a round calls. Do not import unsloth in this process, or use Unsloth's trainer without adaroll_trl."
            )
    check_generation_seed(trainer.args)
    _check_tools(trainer)


def number_of_rows(dataset: Any) -> int | None:
    """How many rows a data set has; None where one cannot tell, as of a stream, or there is none."""
    return len(dataset) if hasattr(dataset, "__len__") else None


def check_dataset(dataset: Any, num_prompts: int, environments_own_prompts: bool) -> None:
    """Refuse a data set that no generation batch can be made of: TRL's sampler would end the run without a step."""
    rows = number_of_rows(dataset)
    if rows is not None and rows < num_prompts:
        raise ValueError(
            f"train_dataset has {rows} rows, fewer than the {num_prompts} prompts of a generation batch: not "
            "one step could be taken. Add rows, or lower steps_per_generation or per_device_train_batch_size."
        )
    columns = _known_columns(dataset)
    if columns and "prompt" not in columns and not environments_own_prompts:
        raise ValueError(
            f"train_dataset has no column `prompt`; it has {', '.join(columns)}. Rename the one with the prompts."
        )


def check_decay_without_ids(decay: float, default: float) -> str:
    """For an environment's tasks that have no ids: refuse a decay that was asked for.

    Returns:
        `str`: where it is the default, why nothing is carried over instead.
    """
    why = (
        f"belief_decay={decay} with an environment needs a `prompt_id` column: the environment adds to the prompt, so "
        "the dataset's prompt alone does not tell tasks apart."
    )
    if decay != default:
        raise ValueError(f"{why} Add the column, or set belief_decay=0.")
    return (
        f"{why} It is the default, so training goes on with belief_decay=0: in one round that is plain GRPO. Add the "
        "column, or decide within a batch, with utility='mixed'."
    )


def _known_columns(dataset: Any) -> list[str] | None:
    """The columns that rows of `dataset` have; None where one cannot tell."""
    shown_as_stored = getattr(dataset, "format", {"type": None})["type"] != "custom"  # a transform may add some
    return getattr(dataset, "column_names", None) if shown_as_stored else None


def check_prior_column(dataset: Any, column: str) -> None:
    """Refuse a data set without this column, or with values in it that are no pass rates, as far as one can look."""
    columns = _known_columns(dataset)
    if columns is None:
        return
    if column not in columns:
        raise ValueError(
            f"prior_column={column!r}: the data set has no such column; it has {', '.join(columns)}. Name the column "
            "with each prompt's pass rate, or remove prior_column."
        )
    pass_rates(column, dataset[column])


def check_prompt_weighting(weighting: str, aggregation: str) -> None:
    """Refuse weights whose meaning is lost in how TRL combines the reward functions."""
    if weighting not in ("rollout", "prompt") and aggregation != "sum_then_normalize":
        raise ValueError(
            f"prompt_weighting={weighting!r} with multi_objective_aggregation={aggregation!r}: each reward function "
            "is divided by a standard deviation of its own there, so no factor on the sum undoes them. Use "
            "multi_objective_aggregation='sum_then_normalize', or prompt_weighting='rollout' or 'prompt'."
        )


def check_unbiased(allocator: str, has_plan: bool, streams: bool = False) -> None:
    """Refuse unbiased weights where a prompt's rollouts depend on the rewards of others."""
    if streams and not has_plan:
        raise ValueError(
            f"prompt_weighting='unbiased' with allocator {allocator!r} in a stream: how many rollouts a prompt gets "
            "depends on the others' rewards, and no factor on its own outcomes is exact. Set "
            "prompt_weighting='uniform', which is approximate, or an allocator that decides before the first reward, "
            "such as 'cero'."
        )
    if not has_plan:
        kind = allocator_class(allocator)
        always = kind is not None and not kind.reads_rounds  # so it has several whatever `rounds` says
        raise ValueError(
            f"prompt_weighting='unbiased' with allocator {allocator!r} in several rounds: it shares one budget, so "
            "how many rollouts a prompt gets depends on the others' rewards, and no factor on its own outcomes is "
            f"exact. Set {'' if always else 'rounds=1, or '}prompt_weighting='uniform', which is approximate and "
            "takes any allocator; an allocator of your own may offer `stopping_plan`."
        )


def check_generation_seed(args: Any) -> None:
    """Refuse a seed in the options of generation: all rounds of a batch would be alike."""
    for name in ("generation_kwargs", "transformers_continuous_batching_config"):
        seed = (getattr(args, name, None) or {}).get("seed")  # TRL below 1.9 has only the first
        if seed is not None:
            raise ValueError(
                f"{name} has seed={seed!r}: every round would generate the same completions again. Remove it; `seed` "
                "in the training arguments seeds the run."
            )


def _check_tools(trainer: Any) -> None:
    """TRL's tool loop calls the generation backend once per turn, and turns differ between ranks."""
    if not trainer.tools or trainer.accelerator.num_processes == 1:
        return
    collective = None
    if trainer.use_vllm and trainer.vllm_mode == "server":
        collective = "vllm_mode='server'"
    elif trainer.use_vllm and trainer.vllm_tensor_parallel_size > 1:
        collective = f"vllm_tensor_parallel_size={trainer.vllm_tensor_parallel_size}"
    elif not trainer.use_vllm and trainer.is_deepspeed_enabled and _zero_stage(trainer) == 3:
        collective = "DeepSpeed ZeRO-3"
    elif not trainer.use_vllm and trainer.is_fsdp_enabled:
        collective = "FSDP"
    if collective:
        raise ValueError(
            f"Tools with {collective} on {trainer.accelerator.num_processes} processes: every generation call is a "
            "collective there, and TRL makes one per tool turn, so processes whose completions call tools a different "
            "number of times wait for each other for ever. Use one process, or vllm_mode='colocate' with "
            "vllm_tensor_parallel_size=1."
        )


def _zero_stage(trainer: Any) -> int:
    return int(trainer.accelerator.state.deepspeed_plugin.zero_stage)


def explain_batch_size(args: Any, num_processes: int | None = None) -> str:
    """Why the numbers of a batch do not fit together, all of them, and for each the nearest that would.

    Args:
        args (`GRPOConfig`): as far as TRL has set it up before it found the fault.
        num_processes (`int`, *optional*): None takes `args.world_size`.
    """
    world = num_processes or args.world_size
    device, steps, group = args.per_device_train_batch_size, args.steps_per_generation, args.num_generations
    total = args.generation_batch_size
    if steps is None and total is not None and total % (device * world):
        options = {
            "generation_batch_size": _nearest(total, lambda size: size % (device * world) == 0 == size % group),
            "per_device_train_batch_size": _nearest(device, lambda size: total % (size * world) == 0),
        }
        return (
            f"generation_batch_size={total} is not a whole number of steps: a step takes per_device_train_batch_size="
            f"{device} x {world} processes = {device * world} rollouts (and a group takes num_generations={group}). "
            f"{_that_fit(options)}"
        )
    total = device * world * steps
    if total % group == 0:
        return _explain_eval_batch_size(args, world)
    options = {
        "per_device_train_batch_size": _nearest(device, lambda size: size * world * steps % group == 0),
        "steps_per_generation": _nearest(steps, lambda count: device * world * count % group == 0),
        "num_generations": _nearest(group, lambda size: size > 1 and total % size == 0),
    }
    return (
        f"A generation batch of {total} rollouts does not hold whole groups of num_generations={group}: it is "
        f"per_device_train_batch_size={device} x {world} processes x steps_per_generation={steps} (which defaults to "
        f"gradient_accumulation_steps={args.gradient_accumulation_steps}). {_that_fit(options)}"
    )


def _explain_eval_batch_size(args: Any, world: int) -> str:
    device, group = args.per_device_eval_batch_size, args.num_generations_eval or args.num_generations
    options = {
        "per_device_eval_batch_size": _nearest(device, lambda size: size * world % group == 0),
        "num_generations_eval": _nearest(group, lambda size: device * world % size == 0),
    }
    return (
        f"An evaluation batch of {device * world} rollouts does not hold whole groups of num_generations_eval={group} "
        f"(which defaults to num_generations={args.num_generations}): it is per_device_eval_batch_size={device} x "
        f"{world} processes. {_that_fit(options)}"
    )


def _nearest(value: int, fits: Callable[[int], bool]) -> list[int]:
    """The nearest numbers below and above `value` that fit, as far as ten times as much."""
    below = next((number for number in range(value - 1, 0, -1) if fits(number)), None)
    above = next((number for number in range(value + 1, 10 * value + 1000) if fits(number)), None)
    return [number for number in (below, above) if number is not None]


def _that_fit(options: Mapping[str, Sequence[int]]) -> str:
    texts = [f"{name}={' or '.join(map(str, numbers))}" for name, numbers in options.items() if numbers]
    return f"Nearest that fit, one of: {', '.join(texts)}."


def nothing_to_decide(num_prompts: int, num_generations: int, min_rollouts: int, num_processes: int) -> str | None:
    """Why a batch leaves an allocator no choice, with the numbers and what to set; None where it has a choice."""
    budget = num_prompts * num_generations
    if num_prompts == 1:
        return (
            f"A generation batch of {budget} rollouts with num_generations={num_generations} holds a single prompt: "
            "there is nothing to allocate and this trains plain GRPO. Raise steps_per_generation (for example to 8, "
            "which generates for 8 steps at once), gradient_accumulation_steps or per_device_train_batch_size."
        )
    if num_generations <= min_rollouts:
        return (
            f"min_rollouts={min_rollouts} of num_generations={num_generations} rollouts per prompt are fixed: there "
            f"is nothing to allocate and this trains plain GRPO. Set min_rollouts below {num_generations}, or "
            "num_generations above it."
        )
    if budget < 2 * num_processes:
        return (
            f"A generation batch of {budget} rollouts on {num_processes} processes is one rollout each, so there can "
            "be only one round and this trains plain GRPO. Raise per_device_train_batch_size or steps_per_generation."
        )
    return None


def check_max_rollouts(num_generations: int, min_rollouts: int, max_rollouts: int) -> None:
    """The bounds must hold the budget of num_generations rollouts per prompt."""
    if max_rollouts < num_generations or max_rollouts < min_rollouts:
        raise ValueError(
            f"max_rollouts={max_rollouts} must be at least num_generations={num_generations} (the budget is "
            f"num_generations rollouts per prompt, all spent) and at least min_rollouts={min_rollouts}."
        )


def check_rows(inputs: Sequence[Mapping[str, Any]], first_row: int, num_generations: int, expected: int) -> None:
    """The rows of a rank are those the allocation assumes: as many as expected, and one prompt per group."""
    if len(inputs) != expected:
        raise ValueError(
            f"This process got {len(inputs)} rows for a generation batch, where per_device_train_batch_size x "
            f"steps_per_generation = {expected}. Leave `accelerator_config.split_batches` and the train dataloader as "
            "TRL sets them up."
        )
    for index in range(1, len(inputs)):
        same_group = (first_row + index) // num_generations == (first_row + index - 1) // num_generations
        if same_group and inputs[index].get("prompt") != inputs[index - 1].get("prompt"):
            raise ValueError(
                f"Rows {index - 1} and {index} of a generation batch belong to one group of num_generations="
                f"{num_generations} and have different prompts. Groups need the sampler that TRL sets up "
                "(`_get_train_sampler`), and a dataset whose transform gives the same prompt every time."
            )


def check_prompts(rows: Sequence[Mapping[str, Any]], processing_class: Any) -> None:
    """Refuse a prompt without tokens: generation would end in an error that does not tell which row is meant."""
    for row in rows:
        prompt = row.get("prompt")
        if prompt == [] or (prompt == "" and not processing_class(text=[""])["input_ids"][0]):
            raise ValueError(
                f"The prompt of the row {dict(row)!r:.200} is {prompt!r}: it has no tokens, and a model can only "
                "go on from some. Remove such rows, or give the prompt a text or messages."
            )


def check_completions(rows: int, completions: int, has_rollout_func: bool) -> None:
    """A round returns one completion for each row it was given: any other number would train on mixed-up groups."""
    if completions != rows:
        source = "The `rollout_func`" if has_rollout_func else "The generation backend"
        raise ValueError(
            f"{source} returned {completions} completions for {rows} prompts. A round passes a prompt as many times "
            "as it wants completions of it, with `trainer.num_generations` at 1 meanwhile: return one completion for "
            "each prompt, in the order given."
        )
