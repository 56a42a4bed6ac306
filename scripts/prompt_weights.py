"""Which weight the update gives to prompts of each pass rate. One command, about a minute of processor time:

    python scripts/prompt_weights.py

Prints three tables and writes them to docs/results/prompt_weights.md, with a picture beside it:
1. plans: the weight of a single prompt's sampling plan, exact, checked against updates of a softmax policy;
2. unbiased: plans and masses whose weight is 1 at every pass rate, and their noise;
3. training: what `prompt_weighting` makes of batches that share a budget, by simulation.

Tables 1 and 2 are checked against simulated updates. The page says how large the largest deviation may be by chance,
and the row that has it is simulated once more, with another seed and four times as many groups.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from adaroll_trl.config import AdaRollOptions
from adaroll_trl.plots import draw_weight_curve, require_matplotlib, save_figure, tidy
from adaroll_trl.simulation import simulate
from adaroll_trl.utilities import group_mass
from adaroll_trl.weight_curve import PassRates
from adaroll_trl.weighting import PromptWeighting, TargetWeights, even
from adaroll_trl.weights import StoppingPlan, implied_weight, least_noise_masses, masses, unbiased_masses

RATES = np.array([0.02, 0.05, 0.1, 0.25, 0.5])
FIXED, CAP = 8, 32


def both(s: int, f: int) -> bool:
    return s > 0 and f > 0


MIXED = StoppingPlan.until(both, CAP)
MIXED_AFTER_4 = StoppingPlan.until(both, CAP, first=4)
TWO_OF_EACH = StoppingPlan.until(lambda s, f: min(s, f) >= 2, CAP, first=4)
ROUNDS = StoppingPlan(lambda s, f, r: (2, 4, 8, 16)[r] if not both(s, f) else 0, 4)
PLANS = {
    f"fixed {FIXED}": StoppingPlan.fixed(FIXED),
    f"stop when mixed, cap {CAP}": MIXED,
    "rounds of 2, 4, 8, 16 until mixed": ROUNDS,
}
ESTIMATORS = {
    "mean, each prompt alike": ("mean", "prompt"),
    "mean, each rollout alike": ("mean", "rollout"),
    "std (Bessel, as TRL), each rollout alike": ("std", "rollout"),
    "std (population), each rollout alike": ("population_std", "rollout"),
}


def each_pair(function: Callable[[int, int], float], s: np.ndarray, f: np.ndarray) -> np.ndarray:
    """function(s, f) of each group, asked once for each pair that occurs."""
    base = int(f.max()) + 1
    found, kind = np.unique(s * base + f, return_inverse=True)
    return np.array([function(*divmod(code, base)) for code in found.tolist()])[kind]


class Bandit:
    """A softmax policy over four right and five wrong answers whose right ones have probability p in all."""

    def __init__(self, p: float) -> None:
        random = np.random.default_rng(1)
        right, wrong = random.dirichlet(np.full(4, 2.0)), random.dirichlet(np.full(5, 2.0))
        self.policy = np.concatenate([p * right, (1 - p) * wrong])
        self.right = np.arange(9) < 4
        self.gradient = self.policy * (self.right - p)  # of p, by the logits

    def groups(self, plan: StoppingPlan, count: int, seed: int) -> np.ndarray:
        """How often each answer was drawn in each group, of shape (count, 9)."""
        random = np.random.default_rng(seed)
        drawn = np.zeros((count, 9), dtype=np.int64)
        for round_ in range(plan.rounds):
            more = each_pair(lambda s, f, round_=round_: plan.counts(s, f, round_), *self.outcomes(drawn))
            open_ = np.flatnonzero(more)
            drawn[open_] += random.multinomial(more[open_], self.policy)
        return drawn

    def outcomes(self, drawn: np.ndarray) -> np.ndarray:
        """Successes and failures of each group, of shape (2, count)."""
        return np.stack([drawn[:, self.right].sum(axis=1), drawn[:, ~self.right].sum(axis=1)])

    def deviations(
        self, drawn: np.ndarray, mass_of: Callable[[np.ndarray, np.ndarray], np.ndarray], weight: float
    ) -> np.ndarray:
        """How far the mean update is from `weight` times the gradient of p, in its standard errors, of shape (10,).

        First along the gradient, then each logit. An update is the sum of advantage times score; the advantages of a
        group are scaled to the mass given.
        """
        s, f = self.outcomes(drawn)
        mass = mass_of(s, f)
        per_right, per_wrong = mass / np.maximum(s, 1), -mass / np.maximum(f, 1)
        updates = drawn * np.where(self.right, per_right[:, None], per_wrong[:, None])  # advantages add up to 0
        updates = np.column_stack([updates @ self.gradient, updates])
        wanted = weight * np.append(self.gradient @ self.gradient, self.gradient)
        error = updates.std(axis=0) / np.sqrt(len(updates))
        return np.asarray((updates.mean(axis=0) - wanted) / np.maximum(error, 1e-300))


@lru_cache(maxsize=len(RATES))
def drawn_groups(plan: StoppingPlan, p: float, count: int, seed: int) -> np.ndarray:
    return Bandit(p).groups(plan, count, seed)


class Checked(NamedTuple):
    """A row of the first two tables: what its weights are to be checked with."""

    name: str
    plan: StoppingPlan
    rates: np.ndarray
    weights: np.ndarray
    mass_of: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def deviations(self, groups: int, seed: int) -> np.ndarray:
        """Those of `Bandit.deviations` at each rate, one after the other."""
        return np.concatenate(
            [
                Bandit(p).deviations(drawn_groups(self.plan, p, groups, seed), self.mass_of, weight)
                for p, weight in zip(self.rates.tolist(), self.weights.tolist(), strict=True)
            ]
        )


def plans_table(groups: int, checked: list[tuple[Checked, np.ndarray]]) -> Iterator[str]:
    yield "| plan | estimator | " + " | ".join(f"p = {p:g}" for p in RATES) + " | largest deviation |"
    yield "|---|---|" + "---:|" * (len(RATES) + 1)
    for name, plan in PLANS.items():
        for label, (estimator, each) in ESTIMATORS.items():
            if plan.rounds == 1 and label == "mean, each prompt alike":
                continue  # all of fixed n alike

            def mass_of(s: np.ndarray, f: np.ndarray, estimator: Any = estimator, each: str = each) -> np.ndarray:
                return masses(s, f, estimator) / (s + f if each == "prompt" else 1)

            exact = implied_weight(plan, RATES, estimator, each)
            row = Checked(f"{name}, {label}", plan, RATES, exact, mass_of)
            cells = [f"{weight / exact[-1]:.3g}" for weight in exact]
            yield f"| {name} | {label} | " + " | ".join(cells) + f" | {largest(row, groups, 0, checked):.1f} |"


def largest(row: Checked, groups: int, seed: int, checked: list[tuple[Checked, np.ndarray]]) -> float:
    """The largest deviation of a row, which is kept in `checked` with all of its deviations."""
    checked.append((row, np.abs(row.deviations(groups, seed))))
    return float(checked[-1][1].max())


def check_text(groups: int, checked: list[tuple[Checked, np.ndarray]]) -> str:
    """What chance makes of so many comparisons, and the row of the largest deviation once more."""
    count = sum(off.size for _, off in checked)
    row, off = max(checked, key=lambda one: float(one[1].max()))
    usual, limit = norm.isf((1 - 0.5 ** (1 / count)) / 2), norm.isf(0.01 / (2 * count))
    again = np.abs(row.deviations(4 * groups, seed=2))
    least = norm.isf(0.01 / (2 * again.size))
    verdict = "chance explains it" if off.max() < limit else "more than chance explains"
    repeated = "nothing is left of it" if again.max() < least else "it is there again, so the weight is wrong"
    text = CHECK_TEXT.format(
        count=count,
        usual=usual,
        limit=limit,
        largest=off.max(),
        row=row.name,
        verdict=verdict,
        groups=4 * groups,
        again=again.max(),
        comparisons=again.size,
        least=least,
        repeated=repeated,
    )
    return f"\n{fill(text, 119)}\n"


def noise_of(plan: StoppingPlan, mass: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Variance of a group's update along any direction, over the square of its mean, less the gradient's own size."""
    s, f = plan.ends.successes, plan.ends.failures
    chance = plan.ends.probabilities(p)
    squares = mass**2 * (1 / np.maximum(s, 1) + 1 / np.maximum(f, 1))
    return (chance @ squares) / (chance @ mass) ** 2


