"""What generates the completions of an evaluation: transformers, or vLLM in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any, Protocol

from .generation import Completion, Prompt, prompt_token_ids, sample_completions, tokenizer_of
from .settings import EvalSettings


class Backend(Protocol):
    """Samples one completion of each prompt; the same prompts and seed give the same completions."""

    def sample(self, prompts: Sequence[Prompt], seed: int) -> list[Completion]: ...


def make_backend(settings: EvalSettings) -> Backend:
    """The backend that the settings name, with the model loaded.

    Raises:
        ValueError: if the model cannot be loaded, or vLLM is not installed.
    """
    return VllmBackend(settings) if settings.backend == "vllm" else TransformersBackend(settings)


class TransformersBackend:
    """`model.generate`, one batch at a time."""

    def __init__(self, settings: EvalSettings, model: Any = None, processing_class: Any = None) -> None:
        if model is None:
            from .models import load_model

            model, processing_class = load_model(settings.model, settings.dtype)
        self.settings, self.model, self.processing_class = settings, model, processing_class

    def sample(self, prompts: Sequence[Prompt], seed: int) -> list[Completion]:
        assert self.settings.batch_size is not None
        assert self.settings.temperature is not None
        return sample_completions(
            self.model,
            self.processing_class,
            prompts,
            max_tokens=self.settings.max_tokens,
            batch_size=self.settings.batch_size,
            seed=seed,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
        )


class VllmBackend:
    """`vllm.LLM`. Each completion has a seed of its own, so vLLM's batching does not change what is asked for."""

    def __init__(self, settings: EvalSettings) -> None:
        try:
            import vllm
        except ImportError as error:
            raise ValueError(
                f"backend='vllm' needs vLLM, which cannot be imported ({error}): install it with "
                "`pip install adaroll_trl[vllm]`, or use backend='transformers'."
            ) from error
        from transformers import AutoProcessor
        from transformers.utils import find_adapter_config_file

        from .models import find_model, load_model

        self.settings, self.vllm = settings, vllm
        model = find_model(settings.model)
        if find_adapter_config_file(model):  # merged on the side: what vLLM loads is what transformers would run
            self.merged = tempfile.TemporaryDirectory()
            policy, self.processing_class = load_model(model, settings.dtype)
            model = self.merged.name
            policy.save_pretrained(model)
            self.processing_class.save_pretrained(model)
        else:
            self.processing_class = AutoProcessor.from_pretrained(model)
        options: Any = settings.vllm_kwargs or {}
        self.llm = vllm.LLM(**{"model": model, "dtype": settings.dtype, "seed": settings.seed, **options})

    def sample(self, prompts: Sequence[Prompt], seed: int) -> list[Completion]:
        requests = [{"prompt_token_ids": prompt_token_ids(self.processing_class, prompt)} for prompt in prompts]
        outputs = self.llm.generate(
            requests, [self._sampling(seed + row) for row in range(len(prompts))], use_tqdm=False
        )
        answers = [output.outputs[0] for output in outputs]
        return [Completion(one.text, len(one.token_ids), one.finish_reason == "stop") for one in answers]

    def _sampling(self, seed: int) -> Any:
        """Every field that the model's own sampling defaults could touch is set; its end tokens vLLM adds itself."""
        return self.vllm.SamplingParams(
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            max_tokens=self.settings.max_tokens,
            seed=seed,
            stop_token_ids=[tokenizer_of(self.processing_class).eos_token_id],
        )
