"""Warnings, once each, about runs whose rollouts are spent badly, with what to turn."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..config import AdaRollOptions
from .events import AllocationCallback
from .round_costs import RoundCosts

if TYPE_CHECKING:
    from ..batch import GenerationBatch

EVIDENCE = 200  # prompts
LEAST_LOGS = 5
LEAST_SIGNAL = 0.25
LARGEST_SHARE = 0.25
EQUAL_SHARES = 4.0
LARGEST_ECE = 0.1
LARGEST_BIAS = 0.2
TIME_MARGIN = 1.1


class AdviceCallback(AllocationCallback):
    """Warns of five ways in which a run wastes rollouts or time. Each warning comes once and names what to turn.

    It reads what is logged, as averages over the latest 200 prompts and at least 5 logging steps: a share of 200
    prompts has a standard error of at most 0.035, so that each limit below is several of them away from what it is
    meant to tell apart. All limits are this library's choice.

    - **No signal**: under a quarter of the prompts have rollouts of both outcomes (`adaroll/frac_prompts_mixed`; in a
      plain GRPO run 1 - `frac_reward_zero_std`). Three of four prompts then give no gradient, and no allocator can
      find signal in prompts that are solved or hopeless.
    - **Threshold**: every prompt's rollouts are all failures (or all successes) while rewards differ. With no success
      among 200 prompts of two rollouts each, the success rate is below 0.75 % with 95 % confidence (rule of three).
    - **Time**: the rounds slow a batch down by more than a factor of 1.1 above what they raise its utility by, see
      `RoundCosts`. The margin is twice the standard error of a ratio of utilities over 200 prompts. What equal
      groups would be worth is what beliefs expect, so nothing is said of time while these disagree with outcomes.
    - **Calibration**: the expected calibration error of carried beliefs is above 0.1, as in docs/metrics.md; or
      realised and predicted success rates of first rounds are 0.2 apart, six standard errors.
    - **One prompt**: a batch's largest group takes, on average, more than a quarter of its rollouts and more than 4
      equal shares, which is what the default of `max_rollouts` admits.

    Cheap enough to be on by default: a few sums at a logging step, two clock readings a round, and a least squares
    fit of some dozen numbers at a logging step.

    Args:
        warn (callable, *optional*): takes each message. None is `warnings.warn`.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self._warn = warn or _warn
        self._given: set[str] = set()
        self._logs: deque[tuple[float, Mapping[str, Any]]] = deque()
        self._last_step = 0
        self._costs = RoundCosts()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last_step = state.global_step

    def on_round_begin(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        self._costs.round_begins(batch)

    def on_batch_end(self, args: Any, state: Any, control: Any, *, batch: GenerationBatch, **kwargs: Any) -> None:
        self._costs.batch_ends(batch)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "reward" not in logs:
            return  # another process, an evaluation, or the summary at the end
        steps, self._last_step = state.global_step - self._last_step, state.global_step
        self._logs.append((steps * prompts_per_step(args), dict(logs)))
        while len(self._logs) > LEAST_LOGS and self._prompts - self._logs[0][0] >= EVIDENCE:
            self._logs.popleft()
        if len(self._logs) < LEAST_LOGS or self._prompts < EVIDENCE:
            return
        for topic, message in self._advice(args):
            if topic not in self._given:
                self._given.add(topic)
                self._warn(message)

    @property
    def _prompts(self) -> float:
        return sum(prompts for prompts, _ in self._logs)

    def _mean(self, name: str) -> float | None:
        """A logged number over the window; None where it is not logged."""
        known = [(n, logs[name]) for n, logs in self._logs if isinstance(logs.get(name), int | float)]
        total = sum(n for n, _ in known)
        return sum(n * value for n, value in known) / total if total else None

    def _advice(self, args: Any) -> Iterator[tuple[str, str]]:
        if threshold := self._threshold(args):
            yield "threshold", threshold  # and nothing else: the rest would be its consequences
            return
        yield from self._signal()
        yield from self._one_prompt(args)
        if miscalibrated := list(self._calibration(args)):
            yield from miscalibrated
        else:  # what rounds bring is told from beliefs: from wrong ones nothing follows
            yield from self._time()

    def _threshold(self, args: Any) -> str | None:
        wrong, right = self._mean("adaroll/frac_prompts_all_wrong"), self._mean("adaroll/frac_prompts_all_correct")
        reward, spread = self._mean("reward"), self._mean("reward_std")
        if wrong is None or right is None or reward is None or not spread:
            return None
        given = getattr(args, "success_threshold", None)
        at = f"success_threshold={0.5 if given is None else given:g}"
        if wrong >= 1:
            what, turn = "No rollout", "Lower"
        elif right >= 1:
            what, turn = "Every rollout", "Raise"
        else:
            return None
        return (
            f"{what} of the last {self._prompts:.0f} prompts reached {at}, though rewards differ: their mean is "
            f"{reward:.3g}, with a standard deviation of {spread:.3g}. Rollouts are allocated by successes and "
            f"failures, so every prompt looks alike and nothing is adapted. {turn} `success_threshold` to a value "
            "that good rollouts reach and bad ones do not, or set `success_reward` to the reward function that tells "
            "them apart."
        )

    def _signal(self) -> Iterator[tuple[str, str]]:
        share = self._mean("adaroll/frac_prompts_mixed")
        if share is None:
            alike = self._mean("frac_reward_zero_std")
            share = None if alike is None else 1 - alike
        if share is None or share >= LEAST_SIGNAL:
            return
        wrong = self._mean("adaroll/frac_prompts_all_wrong")
        right = self._mean("adaroll/frac_prompts_all_correct")
        parts = "" if wrong is None or right is None else f" ({wrong:.0%} all wrong, {right:.0%} all right)"
        if wrong is not None and right is not None and wrong > right:
            turn = (
                "Most are too hard: give the model easier prompts or a better start, leave out prompts that it never "
                "solves (`adaroll report` lists them), or raise `num_generations`"
            )
        elif wrong is not None and right is not None:
            turn = "Most are too easy: give the model harder prompts, or leave out those that it always solves"
        else:
            turn = "Look whether they are all wrong or all right, and give the model easier or harder prompts"
        yield (
            "signal",
            f"Only {share:.0%} of the last {self._prompts:.0f} prompts had rollouts with different rewards{parts}. "
            f"The others give no gradient, whoever allocates the rollouts. {turn}.",
        )

    def _calibration(self, args: Any) -> Iterator[tuple[str, str]]:
        error = self._mean("adaroll/calibration/ece")
        predicted, realised = (self._mean(f"adaroll/calibration/{name}") for name in ("predicted", "realised"))
        if predicted is None or realised is None:
            return
        differ = f"beliefs predicted {predicted:.2f} successes per rollout before each batch, and {realised:.2f} came"
        why = "Beliefs decide who gets rollouts, so they go to the wrong prompts"
        if error is not None and error > LARGEST_ECE:
            decay = getattr(args, "belief_decay", AdaRollOptions().belief_decay)  # a plain GRPOConfig has the default
            yield (
                "calibration",
                f"Beliefs disagree with outcomes: their expected calibration error is {error:.2f} ({differ}). {why}. "
                f"Lower `belief_decay` (now {decay:g}), since the policy outgrows old "
                "outcomes, or `prior_strength` where the data set gives pass rates.",
            )
        elif abs(predicted - realised) > LARGEST_BIAS:
            yield (
                "calibration",
                f"The prior disagrees with outcomes: {differ}. {why}. Set `prior_source='empirical_bayes'`, which "
                "fits the prior to the outcomes, or `prior_alpha` and `prior_beta` so that alpha / (alpha + beta) is "
                f"about {realised:.2f}.",
            )

    def _one_prompt(self, args: Any) -> Iterator[tuple[str, str]]:
        largest, mean = (self._mean(f"adaroll/rollouts_per_prompt/{name}") for name in ("max", "mean"))
        prompts = args.generation_batch_size / args.num_generations
        if largest is None or not mean:
            return
        share = largest / (mean * prompts)
        if share > max(LARGEST_SHARE, EQUAL_SHARES / prompts):
            yield (
                "one prompt",
                f"One prompt takes {share:.0%} of a batch's rollouts on average ({largest:.0f} of "
                f"{mean * prompts:.0f}; an equal share is {mean:.0f}). The update then leans on that prompt, and the "
                f"others go short. Lower `max_rollouts` (now {getattr(args, 'max_rollouts', None)}), or use a utility "
                "that saturates, such as 'mixed' or 'std'.",
            )

    def _time(self) -> Iterator[tuple[str, str]]:
        realised, uniform = (self._mean(f"adaroll/utility/{name}") for name in ("realised", "uniform"))
        cost = self._costs.estimate()
        if cost is None or realised is None or not uniform:
            return
        gain = realised / uniform
        if cost.slowdown > TIME_MARGIN * max(gain, 1.0):
            yield (
                "time",
                f"The rounds cost more time than they bring: {cost.rounds:.0f} rounds make a batch about "
                f"{cost.slowdown:.2f} times as long as one round would ({cost.fixed:.3g} s for a round of any "
                f"size, {cost.period:.3g} s for a batch with its training), and its utility is {gain:.2f} times what "
                "beliefs expect of equal groups. Lower `rounds`, or make generation batches larger "
                "(`steps_per_generation`), so that more rollouts share a round's fixed cost.",
            )


def prompts_per_step(args: Any) -> float:
    """Prompts that are new in an optimiser step, on average over a generation batch."""
    micro_steps = args.steps_per_generation * getattr(args, "num_iterations", 1)
    batches = args.gradient_accumulation_steps / micro_steps
    return float(batches * args.generation_batch_size / args.num_generations)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