def unbiased_table(groups: int, checked: list[tuple[Checked, np.ndarray]]) -> Iterator[str]:
    rates = RATES[[0, 2, 4]]
    heads = [f"w, p = {p:g}" for p in rates] + [f"noise, p = {p:g}" for p in rates]
    yield "| plan | mass | " + " | ".join(heads) + " | rollouts, p = 0.1 | largest deviation |"
    yield "|---|---|" + "---:|" * (len(heads) + 2)
    plans = {
        f"fixed {FIXED}": StoppingPlan.fixed(FIXED),
        f"stop when mixed, cap {CAP}": MIXED,
        f"the same, 4 rollouts first, cap {CAP}": MIXED_AFTER_4,
        f"stop at two of each, 4 first, cap {CAP}": TWO_OF_EACH,
    }
    for name, plan in plans.items():
        pairs = plan.ends.pairs()
        rollouts = float((plan.ends.probabilities(0.1) @ (plan.ends.successes + plan.ends.failures)).item())
        plain = masses(plan.ends.successes, plan.ends.failures)
        found = {"s f / n": dict(zip(pairs, plain / implied_weight(plan, 0.5), strict=True))}
        found["T"] = unbiased_masses(plan)
        if plan.rounds > 1:
            found["least noise"] = least_noise_masses(plan)
        for label, table in found.items():
            mass = np.array([table[pair] for pair in pairs])
            weights = plan.ends.probabilities(rates) @ mass / (rates * (1 - rates))

            def mass_of(s: np.ndarray, f: np.ndarray, table: Any = table) -> np.ndarray:
                return each_pair(lambda right, wrong: table[right, wrong], s, f)

            worst = largest(Checked(f"{name}, {label}", plan, rates, weights, mass_of), groups, 1, checked)
            cells = [f"{w:.3f}" for w in weights] + [f"{x:.1f}" for x in noise_of(plan, mass, rates)]
            yield f"| {name} | {label} | " + " | ".join(cells) + f" | {rollouts:.1f} | {worst:.1f} |"


