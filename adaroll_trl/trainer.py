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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from trl import GRPOTrainer

from .advantages import group_advantages, group_masses, unscaled, weighted_rewards
from .agreement import check_agreement
from .allocators import Allocator
from .allocators.contract import name_of
from .batch import GenerationBatch, OwnRollouts, Round, tally
from .beliefs import Beliefs, prompt_key
from .calibration import Calibration
from .callbacks import add_default_callbacks
from .callbacks.events import tell
from .checks import (
    check_call,
    check_class,
    check_completions,
    check_dataset,
    check_decay_without_ids,
    check_prior_column,
    check_prompt_weighting,
    check_prompts,
    check_rows,
    check_trainer,
    check_unbiased,
    explain_batch_size,
    number_of_rows,
    warn_if_trl_changed,
)
from .config import options_of
from .kappa import RunningKappa
from .metrics import SuccessSignal, adaroll_metrics, reward_metrics
from .model_card import PAPER_CITATION, PAPER_TITLE, complete_model_card
from .noise import KappaCallback
from .option_effects import advice_on_options, advice_on_visits, expected_visits, ignored_options
from .planner import Decision, RolloutPlanner
from .priors import pass_rates
from .resuming import Lasting, ResumingMixin
from .rounds import append_logs, merge_metrics, merge_outputs, pad_columns, replace_last, scratch_logs
from .streaming.apart import replaced
from .streaming.checks import check_streaming
from .streaming.mixin import StreamingMixin
from .streaming.scoring import Scorer
from .streaming.seams import StreamedBatch
from .user_functions import checked_rewards, checked_rollouts, raise_own_reward_error, raise_reward_errors
from .vllm import kept_awake
from .weighting import PromptWeighting

if TYPE_CHECKING:
    from typing import Any as _Base
else:
    _Base = object

_T = TypeVar("_T")

warn_if_trl_changed()


