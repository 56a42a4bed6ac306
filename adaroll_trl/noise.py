"""kappa, measured: the noise of one rollout's gradient against the spread of gradients between prompts.

Let z be the gradient of a rollout's log-probability. In a group with s successes and f failures, the difference of the
mean z over successes and over failures estimates u, the direction in which the prompt's pass rate rises (u = grad p /
(p (1 - p)), so it is the gradient of the log odds). With v the variance of z among the prompt's successes, or among
its failures (traces, pooled over both and over prompts), the estimate has the noise

    v (1 / s + 1 / f) = v / m        m = s f / n

and prompts differ from their mean direction by d = E |u - mean u|^2. The weights that estimate the mean direction best
are 1 / (d + v / m), proportional to m / (m + kappa) on u and to 1 / (m + kappa) on a group's gradient with unscaled
advantages, which is m u in expectation. So

    kappa = v / d

v is the pooled variance within prompts and outcomes; d is the variance of the estimates of u between prompts, less
what noise adds to it, v E[1 / m]. This is the one-way random-effects analysis of variance, and all of it is inner
products of the z, so a random projection of them does (Johnson and Lindenstrauss): here z is cut into pieces of
`dimension` numbers that are added with random signs.

Cost: one forward and one backward pass of each rollout of the mixed groups that are used, one rollout at a time, and a
random sign for each parameter: 2.2 times the forward and backward time of a training step on the same rollouts (17
million parameters, 192 tokens, one CPU thread). All trainable parameters take part, so with adapters it is kappa of
the adapters, and all weigh alike: the spread and noise that Adam sees, parameter by parameter, may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from transformers import TrainerCallback

if TYPE_CHECKING:
    from .trainer import AdaRollMixin

__all__ = ["KappaCallback", "KappaEstimate", "estimate_kappa", "measure_kappa", "rollout_gradients"]

_PER_ROLLOUT = ("grpo", "sapo")  # losses that average over a completion's tokens


@dataclass(frozen=True)
class KappaEstimate:
    """What `estimate_kappa` found.

    Attributes:
        kappa (`float`): noise / spread; infinite where no spread beyond the noise was seen.
        inverse, inverse_error (`float`): 1 / kappa, which may be negative, and its standard error (jackknife over
            prompts). It is the inverse that is nearly normal: `interval` comes from it.
        noise, spread (`float`): v and d.
        prompts, rollouts (`int`): that took part.
    """

    kappa: float
    inverse: float
    inverse_error: float
    noise: float
    spread: float
    prompts: int
    rollouts: int

    @property
    def interval(self) -> tuple[float, float]:
        """About 95 %: 1.96 standard errors of 1 / kappa to each side."""
        low, high = (self.inverse + sign * 1.96 * self.inverse_error for sign in (1, -1))
        return (1 / low if low > 0 else math.inf, 1 / high if high > 0 else math.inf)


def estimate_kappa(gradients: ArrayLike, group_ids: ArrayLike, successes: ArrayLike) -> KappaEstimate:
    """kappa from the gradients of rollouts' log-probabilities.

    Args:
        gradients (float array of shape (B, dimension)): one row a rollout, projected or not.
        group_ids (int array of shape (B,)): each rollout's prompt.
        successes (array of shape (B,)): 1 for a success, 0 for a failure, nan to leave the rollout out.

    Raises:
        ValueError: if fewer than 3 groups are mixed, no outcome is there twice in any of them, or rollouts of one
            prompt and outcome never differ.
    """
    z, ids = np.asarray(gradients, dtype=np.float64), np.asarray(group_ids)
    outcome = np.asarray(successes, dtype=np.float64)
    directions, masses, squares, degrees, rollouts = [], [], [], [], 0
    for group in np.unique(ids):
        right, wrong = z[(ids == group) & (outcome == 1)], z[(ids == group) & (outcome == 0)]
        s, f = len(right), len(wrong)
        if s == 0 or f == 0:
            continue
        directions.append(right.mean(axis=0) - wrong.mean(axis=0))
        masses.append(s * f / (s + f))
        squares.append(_scatter(right) + _scatter(wrong))
        degrees.append(s + f - 2)
        rollouts += s + f
    if len(directions) < 3 or sum(degrees) == 0:
        raise ValueError(
            f"kappa needs at least 3 prompts with both outcomes, and one of them with an outcome seen twice; here are "
            f"{len(directions)} such prompts with {rollouts} rollouts. Take more prompts or rollouts."
        )
    parts = (np.array(directions), 1 / np.array(masses), np.array(squares), np.array(degrees, dtype=np.float64))
    noise, spread = _components(*parts)
    if noise == 0:
        raise ValueError(
            "kappa needs rollouts that differ: all those of a prompt with one outcome have the same gradient here. "
            "Take more prompts, or a higher temperature."
        )
    inverse = spread / noise
    left_out = [_inverse(*(np.delete(part, i, axis=0) for part in parts)) for i in range(len(directions))]
    known = np.array([value for value in left_out if math.isfinite(value)])
    error = math.sqrt((len(known) - 1) / len(known) * ((known - known.mean()) ** 2).sum())
    kappa = 1 / inverse if inverse > 0 else math.inf
    return KappaEstimate(kappa, inverse, error, noise, spread, len(directions), rollouts)


def _scatter(z: NDArray[np.float64]) -> float:
    return float(((z - z.mean(axis=0)) ** 2).sum())


def _components(
    directions: NDArray[np.float64],
    inverse_masses: NDArray[np.float64],
    squares: NDArray[np.float64],
    degrees: NDArray[np.float64],
) -> tuple[float, float]:
    """v and d."""
    noise = float(squares.sum() / degrees.sum()) if degrees.sum() else math.nan
    between = _scatter(directions) / (len(directions) - 1)
    return noise, between - noise * float(inverse_masses.mean())


def _inverse(*parts: NDArray[np.float64]) -> float:
    noise, spread = _components(*parts)
    return spread / noise if noise else math.nan


def rollout_gradients(
    model: torch.nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    completion_mask: torch.Tensor,
    *,
    temperature: float = 1.0,
    mean_over_tokens: bool = False,
    dimension: int | None = 4096,
    seed: int = 0,
) -> torch.Tensor:
    """The gradient of each rollout's log-probability by all trainable parameters, projected; float32 on the CPU.

    Args:
        model (`torch.nn.Module`): returns an object with `logits` of shape (B, T, vocabulary).
        input_ids, attention_mask (`torch.Tensor` of shape (B, T)): prompts and completions.
        completion_mask (`torch.Tensor` of shape (B, C)): 1 for the tokens, among the last C, that the model wrote.
        temperature (`float`): the logits are divided by it, as TRL does.
        mean_over_tokens (`bool`): the mean log-probability of a completion's tokens in place of their sum.
        dimension (`int`, *optional*): of the projection. Inner products are unbiased, with a relative error of about
            sqrt(2 / dimension). None keeps every parameter's gradient.
        seed (`int`): of the projection's signs; the same for all rollouts that are compared.

    Returns:
        `torch.Tensor` of shape (B, dimension), or (B, parameters). The model's `grad`s are left as they are.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    length = completion_mask.shape[1]
    rows = []
    for ids, attention, mask in zip(input_ids, attention_mask, completion_mask, strict=True):
        seen = attention.bool() | torch.nn.functional.pad(mask.bool(), (len(ids) - length, 0))
        used = slice(int(seen.nonzero()[0]), int(seen.nonzero()[-1]) + 1)  # without padding on either side
        logits = model(input_ids=ids[None, used], attention_mask=attention[None, used]).logits[0, :-1]
        logp = torch.log_softmax(logits.float() / temperature, dim=-1)
        written = torch.nn.functional.pad(mask, (len(ids) - length, 0))[used][1:].to(logp.dtype)
        total = (logp.gather(1, ids[used][1:, None]).squeeze(1) * written).sum()
        if mean_over_tokens:
            total = total / written.sum().clamp(min=1)
        # Zeros for what a rollout does not use (an expert, say): signs go by the place among all parameters
        gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
        rows.append(_project(gradients, dimension, seed).cpu())
    return torch.stack(rows)


