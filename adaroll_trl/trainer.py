"""GRPO with adaptive rollout allocation: `AdaRollGRPOTrainer`, and `AdaRollMixin` for any GRPOTrainer subclass.

    prompts of the generation batch (n)                     B = n * num_generations rollouts in all
      round 1: planned, >= min_rollouts > rewards ---> beliefs --->  allocator: counts per prompt
      round 2: counts ------------------> rewards ---> beliefs --->  allocator
      ...
      round R: the rest ----------------> merge -> advantages over unequal groups -> TRL's buffer and loss

A round is a call of TRL's own `_generate_and_score_completions` on this process's share of the round's rows, with
`num_generations` set to 1 for the call: TRL then neither shares one prompt between rows nor forms groups. Everything
else that TRL does for a batch, from tools to vLLM, happens as usual. The advantages that TRL computes for such rows
mean nothing and are replaced once all rounds are in.
"""

from __future__ import annotations

import inspect
import json
import os
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from numpy.typing import NDArray
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from .advantages import group_advantages, prompt_weight_factors, weighted_rewards
from .allocators import AllocationState, Allocator, make_allocator
from .allocators.uniform import UniformAllocator
from .beliefs import Beliefs, prompt_key
from .checks import (
    check_call,
    check_class,
    check_counts,
    check_max_rollouts,
    check_rows,
    check_trainer,
    explain_batch_size,
    nothing_to_decide,
    warn_if_trl_changed,
)
from .config import AdaRollOptions, load_by_path, options_of
from .metrics import SuccessSignal, allocation_metrics, expected_utility_after, tally, training_metrics
from .rounds import GenerationBatch, Round, append_logs, merge_metrics, merge_outputs, replace_last, scratch_logs
from .utilities import Utility, as_utility, make_utility

if TYPE_CHECKING:
    _Base = GRPOTrainer
else:
    _Base = object

_STATE_FILE = "adaroll_state.json"

warn_if_trl_changed()