SHOWN = np.array([0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98])
POPULATIONS = {
    "most prompts hard": np.repeat(SHOWN, [8, 5, 4, 3, 2, 1, 1, 1]),
    "solved or hopeless": np.repeat(SHOWN, [6, 3, 1, 1, 1, 1, 2, 6]),
}


def trained_weights(played: Any, weigh: Any) -> tuple[np.ndarray, float]:
    """w at `SHOWN` in plain GRPO's units over the last four fifths of the batches, and the noise."""
    found = []
    for s, n in zip(played.successes, played.rollouts, strict=True):
        found.append(weigh(s.astype(np.float64), (n - s).astype(np.float64)))
    start = len(found) // 5
    mass, rates = np.array(found[start:]), played.success_probs[start:]
    s, f = played.successes[start:], (played.rollouts - played.successes)[start:]
    weights = [mass[rates == p].mean() / ((FIXED - 1) * p * (1 - p)) for p in SHOWN]
    noise = (mass**2 * (1 / np.maximum(s, 1) + 1 / np.maximum(f, 1))).sum() / mass.sum() ** 2 * mass.size
    return np.array(weights), float(noise)


def by_option(weighting: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The masses that `prompt_weighting` gives the groups of one batch after another."""
    weigher = PromptWeighting(AdaRollOptions(prompt_weighting=weighting), FIXED)

    def weigh(s: np.ndarray, f: np.ndarray) -> np.ndarray:
        ones = np.ones(len(s))
        batch: Any = SimpleNamespace(
            successes=s,
            failures=f,
            rollouts=(s + f).astype(int),
            num_prompts=len(s),
            prior_alpha=ones,
            prior_beta=ones,
        )
        factors = weigher.factors(batch)
        mass = group_mass(s, f) * (1.0 if factors is None else factors)
        weigher.record(batch, mass)
        return mass

    return weigh


def by_steps(steps: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The same for "uniform" with so many steps of the iteration."""
    rates = PassRates()
    target = TargetWeights(even, FIXED, rates, steps)

    def weigh(s: np.ndarray, f: np.ndarray) -> np.ndarray:
        ones = np.ones(len(s))
        posteriors = rates.posteriors(ones, ones, s, f)
        factors = target.factors(posteriors)
        target.update(posteriors, group_mass(s, f))
        rates.update(ones, ones, posteriors)
        return group_mass(s, f) * factors

    return weigh


def by_posterior(s: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The posterior mean of p (1 - p) under Beta(1, 1) as the mass of a mixed group."""
    a, b = s + 1, f + 1
    return np.where(group_mass(s, f) > 0, (FIXED - 1) * a * b / ((a + b) * (a + b + 1)), 0.0)


def training_table(batches: int, kept: dict[str, np.ndarray]) -> Iterator[str]:
    yield "| prompts | utility | weighting | " + " | ".join(f"p = {p:g}" for p in SHOWN) + " | noise |"
    yield "|---|---|---|" + "---:|" * (len(SHOWN) + 1)
    for population, rates in POPULATIONS.items():
        for utility in ("mixed", "progress", "mass"):
            played = simulate(
                "adaroll", 32, 32 * FIXED, 4, utility, rates, num_batches=batches, min_rollouts=2, max_rollouts=CAP
            )
            weighings: dict[str, Any] = {f"`{w}`": by_option(w) for w in ("rollout", "prompt", "progress", "uniform")}
            if utility == "mixed":
                weighings |= {f"uniform, {k} steps": by_steps(k) for k in (1, 2, 10)}
                weighings["posterior p (1 - p)"] = by_posterior
            for label, weigh in weighings.items():
                weights, noise = trained_weights(played, weigh)
                if population == "most prompts hard" and utility == "mixed" and label.startswith("`"):
                    kept[label.strip("`")] = weights
                cells = " | ".join(f"{w:.2f}" for w in weights)
                yield f"| {population} | `{utility}` | {label} | {cells} | {noise:.2f} |"


def draw(kept: dict[str, np.ndarray], path: Path) -> None:
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rates = np.linspace(0.01, 0.99, 99)

    def relative(plan: StoppingPlan, estimator: Any, each: Any) -> tuple[np.ndarray, np.ndarray]:
        return rates, implied_weight(plan, rates, estimator, each) / implied_weight(plan, 0.5, estimator, each)

    exact = {
        f"fixed {FIXED}, mean": relative(PLANS[f"fixed {FIXED}"], "mean", "rollout"),
        f"fixed {FIXED}, std": relative(PLANS[f"fixed {FIXED}"], "std", "rollout"),
        "until mixed, mean, by prompt": relative(MIXED, "mean", "prompt"),
        "until mixed, mean, by rollout": relative(MIXED, "mean", "rollout"),
        "until mixed, std, by rollout": relative(MIXED, "std", "rollout"),
    }
    draw_weight_curve(left, exact, title="One prompt's plan, exact", ylabel="w(p) / w(0.5)")
    trained = {name: (SHOWN, weights) for name, weights in kept.items()}
    draw_weight_curve(
        right, trained, title="adaroll, mixed, 4 rounds, by prompt_weighting", ylabel="w(p) / plain GRPO"
    )
    tidy([left, right])
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Weights of the update by pass rate.")
    parser.add_argument("--groups", type=int, default=100_000, help="simulated groups per cell of tables 1 and 2")
    parser.add_argument("--batches", type=int, default=2000, help="simulated batches per row of table 3")
    parser.add_argument("--output", default="docs/results/prompt_weights.md")
    arguments = parser.parse_args()
    kept: dict[str, np.ndarray] = {}
    checked: list[tuple[Checked, np.ndarray]] = []
    output = Path(arguments.output)
    parts = []
    for text, table in (
        (PLANS_TEXT, plans_table(arguments.groups, checked)),
        (UNBIASED_TEXT, unbiased_table(arguments.groups, checked)),
        (TRAINING_TEXT, training_table(arguments.batches, kept)),
    ):
        print(text.strip().splitlines()[0])
        lines = []
        for line in table:
            print(line, flush=True)
            lines.append(line)
        parts.append(text + "\n".join(lines) + "\n")
    check = check_text(arguments.groups, checked)
    print(check)
    head = HEAD.format(cores=os.cpu_count(), machine=platform.machine(), date=datetime.date.today(), **vars(arguments))
    draw(kept, output.with_suffix(".png"))
    output.write_text("\n".join([head + check, *parts, f"![Weights by pass rate]({output.stem}.png)\n"]))


HEAD = """# Weights of the update by pass rate

`python scripts/prompt_weights.py --groups {groups} --batches {batches}`, {cores} CPU cores, no GPU, {date}.
The mathematics is in [`weights.py`](../../adaroll_trl/weights.py) and
[`weighting.py`](../../adaroll_trl/weighting.py); how to choose, in [choosing.md](../choosing.md).
"""

CHECK_TEXT = """The first two tables' weights are checked against simulated updates of a softmax policy with four
right and five wrong answers, whose gradient of p is known. "Largest deviation" is the largest, over the pass rates, of
the mean update from w(p) times the gradient, along the gradient and in each logit, in standard errors. If all weights
are right, the largest of {count} comparisons is above {usual:.1f} in half of all runs where they are independent, and
above {limit:.1f} in one run of a hundred at most in any case. Here it is {largest:.1f} ({row}): {verdict}. With
another seed and {groups:,} groups the largest of the {comparisons} comparisons of that row is {again:.1f} (by chance
above {least:.1f} in one run of a hundred at most): {repeated}."""

PLANS_TEXT = """## Plans

w(p) / w(0.5), exact.

"""

UNBIASED_TEXT = """## Unbiased masses

w(p) itself, and the noise of the update, E[mass^2 (1 / s + 1 / f)] / E[mass]^2: its variance in units of the variance
of one rollout's score, over the squared size of its mean. `s f / n` is plain GRPO's mass, scaled to w(0.5) = 1. `T` is
Girshick, Mosteller and Savage's, `least noise` the unbiased masses with the least noise over uniform pass rates.

"""

TRAINING_TEXT = """## In training

Batches of 32 prompts x 8 rollouts, 4 rounds, 2 to 32 rollouts a prompt, allocator `adaroll`. Realised w(p) in units of
plain GRPO's (1 is GRPO with unscaled advantages), and the noise of the whole update: the sum over groups of
mass^2 (1 / s + 1 / f), over the squared sum of masses, times the number of prompts. `uniform` takes 5 steps.

"""


if __name__ == "__main__":
    main()
