"""CERO: one budget over the whole run, by prices that are learnt from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..values import MOST_COUNTED, finite_array, integer, number
from .base import AllocationState
from .integers import FloatArray, IntArray, bounds, round_wishes, water_level
from .planned import PlannedStreams

_LEAST_SHARE = 1e-12  # a prompt's price is not less than this share of its value


class CeroAllocator(PlannedStreams):
    """CERO, cross-epoch adaptive rollout optimisation (Jiang, Wang and Zong, arXiv 2606.05606).

    **Problem.** Prompt i has the value v_i = E[p (1 - p)] = a b / ((a + b) (a + b + 1)) under its belief Beta(a, b).
    It is visited K times and gets y_i rollouts over the run. Maximise sum_i u_i(y_i) under a budget for the whole run,
    where u_i is concave and saturates:

        u_i(y) = K v_i tau (1 - exp(-y / (K tau)))        K u(x) with u(x) = v_i tau (1 - exp(-x / tau)), x = y / K

    tau is thus in rollouts per visit, and K need not be known.

    **Dual.** As u is concave, u(x) is the minimum over theta of theta x + u*(theta), with the conjugate u*(theta) =
    max_x {u(x) - theta x}. The maximum is where u'(x) = v exp(-x / tau) = theta, at x = tau log(v / theta), hence

        u*(theta) = tau (v - theta) - theta tau log(v / theta),        0 < theta <= v
        u*'(theta) = -tau log(v / theta)

    With a price theta_i per prompt and a price mu of the budget, a visit's part of the dual problem is

        min over theta, mu   max over x   sum_i (theta_i - mu) x_i + u*_i(theta_i) + mu B

    **Step k.** A batch of B rollouts over n prompts with bounds l_i <= x_i <= h_i, g = B / n, and V the mean of
    v_i exp(-g / tau), the batch's prices if all its prompts got g:

        z_i = clip(g + g (theta_i - mu) sqrt(k_i) / V, l_i, h_i)            what the prices ask for
        x = the point nearest to z with l <= x <= h, sum x = B, rounded      what is spent
        theta_i <- theta_i - eta_i (x_i - tau log(v_i / theta_i)),           eta_i = step V / (g sqrt(k_i))
        mu <- max(0, mu - eta (B - sum z)),                                  eta = step V / (B sqrt(k))

    projected online gradient descent on both; k_i counts the visits of prompt i, and theta_i stays between
    v_i exp(-h_i / tau) and v_i exp(-l_i / tau), where the optimum lies. A new prompt starts at v_i exp(-g / tau), and
    mu at the first batch's mean price.

    From the paper: the value, a concave saturating utility of the cumulative allocation, the dual with both kinds of
    prices, projected online gradient descent, the regret of order sqrt(K) under fixed utilities. Not public, and ours:
    the form of u, tau, the step sizes, the start. Changed: (1) every batch spends exactly B, so a batch in which the
    prices ask for more or less is shifted to the nearest point that does; (2) the maximum over x, which jumps
    from bound to bound, is taken with the penalty V (x_i - g)^2 / (2 g sqrt(k_i)), which vanishes over the run and
    adds no more than order sqrt(K) to the regret.

    `scripts/cero_regret.py` measures the regret. Needs carried beliefs (`belief_decay` above 0): without them all
    prompts have one value. The value drifts as the policy learns, which the regret bound does not cover. One round.
    Prompts are told apart by their ids; without ids, by their place in the batch, which means something only where
    every batch has the same prompts in the same order.

    Args:
        tau (`float`, *optional*): rollouts per visit after which a prompt's marginal value has fallen by the factor e.
            None is the batch's mean, B / n.
        step (`float`): scale of the step sizes, without unit.
    """

    name = "cero"
    reads_rounds = False
    needs_beliefs = True

    def __init__(self, tau: float | None = None, step: float = 0.3) -> None:
        self.tau = None if tau is None else number("tau", tau, 0.0, open_low=True)
        self.step = number("step", step, 0.0, open_low=True)
        self.price: float | None = None  # mu
        self.steps = 0
        self._prompts: dict[str, tuple[float, int, int]] = {}  # theta, cumulative allocation, visits
        self._before: dict[str, tuple[float, int, int] | None] = {}  # what changed since the last snapshot

    def num_rounds(self, num_prompts: int, budget: int, rounds: int, min_rollouts: int) -> int:
        return 1

    def allocate(self, state: AllocationState, rollouts_left: int, rounds_left: int) -> IntArray:
        spent = np.asarray(state.rollouts, dtype=np.int64)
        low, high = (spent + bound for bound in bounds(state, rollouts_left))
        total = rollouts_left + int(spent.sum())
        keys = state.keys
        alpha, beta = state.posterior
        value = alpha * beta / ((alpha + beta) * (alpha + beta + 1))
        mean = total / spent.size
        tau = mean if self.tau is None else self.tau
        known = [self._prompts.get(key) for key in keys]
        visits = np.array([1 if record is None else record[2] + 1 for record in known])
        start = value * max(np.exp(-mean / tau), _LEAST_SHARE)
        unit = float(start.mean())
        theta = np.array([s if record is None else record[0] for s, record in zip(start, known, strict=True)])
        least = value * np.maximum(np.exp(-high / tau), _LEAST_SHARE)
        most = np.maximum(value * np.exp(-low / tau), least)
        theta = np.clip(theta, least, most)
        price = float(theta.mean()) if self.price is None else self.price

        wanted = np.clip(mean + mean * (theta - price) * np.sqrt(visits) / unit, low, high)
        sizes = round_wishes(_nearest(wanted, total, low, high), total, low, high)

        slope = sizes - tau * np.log(value / theta)
        theta = np.clip(theta - self.step * unit / (mean * np.sqrt(visits)) * slope, least, most)
        self.steps += 1
        change = self.step * unit / (total * np.sqrt(self.steps)) * (total - float(wanted.sum()))
        self.price = max(0.0, price - float(change))
        counts = sizes - spent
        self._record(keys, theta, counts, visits)
        return counts

    def _record(self, keys: list[str], theta: FloatArray, counts: IntArray, visits: IntArray) -> None:
        """Keep prices and allocations; a prompt that is in the batch twice is visited once, at its mean price."""
        rows: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            rows.setdefault(key, []).append(i)
        for key, places in rows.items():
            old = self._prompts.get(key)
            self._before.setdefault(key, old)
            given = (0 if old is None else old[1]) + int(counts[places].sum())
            self._prompts[key] = (float(theta[places].mean()), given, int(visits[places[0]]))

    def state_dict(self) -> dict[str, Any]:
        return _as_dict(self.price, self.steps, self._prompts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = self.known_state(state, ("price", "steps", "prompts"))
        price, prompts = state.get("price"), state.get("prompts", {})
        if not isinstance(prompts, Mapping):
            raise ValueError(f"prompts must be records by prompt, not {repr(prompts)[:200]}.")
        records = finite_array("prompts", list(prompts.values()), (None, 3)).tolist()
        self.price = None if price is None else number("price", price, 0.0)
        self.steps = integer("steps", state.get("steps", 0), 0, MOST_COUNTED)
        self._prompts = {
            key: (theta, int(given), int(visits)) for key, (theta, given, visits) in zip(prompts, records, strict=True)
        }
        self._before = {}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        price, steps = self.price, self.steps
        before = self._before = {}

        def state() -> dict[str, Any]:
            prompts = {**self._prompts, **before}
            return _as_dict(price, steps, {key: record for key, record in prompts.items() if record is not None})

        return state


def _as_dict(price: float | None, steps: int, prompts: dict[str, tuple[float, int, int]]) -> dict[str, Any]:
    """{"price": mu, "steps": k, "prompts": {id: [theta, cumulative allocation, visits]}}"""
    return {"price": price, "steps": steps, "prompts": {key: list(record) for key, record in prompts.items()}}


def _nearest(wanted: FloatArray, total: int, low: IntArray, high: IntArray) -> FloatArray:
    """The point within the bounds that adds up to `total` and is nearest to `wanted`: one shift for all, clipped."""
    span = (float((low - wanted).min()), float((high - wanted).max()))
    return water_level(lambda shift: wanted + shift, span, total, low, high)