def _project(gradients: Sequence[torch.Tensor], dimension: int | None, seed: int) -> torch.Tensor:
    if dimension is None:
        return torch.cat([gradient.flatten().float() for gradient in gradients])
    device = gradients[0].device
    generator = torch.Generator(device=device).manual_seed(seed)
    total = torch.zeros(dimension, device=device)
    for gradient in gradients:
        flat = gradient.flatten().float()
        signs = torch.randint(0, 2, flat.shape, generator=generator, device=device, dtype=torch.int8)
        flat = torch.where(signs.bool(), flat, -flat)
        short = -flat.numel() % dimension
        total += torch.nn.functional.pad(flat, (0, short)).view(-1, dimension).sum(dim=0)
    return total


def measure_kappa(trainer: AdaRollMixin, max_prompts: int = 32, dimension: int = 4096, seed: int = 0) -> KappaEstimate:
    """kappa of the model and data at hand, from the trainer's last generation batch.

    On several processes each takes its own rollouts; all must call it.

    Args:
        trainer (`AdaRollGRPOTrainer`): while it trains, or after.
        max_prompts (`int`): mixed groups that take part, at most.
        dimension, seed (`int`): see `rollout_gradients`.

    Raises:
        ValueError: if there is no batch yet, or too few mixed groups in it.
        NotImplementedError: where a process does not hold whole parameters (ZeRO-3, FSDP), or with images.
    """
    batch = trainer.last_batch
    if batch is None:
        raise ValueError("measure_kappa needs a generation batch: call it after the first step, or in a callback.")
    stage_3 = trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
    if stage_3 or trainer.is_fsdp_enabled or not batch.text_only:
        raise NotImplementedError(
            "measure_kappa takes gradients rollout by rollout, which needs whole parameters on each process (DDP, "
            "ZeRO up to stage 2, one process) and prompts of text. Measure it on one process, without images."
        )
    output, device = batch.output, trainer.accelerator.device
    chosen = np.isin(batch.group_ids, batch.mixed_groups[:max_prompts]) & ~np.isnan(batch.outcomes)
    rows = torch.as_tensor(chosen.nonzero()[0], device=output["prompt_ids"].device)
    written = output["completion_mask"] * output.get("tool_mask", torch.ones_like(output["completion_mask"]))
    sketches = torch.zeros(len(chosen), dimension)
    if len(rows):
        sketches[rows.cpu()] = rollout_gradients(
            trainer.accelerator.unwrap_model(trainer.model),
            torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)[rows],
            torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)[rows],
            written[rows],
            temperature=trainer.temperature,
            mean_over_tokens=trainer.loss_type in _PER_ROLLOUT,
            dimension=dimension,
            seed=seed,
        )
    outcomes = torch.as_tensor(np.where(chosen, batch.outcomes, np.nan), dtype=torch.float32)
    gathered = [
        trainer.accelerator.gather(part.to(device)).cpu().numpy()
        for part in (sketches, torch.as_tensor(batch.group_ids), outcomes)
    ]
    return estimate_kappa(*gathered)