class AdaRollMixin(StreamingMixin, ResumingMixin, _Base):
    """Adaptive rollout allocation for a GRPOTrainer subclass; it comes first among the bases.

    ```python
    class MyTrainer(AdaRollMixin, GMPOTrainer): ...
    ```

    The options come from the config where it has them (`AdaRollGRPOConfig`, or a config of your own with
    `AdaRollOptions` among its bases); any other config gets their defaults.

    Attributes:
        adaroll (`AdaRollOptions`): those options.
        last_batch (`OwnRollouts`, *optional*): this process's rollouts of the newest finished batch, for
            `measure_kappa`; None while the next one is generated.
    """

    num_generations: Any
    rollout_func: Any
    _logs: Any
    _signature_columns: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls, AdaRollMixin)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        check_call({**given, **given.get("kwargs", {})})
        super().__init__(*args, **kwargs)
        check_trainer(self)
        options = self.adaroll = options_of(self.args)
        check_agreement(self)
        if self.rollout_func is not None:
            self.rollout_func = checked_rollouts(self.rollout_func)
        if ignored := ignored_options(options):
            self._warn(ignored)
        for hint in advice_on_options(options):
            self._warn(hint)
        group, world = self.num_generations, self.accelerator.num_processes
        prompts = self.args.generation_batch_size // group
        self._planner = RolloutPlanner(options, prompts, group, world, self._warn)
        check_dataset(self.train_dataset, prompts, self.environments_own_prompts)
        visits = expected_visits(self.args, prompts, number_of_rows(self.train_dataset))
        advice = advice_on_visits(options, self._planner.num_rounds(prompts), visits)
        if advice and not self._planner.idle:  # which the planner has told
            self._warn(advice)
        prior = (options.prior_alpha, options.prior_beta)
        self._beliefs = Beliefs(*prior, options.belief_decay, options.prior_source, options.prior_strength)
        self._calibration = Calibration()
        if options.prior_column is not None:
            check_prior_column(self.train_dataset, options.prior_column)
        self._success = SuccessSignal(
            self.reward_func_names, self.reward_weights, options.success_reward, options.success_threshold, self._warn
        )
        self._weighting = PromptWeighting(options, group)
        check_prompt_weighting(options.prompt_weighting, self.multi_objective_aggregation)
        self._check_allocator()
        self.last_batch: OwnRollouts | None = None
        self._stream: StreamedBatch | None = None  # the one that is running
        self._last_scorer: Scorer | None = None
        self._held_metrics: dict[str, list[float]] = {}
        self._kappa: RunningKappa | None = None
        if options.kappa_every is not None:
            self._kappa = RunningKappa(options.kappa)
            self.add_callback(KappaCallback(self, options.kappa_every, found=self._kappa.update))
        add_default_callbacks(self)

    @property
    def allocator(self) -> Allocator:
        """Who decides. May be replaced by any `Allocator` between batches."""
        return self._planner.allocator

    @allocator.setter
    def allocator(self, allocator: Allocator) -> None:
        before, self._planner.allocator = self._planner.allocator, allocator
        try:
            self._check_allocator()
        except ValueError:
            self._planner.allocator = before
            raise

    def _check_allocator(self) -> None:
        prompts = self.args.generation_batch_size // self.num_generations
        name = name_of(self.allocator)
        if self.adaroll.stream_rollouts:
            check_streaming(self, self.allocator, prompts)
        if self.adaroll.prompt_weighting == "unbiased":
            planned = self._from_main(lambda: self._planner.has_stopping_plan(prompts))
            check_unbiased(name, planned, self.adaroll.stream_rollouts)

    def _warn(self, message: str) -> None:
        if self.accelerator.is_main_process:
            warnings.warn(message, stacklevel=2)

    # Rounds

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._await_last_scorer()
        # What a reward function logged before it, or another one, failed belongs to no rows
        self._pending_extra_logs.clear()
        self._pending_metrics.clear()
        if not self.model.training:
            output = super()._generate_and_score_completions(inputs)
            self.model.eval()  # continuous batching leaves it in training mode, and the next batch would be taken so
            pad_columns(self._logs["extra"], len(inputs) * self.accelerator.num_processes)
            return output
        batch = self._start_batch(inputs)
        if self.adaroll.stream_rollouts:
            self._run_stream(batch)
        else:
            with kept_awake(self, batch.rounds_left):
                while batch.left > 0:
                    self._run_round(batch, self._from_main(lambda: self._planner.decide(batch)))
        return self._finish_batch(batch)

    def _start_batch(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        rows = self._gather_prompts(inputs)
        if self.rollout_func is None and not self.environments_own_prompts:
            check_prompts(rows, self.processing_class)
        if self._kappa is not None:
            kappa = self._weighting.kappa = self._kappa.value
            self._planner.use_kappa(kappa)
        if self._beliefs.decay > 0 and self.environments_own_prompts and "prompt_id" not in rows[0]:
            self._warn(check_decay_without_ids(self._beliefs.decay, self.adaroll.defaults().belief_decay))
            self._beliefs.decay = 0.0
        keys = [prompt_key(row) for row in rows]
        start = self._from_main(lambda: (self._planner.num_rounds(len(rows)), self._beliefs.fit()))
        rounds, self._beliefs.common = start
        rates = self._pass_rates(rows, keys)
        alpha, beta = self._beliefs.prior(keys, rates)
        self.last_batch = None  # its tokens would stay on the device through the next generation
        self._held_metrics = {}
        self._remember_state()
        budget = len(rows) * self.num_generations
        return GenerationBatch(rows, keys, alpha, beta, left=budget, rounds_left=rounds, pass_rates=rates)

    def _pass_rates(self, rows: list[dict[str, Any]], keys: list[str]) -> np.ndarray | None:
        """The pass rates that the data set gives these prompts, nan where it gives none; None without a column."""
        column = self.adaroll.prior_column
        if column is None:
            return None
        if column not in rows[0]:
            raise ValueError(
                f"prior_column={column!r} is not in the rows of a batch, which have {', '.join(rows[0])}. If a "
                "transform of the data set makes the rows, let it keep the column."
            )
        return pass_rates(column, [row[column] for row in rows], keys)

    def _gather_prompts(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row for each prompt of the generation batch, on every process.

        The sampler repeats each prompt `num_generations` times and hands process r the r-th stretch of the list, so a
        group may lie on several processes; the one that has its first row sends it. Rows with images travel pickled
        through the accelerator's memory, once per prompt (TRL itself gathers them once per rollout, for its logs).
        """
        world, rank, group = self.accelerator.num_processes, self.accelerator.process_index, self.num_generations
        first_row = rank * len(inputs)
        check_rows(inputs, first_row, group, self.args.per_device_train_batch_size * self.args.steps_per_generation)
        if len(inputs) * world % group:
            raise ValueError(explain_batch_size(self.args, world))
        firsts = [row for index, row in enumerate(inputs) if (first_row + index) % group == 0]
        return firsts if world == 1 else gather_object(firsts)

    def _from_main(self, function: Callable[[], _T]) -> _T:
        """Call `function` on the main process and hand its result to all, or its failure."""
        if self.accelerator.num_processes == 1:
            return function()
        answer: list[Any] = [None, None]
        failure: Exception | None = None
        if self.accelerator.is_main_process:
            try:
                answer[0] = function()
            except Exception as error:  # first tell the others, who wait for an answer
                failure, answer[1] = error, f"{type(error).__name__}: {error}"
        broadcast_object_list(answer, from_process=0)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise RuntimeError(f"The main process failed: {answer[1]}")
        return answer[0]

    def _run_round(self, batch: GenerationBatch, decision: Decision) -> None:
        round_ = batch.plan_round(decision.counts, self.accelerator.process_index, self.accelerator.num_processes)
        rows = batch.rows_of(round_)
        tell(self, "on_round_begin", batch)
        with self._recording(round_, is_last=round_.rows == batch.left):
            round_.output = super()._generate_and_score_completions(rows)
        check_completions(len(rows), len(round_.output["completion_ids"]), self.rollout_func is not None)
        self._record_round(batch, round_)
        batch.seconds += decision.seconds
        batch.estimates |= decision.estimates

    def _record_round(self, batch: GenerationBatch, round_: Round) -> None:
        round_.outcomes = self._success.outcomes(round_.rewards)
        batch.record(round_, *tally(round_.outcomes, round_.group_ids, batch.num_prompts))

    @contextmanager
    def _recording(self, round_: Round, is_last: bool) -> Iterator[None]:
        """One rollout per row; the rewards that TRL is given, and what it would log, are taken down in `round_`."""
        group, metrics, logs = self.num_generations, self._metrics["train"], self._logs
        args_group = self.args.num_generations
        calculate = self._calculate_rewards if self._stream is None else self._stream.rewards

        def recorded(*args: Any) -> torch.Tensor:
            round_.rewards = calculate(*args)
            self._hold_metrics(is_last)
            return round_.rewards

        round_.logs = scratch_logs(logs)
        self.num_generations, self._metrics["train"], self._logs = 1, round_.metrics, round_.logs
        self.args.num_generations = 1  # a `rollout_func` may read it from there
        try:
            # On the instance, so that what a subclass makes of the rewards is what is recorded
            with replaced(self, "_calculate_rewards", recorded):
                yield
        finally:
            self.num_generations, self._metrics["train"], self._logs = group, metrics, logs
            self.args.num_generations = args_group

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        with checked_rewards(self) as errors:
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._stream is None:
            raise_reward_errors(rewards, self.reward_func_names, errors, self.accelerator.process_index)
        else:  # this process scores alone
            raise_own_reward_error(rewards, self.reward_func_names, errors)
        return rewards

    def _hold_metrics(self, is_last: bool) -> None:
        """Keep what reward functions passed to `log_metric` until the last round: TRL then averages over all of it."""
        for name, values in self._pending_metrics.items():
            self._held_metrics[name] = self._held_metrics.get(name, []) + values
        self._pending_metrics.clear()
        if is_last:
            self._pending_metrics.update(self._held_metrics)

    # From rounds to batch

    def _finish_batch(self, batch: GenerationBatch) -> dict[str, Any]:
        output = merge_outputs([round_.output for round_ in batch.rounds], self._tokenizer.pad_token_id)
        rewards_per_func = torch.cat([round_.rewards for round_ in batch.rounds])
        group_ids = torch.as_tensor(batch.group_ids, device=rewards_per_func.device)
        advantages, std = group_advantages(
            rewards_per_func, group_ids, self.reward_weights, self.scale_rewards, self.multi_objective_aggregation
        )
        advantages = self._weigh(batch, advantages, std, group_ids)
        per_round = torch.split(advantages, [round_.rows for round_ in batch.rounds])
        output["advantages"] = torch.cat([part[r.local] for part, r in zip(per_round, batch.rounds, strict=True)])
        batch.estimates |= self._judge_beliefs(batch)
        self._log_batch(batch, rewards_per_func, advantages, std, group_ids)
        self._beliefs.update(batch.keys, batch.successes, batch.failures, batch.pass_rates)
        self._from_main(lambda: self._planner.observe(batch))
        tell(self, "on_batch_end", batch)
        self.last_batch = batch.own_rollouts(output)
        return output

    def _judge_beliefs(self, batch: GenerationBatch) -> dict[str, float]:
        """The prior where it is fitted, and how well beliefs foretold the batch; to log."""
        alpha, beta = self._beliefs.common
        metrics = {}
        if self._beliefs.prior_fit is not None:
            metrics = {"prior/alpha": alpha, "prior/beta": beta, "prior/mean": alpha / (alpha + beta)}
        own = (batch.prior_alpha != alpha) | (batch.prior_beta != beta)
        predicted = batch.prior_alpha / (batch.prior_alpha + batch.prior_beta)
        scores = self._calibration.observe(predicted, *batch.first_outcomes(self._planner.min_rollouts), own)
        return metrics | {f"calibration/{name}": value for name, value in scores.items()}

    def _weigh(
        self, batch: GenerationBatch, advantages: torch.Tensor, std: torch.Tensor, group_ids: torch.Tensor
    ) -> torch.Tensor:
        """The advantages by `prompt_weighting`; the weights they give the prompts are taken down for the log."""
        if self.adaroll.prompt_weighting == "unbiased":  # the plans are known to the main process
            factors = self._from_main(lambda: self._weighting.factors(batch))
        else:
            factors = self._weighting.factors(batch)
        if factors is not None:
            if self._weighting.of_unscaled and self.scale_rewards == "group":
                advantages = unscaled(advantages, std)
            advantages = advantages * torch.as_tensor(factors, dtype=advantages.dtype).to(advantages.device)[group_ids]
        masses = group_masses(advantages, group_ids, batch.num_prompts)
        batch.estimates |= self._weighting.record(batch, masses.double().cpu().numpy())
        return advantages

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
        metrics = merge_metrics(batch.rounds)
        metrics |= reward_metrics(rewards_per_func, self.reward_func_names, self.reward_weights, std)
        rewards = weighted_rewards(rewards_per_func, self.reward_weights)
        metrics |= adaroll_metrics(batch, self._planner.utility, rewards, advantages, group_ids)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        self._metrics["train"]["num_tokens"] = [metrics["num_tokens"]]  # a running total, as in TRL

    # Columns, checkpoints, model card

    @property
    def environments_own_prompts(self) -> bool:
        """Whether environments add to the prompts; TRL below 1.9 has none."""
        return getattr(self, "environment_factories", None) is not None

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        own = [name for name in ("prompt_id", self.adaroll.prior_column) if name is not None]
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *own]))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the model card as TRL does, and name AdaRoll-GRPO, its paper and this library in it."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            grpo = ("GRPO", GRPOTrainer._paper["citation"])
            complete_model_card(Path(self.args.output_dir) / "README.md", [grpo], self.adaroll)

    def _lasting_parts(self) -> dict[str, Lasting]:
        parts: dict[str, Lasting | None] = {
            "beliefs": self._beliefs,
            "allocator": self.allocator,
            "weighting": self._weighting,
            "calibration": self._calibration,
            "prior": self._beliefs.prior_fit,
            "kappa": self._kappa,
        }
        return {name: part for name, part in parts.items() if part is not None}


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
    _paper = {"title": PAPER_TITLE, "citation": PAPER_CITATION}  # noqa: RUF012
