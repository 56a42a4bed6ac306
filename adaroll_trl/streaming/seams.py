"""Where a stream enters TRL: one call of its `_generate_and_score_completions`, with the backend's `generate` changed.

TRL prepares the batch as for plain GRPO, with each prompt's rows alike and `num_generations` at 1. When it calls the
backend, the rows say which prompts there are, and the stream decides how many completions each gets. What comes back
has as many rows, but other prompts in them, so the lists that TRL goes on with are changed in place: the prompts'
token ids (and images) that it gave to the backend, its prompts, and the data set's rows. From there on every row is a
row like any other. `_calculate_rewards` then hands out the rewards that the stream has already paid for.

With vLLM in the trainer's process, and with continuous batching, every process streams the prompts that are whole on
it; with a vLLM server the main process streams all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray

from ..batch import GenerationBatch, Round
from .apart import alone, local_scoring, replaced
from .continuous import ContinuousBatching
from .decode import decode
from .engine import Engine
from .loop import Ledger, Streamed, stream_rollouts
from .rollout import Rollout
from .scoring import Scorer
from .vllm_colocate import ColocatedVLLM
from .vllm_server import VLLMServer, joined

_SHARE = 8  # by default 1/8 of the rollouts are in flight; docs/results/streaming_gain.md
_MOST_CONNECTIONS = 64  # that TRL's client of a vLLM server keeps


@dataclass(frozen=True)
class Hooks:
    """What a stream asks of the trainer.

    Args:
        ledger (callable): from the numbers of this process's prompts in the batch to who decides for them.
        score (callable): rows of the data set, prompts, completions and token ids to rewards, of shape (rows, reward
            functions); the reward functions of TRL, for these rows alone.
        outcomes (callable): from these rewards to 1, 0 or nan for each row.
    """

    ledger: Callable[[range], Ledger]
    score: Callable[[list[dict[str, Any]], list[Any], list[Any], list[list[int]]], torch.Tensor]
    outcomes: Callable[[torch.Tensor], NDArray[np.float64]]


def streams_on_main(trainer: Any) -> bool:
    """Whether the main process streams for all."""
    return bool(trainer.use_vllm and trainer.vllm_mode == "server")


def parts_of_batch(trainer: Any, num_prompts: int) -> list[range]:
    """The prompts of each stream: all, or each process's own."""
    parts = 1 if streams_on_main(trainer) else trainer.accelerator.num_processes
    share = num_prompts // parts
    return [range(part * share, (part + 1) * share) for part in range(parts)]


def requests_in_flight(trainer: Any, budget: int) -> int:
    """Requests in an engine at once, of `budget` in all: what was asked for, as far as the engine can run it."""
    capacity = budget
    if streams_on_main(trainer):
        capacity = _MOST_CONNECTIONS
    elif trainer.use_vllm:
        engine = trainer.vllm_generation.llm.llm_engine
        config = getattr(getattr(engine, "vllm_config", None), "scheduler_config", None)
        capacity = getattr(config, "max_num_seqs", budget)
    return min(trainer.adaroll.in_flight or math.ceil(budget / _SHARE), budget, capacity)