class AdaRollMixin(_Base):
    """Adaptive rollout allocation for a GRPOTrainer subclass; it comes first among the bases.

    ```python
    class MyTrainer(AdaRollMixin, GMPOTrainer): ...
    ```

    The options come from the config where it has them (`AdaRollGRPOConfig`, or a config of your own with
    `AdaRollOptions` among its bases); any other config gets their defaults.

    `allocator` is an attribute: after construction it may be replaced by any `Allocator`.
    """

    allocator: Allocator

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls, AdaRollMixin)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        check_call({**given, **given.get("kwargs", {})})
        super().__init__(*args, **kwargs)
        check_trainer(self)
        self.adaroll = options_of(self.args)
        self._init_allocation(self.adaroll)
        self._beliefs = Beliefs(self.adaroll.prior_alpha, self.adaroll.prior_beta, self.adaroll.belief_decay)
        self._success = SuccessSignal(
            self.reward_func_names, self.reward_weights, self.adaroll.success_reward, self.adaroll.success_threshold
        )
        self._round: Round | None = None  # the one that is running
        self._held_metrics: dict[str, list[float]] = {}
        self._allocator_before: dict[str, Any] = {}
        self._bounds: dict[tuple[Any, ...], float] = {}

    def _init_allocation(self, options: AdaRollOptions) -> None:
        group = self.num_generations
        self._max_rollouts = 4 * group if options.max_rollouts is None else options.max_rollouts
        check_max_rollouts(group, options.min_rollouts, self._max_rollouts)
        self._utility = _make_utility(options)
        self.allocator = _make_allocator(options)
        idle = nothing_to_decide(
            self.args.generation_batch_size // group, group, options.min_rollouts, self.accelerator.num_processes
        )
        if idle and not isinstance(self.allocator, UniformAllocator):
            self.allocator = UniformAllocator()
            if self.accelerator.is_main_process:
                warnings.warn(idle, stacklevel=3)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        batch = self._start_batch(inputs)
        with self._vllm_kept_awake(batch.rounds_left):
            while batch.left > 0:
                self._run_round(batch, self._decide(batch))
        return self._finish_batch(batch)

    def _start_batch(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        rows = self._gather_prompts(inputs)
        needs_id = self._beliefs.decay > 0 and getattr(self, "environment_factories", None) is not None
        if needs_id and "prompt_id" not in rows[0]:
            raise ValueError(
                f"belief_decay={self._beliefs.decay} with an environment needs a `prompt_id` column: the environment "
                "adds to the prompt, so the dataset's prompt alone does not tell tasks apart. Add the column, or set "
                "belief_decay=0."
            )
        keys = [prompt_key(row) for row in rows]
        budget, world = len(rows) * self.num_generations, self.accelerator.num_processes
        rounds = self.allocator.num_rounds(len(rows), budget, self.adaroll.rounds, self._min_rollouts)
        rounds = max(1, min(rounds, budget // world))  # every process gets a row in every round
        self._held_metrics = {}
        self._allocator_before = deepcopy(self.allocator.state_dict())
        return GenerationBatch(rows, keys, *self._beliefs.prior(keys), left=budget, rounds_left=rounds)

    @property
    def _min_rollouts(self) -> int:
        return min(self.adaroll.min_rollouts, self.num_generations)

    def _gather_prompts(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row for each prompt of the generation batch, on every process.

        The sampler repeats each prompt `num_generations` times and hands process r the r-th stretch of the list, so a
        group may lie on several processes; the one that has its first row sends it. Rows with images travel pickled
        through the accelerator's memory, once per prompt (TRL itself gathers them once per rollout, for its logs).
        """
        world, rank, group = self.accelerator.num_processes, self.accelerator.process_index, self.num_generations
        first_row = rank * len(inputs)
        expected = self.args.per_device_train_batch_size * self.args.steps_per_generation
        check_rows(inputs, first_row, group, expected)
        if len(inputs) * world % group:
            raise ValueError(explain_batch_size(self.args, world))
        first_of_group = [row for index, row in enumerate(inputs) if (first_row + index) % group == 0]
        return first_of_group if world == 1 else gather_object(first_of_group)

    def _decide(self, batch: GenerationBatch) -> NDArray[np.int64]:
        """The next round's counts, decided by the main process for all."""
        answer: list[Any] = [None]
        failure: Exception | None = None
        if self.accelerator.is_main_process:
            try:
                answer = [self._ask_allocator(batch)]
            except Exception as error:  # the others wait for an answer
                failure, answer = error, [str(error)]
        broadcast_object_list(answer, from_process=0)
        if failure is not None:
            raise failure
        if isinstance(answer[0], str):
            raise RuntimeError(f"The main process could not allocate rollouts: {answer[0]}")
        counts, seconds, estimates = answer[0]
        batch.seconds += seconds
        batch.estimates.update(estimates)
        return counts

    def _ask_allocator(self, batch: GenerationBatch) -> tuple[NDArray[np.int64], float, dict[str, float]]:
        state = AllocationState(
            batch.successes.copy(),
            batch.failures.copy(),
            batch.prior_alpha,
            batch.prior_beta,
            rollouts=batch.rollouts.copy(),
            prompt_ids=batch.keys,
            min_rollouts=self._min_rollouts,
            max_rollouts=self._max_rollouts,
            multiple_of=self.accelerator.num_processes,
        )
        estimates = {} if batch.rounds else self._estimates(batch, state)
        start = time.perf_counter()
        counts = self.allocator.allocate(state, batch.left, batch.rounds_left)
        seconds = time.perf_counter() - start
        name = getattr(self.allocator, "name", type(self.allocator).__name__)
        return check_counts(counts, state, batch.left, batch.rounds_left, name), seconds, estimates

    def _estimates(self, batch: GenerationBatch, state: AllocationState) -> dict[str, float]:
        """Expected utility per prompt before the first rollout: of the allocator, of plain GRPO, and a bound on both."""
        n = batch.num_prompts
        uniform = expected_utility_after(self._utility, self.num_generations, batch.prior_alpha, batch.prior_beta)
        return {
            "utility/planned": self.allocator.expected_utility(state, batch.left, batch.rounds_left) / n,
            "utility/uniform": float(uniform.mean()),
            "utility/bound": self._bound(batch) / n,
        }

    def _bound(self, batch: GenerationBatch) -> float:
        try:
            from .solver import lagrangian_bound
        except ImportError:
            return float("nan")

        priors = np.stack([batch.prior_alpha, batch.prior_beta], axis=1)
        common = bool((priors == priors[0]).all())
        prior = (float(priors[0, 0]), float(priors[0, 1])) if common else priors
        key = (batch.num_prompts, batch.left, *priors[0])
        if common and key in self._bounds:
            return self._bounds[key]
        bound = lagrangian_bound(
            batch.num_prompts, batch.left, self._utility, prior, self._min_rollouts, self._max_rollouts
        )
        if common:
            self._bounds[key] = bound
        return bound

    def _run_round(self, batch: GenerationBatch, counts: NDArray[np.int64]) -> None:
        round_ = batch.plan_round(counts, self.accelerator.process_index, self.accelerator.num_processes)
        rows = [dict(batch.rows[i]) for i in round_.group_ids[round_.local]]  # TRL writes into its rows
        with self._recording(round_, is_last=round_.rows == batch.left):
            round_.output = super()._generate_and_score_completions(rows)
        assert round_.rewards is not None
        outcomes = self._success.outcomes(round_.rewards)
        batch.record(round_, *tally(outcomes, round_.group_ids, batch.num_prompts))

    @contextmanager
    def _recording(self, round_: Round, is_last: bool) -> Iterator[None]:
        """One rollout per row, and what TRL would log of them kept apart."""
        group, metrics, logs = self.num_generations, self._metrics["train"], self._logs
        round_.logs = scratch_logs(logs)
        self.num_generations, self._metrics["train"], self._logs = 1, round_.metrics, round_.logs
        self._round, self._round_is_last = round_, is_last
        try:
            yield
        finally:
            self.num_generations, self._metrics["train"], self._logs = group, metrics, logs
            self._round = None

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._round is not None:
            self._round.rewards = rewards
            self._hold_metrics()
        return rewards

    def _hold_metrics(self) -> None:
        """Keep what reward functions passed to `log_metric` until the last round: TRL then averages over all of it."""
        for name, values in self._pending_metrics.items():
            self._held_metrics[name] = self._held_metrics.get(name, []) + values
        self._pending_metrics.clear()
        if self._round_is_last:
            self._pending_metrics.update(self._held_metrics)

    def _finish_batch(self, batch: GenerationBatch) -> dict[str, Any]:
        output = merge_outputs([round_.output for round_ in batch.rounds], self._tokenizer.pad_token_id)
        rewards_per_func = torch.cat([round_.rewards for round_ in batch.rounds if round_.rewards is not None])
        group_ids = torch.as_tensor(batch.group_ids, device=rewards_per_func.device)
        advantages, std = group_advantages(
            rewards_per_func, group_ids, self.reward_weights, self.scale_rewards, self.multi_objective_aggregation
        )
        if self.adaroll.prompt_weighting == "prompt":
            advantages = advantages * prompt_weight_factors(group_ids)
        per_round = torch.split(advantages, [round_.rows for round_ in batch.rounds])
        local = [part[round_.local] for part, round_ in zip(per_round, batch.rounds, strict=True)]
        output["advantages"] = torch.cat(local)
        self._log_batch(batch, rewards_per_func, advantages, std, group_ids)
        self._beliefs.update(batch.keys, batch.successes, batch.failures)
        return output

    def _log_batch(
        self,
        batch: GenerationBatch,
        rewards_per_func: torch.Tensor,
        advantages: torch.Tensor,
        std: torch.Tensor,
        group_ids: torch.Tensor,
    ) -> None:
        append_logs(self._logs, batch.rounds, batch.table_columns())
        replace_last(self._logs["advantages"], advantages.tolist())
        rewards = weighted_rewards(rewards_per_func, self.reward_weights)
        metrics = merge_metrics(batch.rounds)
        for index, name in enumerate(self.reward_func_names):
            metrics[f"rewards/{name}/mean"] = torch.nanmean(rewards_per_func[:, index]).item()
            metrics[f"rewards/{name}/std"] = nanstd(rewards_per_func[:, index]).item()
        metrics["reward"] = torch.nanmean(rewards).item()
        metrics["reward_std"] = nanstd(rewards).item()
        metrics["frac_reward_zero_std"] = torch.isclose(std, torch.zeros_like(std)).float().mean().item()
        ours = allocation_metrics(batch.successes, batch.failures, batch.rollouts, self._utility)
        ours |= training_metrics(rewards, advantages, group_ids)
        ours |= batch.estimates | {"rounds": float(len(batch.rounds)), "time/allocate": batch.seconds}
        metrics |= {f"adaroll/{name}": value for name, value in ours.items() if not np.isnan(value)}
        log = self._metrics["train"]
        for name, value in metrics.items():
            log[name].append(value)
        log["num_tokens"] = [metrics["num_tokens"]]  # a running total, as in TRL

    @contextmanager
    def _vllm_kept_awake(self, rounds: int) -> Iterator[None]:
        """With vLLM's sleep mode, load the weights once per batch and not once per round.

        Asleep, vLLM has neither weights nor cache; TRL wakes it and loads the weights in each generation call. The
        price of staying awake is its memory while log-probabilities are computed between the rounds.
        """
        if rounds == 1 or not (self.use_vllm and self.vllm_mode == "colocate" and self.args.vllm_enable_sleep_mode):
            yield
            return
        vllm = self.vllm_generation
        vllm.sync_weights()
        self._last_loaded_step = self.state.global_step
        vllm.llm.wake_up(tags=["kv_cache"])
        vllm.enable_sleep_mode = False
        try:
            yield
        finally:
            vllm.enable_sleep_mode = True
            vllm.llm.sleep(level=2)
            vllm._llm_weights_sleeping = True

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "prompt_id" not in self._signature_columns:
            self._signature_columns = [*self._signature_columns, "prompt_id"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if not self.args.should_save:
            return
        # A batch that is not used up is generated again on resume, and its rollouts are counted then
        partly_used = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        state = {
            "beliefs": self._beliefs.state_dict(before_last_update=partly_used),
            "allocator": self._allocator_before if partly_used else self.allocator.state_dict(),
        }
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        path = os.path.join(folder, _STATE_FILE)
        with open(f"{path}.tmp", "w") as file:
            json.dump(state, file)
        os.replace(f"{path}.tmp", path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state: list[Any] = [None]
        path = os.path.join(checkpoint, _STATE_FILE)
        if self.accelerator.is_main_process and os.path.exists(path):
            with open(path) as file:
                state = [json.load(file)]
        broadcast_object_list(state, from_process=0)  # the folder may exist on one machine only
        if state[0] is not None:
            self._beliefs.load_state_dict(state[0]["beliefs"])
            self.allocator.load_state_dict(state[0]["allocator"])
        elif self._beliefs.decay > 0 and self.accelerator.is_main_process:
            warnings.warn(
                f"{checkpoint} has no {_STATE_FILE}: every prompt's belief starts at the prior.", stacklevel=2
            )


class AdaRollGRPOTrainer(AdaRollMixin, GRPOTrainer):
    """TRL's GRPOTrainer, with the rollouts of each generation batch spent where they pay.

    AdaRoll-GRPO comes from "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training" (October 2026). The
    arguments are those of [`~trl.GRPOTrainer`]; `args` may be an [`AdaRollGRPOConfig`] or a plain `GRPOConfig`.

    ```python
    from adaroll_trl import AdaRollGRPOTrainer as GRPOTrainer
    ```
    """

    _tag_names = ["trl", "grpo", "adaroll"]  # noqa: RUF012 (TRL reads a list)
    _name = "AdaRoll-GRPO"
    _paper = {  # noqa: RUF012
        "title": "Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training",
        # docstyle-ignore
        "citation": textwrap.dedent("""\
            @article{adaroll2026,
                title        = {{Bayes-Adaptive MDPs for Rollout Allocation to Enhance GRPO Training}},
                year         = 2026,
                month        = oct,
            }"""),
    }


def _make_utility(options: AdaRollOptions) -> Utility:
    if ":" in options.utility:
        return as_utility(load_by_path("utility", options.utility))
    return make_utility(options.utility, **({"kappa": options.kappa} if options.utility == "progress" else {}))


def _make_allocator(options: AdaRollOptions) -> Allocator:
    if ":" in options.allocator:
        return load_by_path("allocator", options.allocator)()
    if options.allocator == "uniform":
        return UniformAllocator()
    return make_allocator(
        options.allocator,
        utility=_make_utility(options) if ":" in options.utility else options.utility,
        kappa=options.kappa,
        block_size=options.block_size,
        draws_per_round=options.draws_per_round,
        table_cache_dir=options.table_cache_dir,
    )
