"""vLLM's sleep mode across the rounds of a generation batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_awake(trainer: Any, rounds: int) -> Iterator[None]:
    """With sleep mode, load the weights into vLLM once per batch and not once per round.

    Asleep, vLLM has neither weights nor cache: TRL wakes it, loads the weights and lets it sleep again in each
    generation call. Here the same calls are made once around all rounds. The price is that vLLM's memory is not free
    while log-probabilities are computed between the rounds; a single round is left to TRL.
    """
    asleep = trainer.use_vllm and trainer.vllm_mode == "colocate" and trainer.args.vllm_enable_sleep_mode
    if rounds == 1 or not asleep:
        yield
        return
    vllm = trainer.vllm_generation
    vllm.sync_weights()  # wakes the weights, then loads them
    trainer._last_loaded_step = trainer.state.global_step
    vllm.llm.wake_up(tags=["kv_cache"])
    vllm.enable_sleep_mode = False
    try:
        yield
    finally:
        vllm.enable_sleep_mode = True
        vllm.llm.sleep(level=2)
        vllm._llm_weights_sleeping = True