class StreamedBatch:
    """One generation batch that is streamed inside one call of TRL's method.

    Args:
        trainer (`GRPOTrainer`): whose backend is used.
        batch (`GenerationBatch`): the prompts, on every process.
        round_ (`Round`): stands for the stream; planned as for equal groups. The prompts of its rows become those of
            what was generated.
        hooks (`Hooks`): what is asked of the trainer.
        in_flight (`int`): requests in an engine at once.

    Attributes:
        inputs (list of `dict`): this process's rows of the data set, for TRL's method, which goes on with the list.
        scorer (`Scorer`, *optional*): this process's, once it has one; after a failure it may be at its last call.
    """

    def __init__(self, trainer: Any, batch: GenerationBatch, round_: Round, hooks: Hooks, in_flight: int) -> None:
        self._trainer, self._batch, self._round, self._hooks = trainer, batch, round_, hooks
        self._in_flight = in_flight
        self._on_main = streams_on_main(trainer)
        self._gathers = self._on_main and trainer.accelerator.num_processes > 1  # prompts of other processes' rows
        parts = parts_of_batch(trainer, batch.num_prompts)
        self._own = parts[0 if self._on_main else trainer.accelerator.process_index]
        self._budget = round_.rows // len(parts)
        self._prompts: dict[int, Any] = {}  # as TRL made them for the model
        self._metrics: list[tuple[str, float, int]] = []
        self._parts: list[Streamed] = []
        self._failure: Exception | None = None
        self.scorer: Scorer | None = None
        self.inputs = batch.rows_of(round_)

    # What the trainer calls, in this order

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The backend's `generate` is the stream for the time being."""
        trainer = self._trainer
        with ExitStack() as stack:
            if not trainer.use_vllm:
                model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
                stack.enter_context(replaced(model, "generate_batch", self._instead_of_generate_batch(model)))
            else:
                vllm = trainer.vllm_generation
                stack.enter_context(replaced(vllm, "generate", self._around(vllm.generate)))
                if not self._on_main:
                    stack.enter_context(replaced(vllm.llm, "generate", self._instead_of_llm(vllm.llm)))
                elif trainer.accelerator.is_main_process:
                    client = vllm.vllm_client
                    stack.enter_context(replaced(client, "generate", self._instead_of_client(client)))
            if trainer.accelerator.num_processes > 1:
                stack.enter_context(local_scoring(type(trainer)))
            yield

    def prepare(self, prompts: Sequence[Any]) -> None:
        """Take this process's prompts as TRL has made them for the model, one a row."""
        self._prompts = self._by_prompt(self._planned_here, prompts)

    def settle(self, prompts: list[Any]) -> None:
        """After generation: TRL's prompts and the data set's rows become those of the rows generated."""
        prompts[:] = [self._prompts[index] for index in self._round.own_group_ids]
        self.inputs[:] = self._batch.rows_of(self._round)

    def rewards(
        self, inputs: Any, prompts: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any]
    ) -> torch.Tensor:
        """The rewards of all rows, process after process; takes the place of TRL's `_calculate_rewards`.

        Raises:
            RuntimeError: if TRL means other rows than those that were scored.
        """
        rollouts = self._rollouts[self._round.local]
        for row, rollout in enumerate(rollouts):
            same = list(ids[row]) == rollout.completion_ids and completions[row] == rollout.completion
            if not (same and prompts[row] == self._prompts[rollout.prompt]):
                raise RuntimeError(
                    f"Row {row} of a streamed batch is not what was scored: completion {completions[row]!r} of prompt "
                    f"{prompts[row]!r} against {rollout.completion!r} of {self._prompts[rollout.prompt]!r}. This TRL "
                    "prepares batches in a way that adaroll_trl does not know: set stream_rollouts=False."
                )
        self._hand_over_logs(rollouts)
        rewards = [rollout.rewards for rollout in self._rollouts]
        return torch.tensor(rewards, dtype=torch.float32, device=self._trainer.accelerator.device)

    @property
    def metrics(self) -> dict[str, float]:
        """What to log: of several processes the slowest."""
        known: dict[str, list[float]] = {
            "in_flight": [part.in_flight for part in self._parts],
            "engine_steps": [part.engine_steps for part in self._parts if part.engine_steps is not None],
            "reward_calls": [part.scorings for part in self._parts],
            "seconds_without_reward": [part.waiting for part in self._parts],
        }
        return {f"stream/{name}": float(max(values)) for name, values in known.items() if values}

    @property
    def seconds(self) -> float:
        """That decisions took."""
        return max(part.deciding for part in self._parts)

    # In place of the backends

    def _instead_of_llm(self, llm: Any) -> Callable[..., list[Any]]:
        def generate(prompts: list[dict[str, Any]], *, sampling_params: Any, **options: Any) -> list[Any]:
            held = self._held(self._planned_here, prompts)
            rollouts = self._stream(lambda: ColocatedVLLM(llm, held, sampling_params), held)
            return [rollout.output for rollout in rollouts]

        return generate

    def _instead_of_client(self, client: Any) -> Callable[..., dict[str, Any]]:
        generate_one = client.generate

        def post(path: str, body: dict[str, Any]) -> Any:
            return client.session.post(f"{client.base_url}{path}", json=body, timeout=10)

        def generate(prompts: list[list[int]], **options: Any) -> dict[str, Any]:
            held = self._held(self._round.group_ids, prompts)
            rows = {index: row for row, index in reversed(list(enumerate(self._round.group_ids.tolist())))}

            def engine() -> Engine:
                return VLLMServer(generate_one, held, rows, options, self._in_flight, post)

            return joined([rollout.output for rollout in self._stream(engine, held)])

        return generate

    def _instead_of_generate_batch(self, model: Any) -> Callable[..., dict[str, Any]]:
        def generate_batch(inputs: list[list[int]], **options: Any) -> dict[str, Any]:
            held = self._held(self._planned_here, inputs)
            rollouts = self._stream(lambda: ContinuousBatching(model, held, options, self._in_flight), held)
            self._exchange()
            inputs[:] = [held[index] for index in self._round.own_group_ids]
            return {rollout.name: rollout.output for rollout in rollouts}

        return generate_batch

    def _around(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Around TRL's own `VLLMGeneration.generate`, on every process."""

        def around(*, prompts: list[list[int]], images: list[Any] | None = None, **options: Any) -> Any:
            pairs = list(zip(prompts, images if images is not None else [None] * len(prompts), strict=True))
            held = self._by_prompt(self._planned_here, pairs)
            answer = generate(prompts=prompts, images=images, **options)
            self._exchange()
            chosen = [held[index] for index in self._round.own_group_ids]
            prompts[:] = [ids for ids, _ in chosen]
            if images is not None:
                images[:] = [own for _, own in chosen]
            elif any(own is not None for _, own in chosen):
                raise ValueError(
                    "stream_rollouts=True with a vLLM server, several processes and a batch in which only some "
                    "prompts have images: a process without images was dealt some. Set stream_rollouts=False."
                )
            return answer

        return around

    # The stream itself

    def _stream(self, make: Callable[[], Engine], held: dict[int, Any]) -> list[Rollout]:
        """Run this process's stream. A failure is kept for `_exchange`: the others have to hear of it first."""
        try:
            ledger, engine = self._hooks.ledger(self._own), make()
            self.scorer = Scorer(lambda rollouts: self._score(rollouts, held))
            in_order = self._trainer.adaroll.stream_order == "start"
            streamed = stream_rollouts(engine, self.scorer, ledger, self._budget, self._in_flight, in_order)
        except Exception as error:
            self._failure = error
            return []
        self._parts = [streamed]
        return streamed.rollouts

    def _score(self, rollouts: list[Rollout], held: dict[int, Any]) -> None:
        prompts = [self._prompts[rollout.prompt] for rollout in rollouts]
        prompt_ids = [_token_ids(held[rollout.prompt]) for rollout in rollouts]
        ids = [rollout.completion_ids for rollout in rollouts]
        completions = decode(self._trainer, prompts, prompt_ids, ids)
        rows = self._batch.copies([rollout.prompt for rollout in rollouts])
        with alone(), self._on_device():
            rewards = self._hooks.score(rows, prompts, completions, ids)
        outcomes = self._hooks.outcomes(rewards)
        for index, rollout in enumerate(rollouts):
            rollout.completion, rollout.outcome = completions[index], float(outcomes[index])
            rollout.rewards = rewards[index].tolist()
        self._take_logs(rollouts)

    def _on_device(self) -> AbstractContextManager[Any]:
        """This process's GPU: a thread that does not say which starts on the first."""
        device = self._trainer.accelerator.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _take_logs(self, rollouts: list[Rollout]) -> None:
        """What reward functions passed to `log_extra` and `log_metric` in this call."""
        extras, metrics = self._trainer._pending_extra_logs, self._trainer._pending_metrics
        for column, values in extras.items():
            if len(values) != len(rollouts):
                raise ValueError(
                    f"log_extra({column!r}) got {len(values)} values for {len(rollouts)} completions: it needs one "
                    "for each, in their order."
                )
            for rollout, value in zip(rollouts, values, strict=True):
                rollout.extras[column] = value
        self._metrics += [(name, value, len(rollouts)) for name, values in metrics.items() for value in values]
        extras.clear()
        metrics.clear()

    def _hand_over_logs(self, rollouts: Sequence[Rollout]) -> None:
        """To TRL, which logs them; a metric of a call counts for each completion of the call."""
        for column in dict.fromkeys(column for rollout in self._rollouts for column in rollout.extras):
            values = [rollout.extras.get(column) for rollout in rollouts]
            self._trainer._pending_extra_logs[column].extend(values)
        for name, value, rows in self._metrics:
            self._trainer._pending_metrics[name].extend([value] * rows)

    def _exchange(self) -> None:
        """All processes learn what each has generated, or that one has failed, and then fail together."""
        accelerator = self._trainer.accelerator
        if accelerator.num_processes > 1:
            error = None if self._failure is None else f"{type(self._failure).__name__}: {self._failure}"
            answers = gather_object([(error, [_without_output(part) for part in self._parts])])
            self._parts = [part for _, parts in answers for part in parts]
            failed = [(rank, error) for rank, (error, _) in enumerate(answers) if error is not None]
            if failed and self._failure is None:
                rank, error = failed[0]
                raise RuntimeError(f"Process {rank} failed while its rollouts streamed: {error}")
        if self._failure is not None:
            raise self._failure
        rollouts = self._rollouts
        self._round.group_ids = np.array([rollout.prompt for rollout in rollouts], dtype=np.int64)
        self._round.belief_means = np.array([rollout.belief_mean for rollout in rollouts])
        self._round.samples = np.array([rollout.sample for rollout in rollouts], dtype=np.int64)

    @property
    def _rollouts(self) -> list[Rollout]:
        """Of all processes, process after process."""
        return [rollout for part in self._parts for rollout in part.rollouts]

    @property
    def _planned_here(self) -> NDArray[np.int64]:
        """The prompts of the rows that TRL has from the start."""
        return self._round.own_group_ids

    def _held(self, planned: NDArray[np.int64], values: Sequence[Any]) -> dict[int, Any]:
        """One value for each prompt, from one for each row."""
        return dict(zip(reversed(planned.tolist()), reversed(list(values)), strict=True))

    def _by_prompt(self, planned: NDArray[np.int64], values: Sequence[Any]) -> dict[int, Any]:
        """The same, for the prompts that this process's rows may come to hold."""
        held = self._held(planned, values)
        if not self._gathers:
            return held
        return {index: value for part in gather_object([held]) for index, value in part.items()}


def _token_ids(prompt: Any) -> list[int]:
    return prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt


def _without_output(part: Streamed) -> Streamed:
    return replace(part, rollouts=[replace(rollout, output=None) for rollout in part.rollouts])