class KappaCallback(TrainerCallback):
    """Logs `adaroll/kappa`, `adaroll/kappa_inverse` and its standard error every so many steps.

    With `kappa_every` in its options a trainer adds one itself, and uses what is found.

    A batch with too few mixed groups logs nothing, and a kappa that is infinite is not logged.

    ```python
    trainer.add_callback(KappaCallback(trainer, every=100))
    ```

    Args:
        trainer (`AdaRollGRPOTrainer`): whose batches are measured.
        every (`int`): steps from one measurement to the next.
        max_prompts (`int`): mixed groups that take part, at most.
        found (callable, *optional*): is handed every measurement, on every process.
    """

    def __init__(
        self,
        trainer: AdaRollMixin,
        every: int = 100,
        max_prompts: int = 32,
        found: Callable[[KappaEstimate], None] = lambda estimate: None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every={every!r} must be at least 1 step.")
        self._trainer, self._every, self._max_prompts, self._found = trainer, every, max_prompts, found

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the step, while the model is still the one that wrote the rollouts (of a new batch)."""
        if state.global_step % self._every:
            return
        try:
            found = measure_kappa(self._trainer, self._max_prompts)
        except ValueError:
            return  # too few mixed groups in this batch
        self._found(found)
        metrics = self._trainer._metrics["train"]
        values = {"": found.kappa, "_inverse": found.inverse, "_inverse_error": found.inverse_error}
        for name, value in values.items():
            if math.isfinite(value):
                metrics[f"adaroll/kappa{name}"].append(value)
