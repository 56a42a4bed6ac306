"""Options that have no effect beside the others, or less than they seem to."""

from __future__ import annotations

from typing import Any

from .allocators import allocator_class, maximises_utility
from .config import BY_EARLIER_VISITS, WITHIN_A_BATCH, AdaRollOptions

# A prompt's second and third rollouts may be worth more than its first: without a minimum some prompts then get none
_CONVEX_AT_FIRST = ("progress", "balanced")


def ignored_options(options: AdaRollOptions) -> str | None:
    """Which options were set and have no effect beside the chosen allocator and utility; None: all have."""
    defaults = options.defaults()
    elsewhere = ":" not in options.allocator and options.allocator != "adaroll_joint"
    kind = allocator_class(options.allocator)
    # True as it stands, where a recipe of another allocator says so
    one = options.allocator == "uniform" and options.rounds == 1
    unused = {
        "rounds": options.stream_rollouts or (kind is not None and not kind.reads_rounds and not one),
        "in_flight": not options.stream_rollouts,
        "stream_order": not options.stream_rollouts,
        "block_size": elsewhere,
        "draws_per_round": elsewhere,
        "kappa": "progress" not in (options.utility, options.prompt_weighting),
    }
    ignored = [n for n, is_unused in unused.items() if is_unused and getattr(options, n) != getattr(defaults, n)]
    if not ignored:
        return None
    given = ", ".join(f"{name}={getattr(options, name)!r}" for name in ignored)
    stream = " and stream_rollouts=True" if options.stream_rollouts else ""
    return (
        f"No effect with allocator={options.allocator!r} and utility={options.utility!r}{stream}: {given}. Remove it, "
        "or choose what reads it."
    )


def advice_on_options(options: AdaRollOptions) -> list[str]:
    """What to know about options that do less than they seem to, beside the chosen allocator."""
    kind = allocator_class(options.allocator)
    if kind is None:
        return []
    advice = []
    default = AdaRollOptions(allocator=options.allocator).utility
    if options.utility != default and not maximises_utility(options.allocator):
        advice.append(
            f"utility={options.utility!r} is only measured: allocator={options.allocator!r} has an aim of its own."
        )
    if left_over := _left_over(options):
        return [*advice, left_over]  # what else there is to say follows from it
    one_round = options.allocator == "adaroll" and options.rounds == 1 and not options.stream_rollouts
    if (kind.needs_beliefs or one_round) and options.belief_decay == 0 and options.prior_column is None:
        advice.append(
            f"allocator={options.allocator!r}{' with rounds=1' if one_round else ''} tells prompts apart by their "
            f"earlier visits, which belief_decay=0 forgets: {_groups_of_strangers(options)}. Set belief_decay (0.7 is "
            "a start) and train for more than one epoch, or give the prompts' pass rates in a prior_column."
        )
    return advice


def _left_over(options: AdaRollOptions) -> str | None:
    """Where the fields that follow who decides are, all three, the defaults of the other way to decide.

    So it is where `utility` or `allocator` is changed in a config that is made, in `dataclasses.replace`, or over a
    recipe that writes its defaults out.
    """
    defaults = options.defaults()
    here, chosen = ({name: getattr(of, name) for name in WITHIN_A_BATCH} for of in (options, defaults))
    if options.allocator == "uniform" or here == chosen or here not in (WITHIN_A_BATCH, BY_EARLIER_VISITS):
        return None
    found, wanted = (", ".join(f"{name}={value!r}" for name, value in of.items()) for of in (here, chosen))
    other = "by earlier visits of a prompt" if here == BY_EARLIER_VISITS else "within a batch"
    return (
        f"{found} are the defaults for deciding {other}. Those of allocator={options.allocator!r} and utility="
        f"{options.utility!r} are {wanted}; they are not chosen where a config is made already, or a recipe gives "
        "others. Set them, or None for each, which chooses them."
    )


def advice_on_visits(options: AdaRollOptions, rounds: int, visits: float | None) -> str | None:
    """Where earlier visits alone decide, and no prompt comes twice; None where there is nothing to say.

    Args:
        options (`AdaRollOptions`): the user's.
        rounds (`int`): of a batch; a stream is no round, it decides from its own rewards.
        visits (`float`, *optional*): of a prompt over the run, see `expected_visits`; None where that is not known.
    """
    kind = allocator_class(options.allocator)
    if kind is None or options.allocator == "uniform" or options.prior_column is not None:
        return None
    if options.belief_decay == 0 or options.stream_rollouts or rounds > 1 or visits is None or visits > 1:
        return None
    often = "once" if visits == 1 else f"{visits:.2g} times on average"
    if options.allocator == "adaroll":
        within = "rounds=2 or more" + (", or utility='mixed'" if options.utility == "progress" else "")
    else:
        within = "rounds=2 or more" if kind.reads_rounds else "allocator='adaroll' and utility='mixed'"
    return (
        f"A prompt comes {often}, and with one round only its earlier visits tell it from others: "
        f"{_groups_of_strangers(options)}. Train for several epochs (num_train_epochs, max_steps), or decide within a "
        f"batch, with {within}."
    )


def _groups_of_strangers(options: AdaRollOptions) -> str:
    """What one round makes of prompts that nothing tells apart."""
    if options.allocator == "adaroll" and options.utility in ("mass", "std_mass"):
        return "groups will be unequal, since the utility rewards that, but whose is large says nothing"
    own = ":" in options.utility
    if options.allocator == "adaroll" and (own or (options.utility in _CONVEX_AT_FIRST and options.min_rollouts == 0)):
        return "groups may be unequal, where the utility rewards that, but whose is large says nothing"
    return "groups will be equal, as in GRPO"


def expected_visits(args: Any, prompts: int, rows: int | None) -> float | None:
    """How often a prompt comes in a run, on average.

    Args:
        args (`GRPOConfig`): of the run.
        prompts (`int`): of a generation batch, over all processes.
        rows (`int`, *optional*): of the data set; None where it has no length.
    """
    if rows is None:
        return None
    if args.max_steps <= 0:
        return float(args.num_train_epochs)
    steps_of_a_batch = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
    return float(args.max_steps / steps_of_a_batch * prompts / rows)
