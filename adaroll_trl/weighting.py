"""Prompt weights while training: which weight w(p) the update gives to prompts of pass rate p, and how to choose it.

Given the rewards, a group's completions are independent draws from the model's right and from its wrong answers. So,
with a mean baseline, the expected update of a group with s successes and f failures is m / (p (1 - p)) times the
gradient of its pass rate p, where m = s f / n is its mass (half its summed absolute advantage), and

    w(p) = E[m | p] / (p (1 - p))

whichever rule decided on n, as long as it looked at rewards only (`adaroll_trl.weights` computes it exactly for the
plan of a single prompt). A factor F on the group's advantages makes its mass F m.

Estimate of w, for any allocator. The likelihood of p given (s, f) is p^s (1 - p)^f under every such rule, so a group's
posterior over p does not depend on how its rollouts were chosen, and if the pass rates are distributed by g then

    E[sum_i posterior_i(p)] = n g(p)        E[sum_i posterior_i(p) m_i] = n g(p) E[m | p]

w is the ratio of the two sums over p (1 - p): there is no selection bias, although the same outcomes place a group on
the p axis and make its mass. It needs the right g. `PassRates` learns g by one step of expectation maximisation a
batch, as a correction of the beliefs that prompts start from (empirical Bayes).

Choice of w. With w_0 for F = 1, a first factor is E[w_target(p) / w_0(p) | s, f]; it leaves a curve w_1, and so on:

    F = prod over k of E[w_target(p) / w_k(p) | s, f]

which is Richardson-Lucy deconvolution: the factors stay positive, and each step brings the curve nearer to the target
at the price of more noise. Groups all alike have no mass to weigh: near p = 0 and 1 the rest has to carry them.

References: Richardson 1972, Lucy 1974 (the iteration); Robbins 1956 (empirical Bayes). Their use here is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .config import load_by_path
from .utilities import group_mass
from .values import finite_array
from .weight_curve import GRID, VARIANCE, PassRates, WeightCurve, fading
from .weights import StoppingPlan, unbiased_masses

if TYPE_CHECKING:
    from .batch import GenerationBatch
    from .config import AdaRollOptions

FloatArray = NDArray[np.float64]
Target = Callable[[FloatArray], ArrayLike]

_STEPS = 5  # of Richardson and Lucy's iteration; docs/results/prompt_weights.md has 1 to 10
MOST = 10.0  # the largest factor


class PromptWeighting:
    """What `prompt_weighting` does to the groups of a batch, and the curve w(p) that results.

    Args:
        options (`AdaRollOptions`): the user's options.
        num_generations (`int`): G, the size of plain GRPO's groups.

    Attributes:
        of_unscaled (`bool`): whether the factors belong to advantages that are not divided by their group's std.
        kappa (`float`): of "progress"; may be set between batches.
    """

    def __init__(self, options: AdaRollOptions, num_generations: int) -> None:
        self._weighting, self.kappa, self._group = options.prompt_weighting, options.kappa, num_generations
        self.of_unscaled = self._weighting not in ("rollout", "prompt")
        self._rates = PassRates(options.prior_alpha, options.prior_beta)
        self._curve = WeightCurve()
        self._target: TargetWeights | None = None
        if self._weighting == "uniform":
            self._target = TargetWeights(even, num_generations, self._rates)
        elif ":" in self._weighting:
            target = load_by_path("prompt_weighting", self._weighting)
            self._target = TargetWeights(target, num_generations, self._rates)

    def factors(self, batch: GenerationBatch) -> FloatArray | None:
        """The factor on each prompt's advantages, of shape (n,); None where they stay as they are."""
        if self._weighting == "rollout":
            return None
        if self._weighting == "prompt":
            return even_factors(batch.rollouts)
        if self._weighting == "progress":
            return progress_factors(batch.successes, batch.failures, self.kappa)
        if self._weighting == "unbiased":
            return unbiased_factors(batch, self._group)
        assert self._target is not None
        return self._target.factors(self._posteriors(batch))

    def record(self, batch: GenerationBatch, masses: FloatArray) -> dict[str, float]:
        """Take down a batch whose groups have these masses in the loss, shape (n,); what is to log of w(p)."""
        posteriors = self._posteriors(batch)
        self._curve.update(posteriors, masses)
        if self._target is not None:
            self._target.update(posteriors, group_mass(batch.successes, batch.failures))
        self._rates.update(batch.prior_alpha, batch.prior_beta, posteriors)
        return {f"prompt_weight/{name}": value for name, value in self._curve.metrics().items()}

    def _posteriors(self, batch: GenerationBatch) -> FloatArray:
        return self._rates.posteriors(batch.prior_alpha, batch.prior_beta, batch.successes, batch.failures)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state that lives over steps."""
        state = {"rates": self._rates.state_dict(), "curve": self._curve.state_dict()}
        return state if self._target is None else state | {"target": self._target.state_dict()}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now: a function that returns it whatever follows."""
        state = self.state_dict()  # arrays as lists, so a copy
        return lambda: state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; a target that the state does not have starts anew."""
        self._rates.load_state_dict(state["rates"])
        self._curve.load_state_dict(state["curve"])
        if self._target is None:
            return
        if "target" in state:
            self._target.load_state_dict(state["target"])
        else:
            self._target.restart()


class TargetWeights:
    """Factors on advantages that bring w(p) to a wanted shape, whatever the allocator.

    The total mass is brought to what plain GRPO with unscaled advantages would have on the same prompts, E[m] =
    (num_generations - 1) p (1 - p) each, so the loss keeps its scale.

    Args:
        target (callable): from a float array of pass rates in (0, 1) to the wanted w, positive, in any unit.
        num_generations (`int`): G, the size of plain GRPO's groups.
        rates (`PassRates`): the running density; the caller updates it.
        steps (`int`): steps of the iteration.

    Raises:
        ValueError: if `target` does not return a positive finite number for each rate.
    """

    def __init__(self, target: Target, num_generations: int, rates: PassRates, steps: int = _STEPS) -> None:
        self._shape = _checked_target(target)
        self._group, self._steps = num_generations, steps
        self._rates = rates
        self.restart()

    def restart(self) -> None:
        """As if all prompts of the running density had followed the target: the first factors are 1."""
        self._masses = np.tile(self._wanted(), (self._steps, 1))
        self._stages: FloatArray = np.zeros((0, self._steps))

    def _wanted(self) -> FloatArray:
        """The mass that belongs to each node of the grid."""
        mass = self._shape * VARIANCE * self._rates.density
        return mass * ((self._group - 1) * (VARIANCE @ self._rates.density) / mass.sum())

    def factors(self, posteriors: FloatArray) -> FloatArray:
        """Each prompt's factor, of shape (n,), at most `MOST`. They depend on earlier batches' curves only."""
        ratios = self._wanted() / np.maximum(self._masses, 1e-12)
        corrections = np.cumprod(posteriors @ ratios.T, axis=1)
        self._stages = np.concatenate([np.ones((len(posteriors), 1)), corrections[:, :-1]], axis=1)
        return np.minimum(corrections[:, -1], MOST)

    def update(self, posteriors: FloatArray, masses: FloatArray) -> None:
        """Take the batch of the last `factors` into account; `masses` are the unweighted ones, of shape (n,)."""
        stages = np.minimum(self._stages, MOST) * masses[:, None]
        self._masses = fading(len(posteriors)) * self._masses + stages.T @ posteriors

    def state_dict(self) -> dict[str, Any]:
        return {"masses": self._masses.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._masses = finite_array("weighting masses", state["masses"], self._masses.shape)


def even_factors(rollouts: NDArray[np.int64]) -> FloatArray:
    """B / (n n_i) for prompt i: after it, a loss that averages over rollouts averages over prompts; shape (n,)."""
    return rollouts.sum() / (np.count_nonzero(rollouts) * np.maximum(rollouts, 1.0))


def unbiased_factors(batch: GenerationBatch, num_generations: int) -> FloatArray:
    """(G - 1) T / (s f / n), which makes w(p) = G - 1 for every p, as in plain GRPO; shape (n,).

    T is the unbiased mass of `adaroll_trl.weights`: s f / (n (n - 1)) where the numbers of rollouts were fixed before
    the first reward, else that of each prompt's plan. There a prompt with a rollout that got no reward has
    the factor 0.

    Raises:
        ValueError: if a prompt did not get the rollouts of its plan, or there are no plans.
    """
    s, f = batch.successes, batch.failures
    if len(batch.rounds) == 1:
        return (num_generations - 1) / np.maximum(s + f - 1, 1.0)
    if batch.plans is None:
        raise ValueError(
            "prompt_weighting='unbiased': the allocator's `stopping_plan` has no plans for this batch of "
            f"{batch.num_prompts} prompts, though it had some at the start. Return one plan for each prompt."
        )
    unscored = batch.rollouts > s + f  # how such a prompt would have gone on is not known: it gives no gradient
    tables: dict[StoppingPlan, dict[tuple[int, int], float]] = {}
    unbiased = np.zeros(batch.num_prompts)
    for prompt, plan in enumerate(batch.plans):
        if unscored[prompt]:
            continue
        if plan not in tables:
            tables[plan] = unbiased_masses(plan)
        try:
            end = plan.end_of([(int(r.successes[prompt]), int(r.failures[prompt])) for r in batch.rounds])
        except ValueError as error:
            raise ValueError(
                f"prompt_weighting='unbiased': prompt {batch.keys[prompt]!r} did not get what the allocator's "
                f"`stopping_plan` says. {error}"
            ) from error
        unbiased[prompt] = tables[plan][end]
    mass = group_mass(s, f)
    return np.where(mass > 0, (num_generations - 1) * unbiased / np.where(mass > 0, mass, 1.0), 0.0)


def progress_factors(successes: FloatArray, failures: FloatArray, kappa: float) -> FloatArray:
    """1 / (m + kappa) with m = s f / n, divided by its mean over the groups with signal; shape (n,).

    Utility `progress` is the progress of a step whose prompts have these weights, on advantages that are not scaled.
    """
    mass = group_mass(successes, failures)
    factors = 1 / (mass + kappa)
    signal = mass > 0
    return factors / factors[signal].mean() if signal.any() else np.ones_like(factors)


def even(pass_rates: FloatArray) -> FloatArray:
    """The target of `prompt_weighting="uniform"`: the weights of plain GRPO with unscaled advantages."""
    return np.ones_like(pass_rates)


def _checked_target(target: Target) -> FloatArray:
    try:
        values = np.asarray(target(GRID.copy()), dtype=np.float64)
    except Exception as error:
        raise ValueError(
            f"The prompt weights {target!r} that `prompt_weighting` points to failed on an array of {GRID.size} pass "
            f"rates in (0, 1): {error}. They must take such an array and return one positive finite number for each."
        ) from error
    if values.shape != GRID.shape or not (np.isfinite(values) & (values > 0)).all():
        shown = (
            f"shape {values.shape}" if values.shape != GRID.shape else f"values {values.min():g} to {values.max():g}"
        )
        raise ValueError(
            f"The prompt weights that `prompt_weighting` points to must be one positive finite number for each pass "
            f"rate: for an array of {GRID.size} rates in (0, 1) they came back with {shown}."
        )
    return values
