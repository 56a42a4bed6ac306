"""`adaroll eval`: what it loads, that nothing paid for is lost, and that both backends ask for the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from pyarrow import parquet
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3ForConditionalGeneration
from trl import GRPOTrainer

from adaroll_trl.cli import main as adaroll
from adaroll_trl.evaluation.backends import TransformersBackend, make_backend
from adaroll_trl.evaluation.command import main
from adaroll_trl.evaluation.compare import compare
from adaroll_trl.evaluation.generation import prompt_token_ids, sample_completions
from adaroll_trl.evaluation.models import load_model
from adaroll_trl.evaluation.run import evaluate
from adaroll_trl.evaluation.settings import EvalSettings
from adaroll_trl.evaluation.store import read_results
from adaroll_trl.tasks import Task
from tests.tiny import make_trainer
from tests.vision import build_vision_dir


class Even(Task):
    """A completion is right if it has an even number of characters: about every second one."""

    name = "even"

    def records(self, split, source):
        for number in range(int(source or 10)):
            yield {"question": f"{'Say' * (number % 3)} {number}", "answer": "even", "prompt_id": str(number)}

    def extract(self, completion):
        return str(len(completion))

    def verify(self, completion, answer):
        return len(completion) % 2 == 0

    def readable(self, answer):
        return answer == "even"


TASK = "tests.test_eval:Even"


def settings(model, tmp_path, **options):
    defaults = {"num_samples": 4, "k": [1, 2], "batch_size": 8, "max_tokens": 6, "output_dir": str(tmp_path / "out")}
    return EvalSettings(model=str(model), task=[TASK], **{**defaults, **options})


class Interrupted:
    """A backend that is stopped in its n-th batch."""

    def __init__(self, options, stop_at):
        self.inner, self.stop_at, self.calls = TransformersBackend(options), stop_at, 0

    def sample(self, prompts, seed):
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return self.inner.sample(prompts, seed)


def test_results_agree_with_the_completions_on_the_disk(model_dir, tmp_path):
    options = settings(model_dir, tmp_path)
    results = evaluate(options)[TASK]
    rows = parquet.read_table(tmp_path / "out" / TASK / "completions.parquet").to_pylist()
    assert [(row["prompt"], row["sample"]) for row in rows] == [(p, s) for p in range(10) for s in range(4)]
    assert all(row["correct"] == (len(row["completion"]) % 2 == 0) for row in rows)
    counts = np.bincount([row["prompt"] for row in rows], weights=[row["correct"] for row in rows])
    assert [prompt["num_correct"] for prompt in results["prompts"]] == counts.tolist()
    accuracy = results["metrics"]["accuracy"]
    assert accuracy["value"] == pytest.approx(counts.sum() / 40)
    assert 0 < accuracy["low"] < accuracy["value"] < accuracy["high"] < 1
    assert results["metrics"]["pass@2"]["value"] > results["metrics"]["accuracy"]["value"]
    assert results["truncated"] == np.mean([not row["finished"] for row in rows])
    assert results["unreadable_answers"] == 0
    assert read_results(tmp_path / "out" / TASK) == results


def test_an_interrupted_evaluation_goes_on_and_ends_as_if_it_had_not_been(model_dir, tmp_path):
    whole = evaluate(settings(model_dir, tmp_path / "whole"))[TASK]
    options = settings(model_dir, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        evaluate(options, make=lambda one: Interrupted(one, stop_at=4))
    folder = tmp_path / "out" / TASK
    journal = (folder / "completions.jsonl").read_text()
    assert len(journal.splitlines()) == 1 + 3 * 8
    (folder / "completions.jsonl").write_text(journal[:-20])  # and the last line was being written

    second = Interrupted(options, stop_at=None)
    resumed = evaluate(options, make=lambda one: second)[TASK]
    assert second.calls == 3  # the torn batch, and the two that were left
    assert resumed["prompts"] == whole["prompts"]
    texts = [
        parquet.read_table(where / "completions.parquet")["completion"].to_pylist()
        for where in (folder, tmp_path / "whole" / "out" / TASK)
    ]
    assert texts[0] == texts[1]
    assert not (folder / "completions.jsonl").exists()

    def nothing_to_load(one):
        raise AssertionError

    assert evaluate(options, make=nothing_to_load)[TASK]["prompts"] == whole["prompts"]
    others = settings(model_dir, tmp_path, k=[4], level=0.8)  # new figures, no new completions
    assert set(evaluate(others, make=nothing_to_load)[TASK]["metrics"]) == {"accuracy", "pass@4"}


def test_completions_of_other_settings_are_never_mixed(model_dir, tmp_path):
    evaluate(settings(model_dir, tmp_path, limit=2))
    with pytest.raises(ValueError, match=r"temperature=1\.0, this run has temperature=0\.5: choose another"):
        evaluate(settings(model_dir, tmp_path, limit=2, temperature=0.5))
    anew = evaluate(settings(model_dir, tmp_path, limit=3, temperature=0.5, overwrite=True))
    assert len(anew[TASK]["prompts"]) == 3


def test_looking_at_a_policy_changes_nothing(model_dir):
    model, tokenizer = load_model(str(model_dir))
    model.train()
    state = torch.get_rng_state()
    conversation = [{"role": "user", "content": "What is 1 + 2?"}]
    options = {"max_tokens": 5, "batch_size": 2}
    first = sample_completions(model, tokenizer, [conversation] * 3, seed=1, **options)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert first == sample_completions(model, tokenizer, [conversation] * 3, seed=1, **options)
    assert first != sample_completions(model, tokenizer, [conversation] * 3, seed=2, **options)
    greedy = sample_completions(model, tokenizer, [conversation] * 3, seed=1, temperature=0, **options)
    assert greedy[0] == greedy[1] == greedy[2]


def test_special_tokens_stand_once(model_dir):
    """As in Llama 3: the template writes the token that the tokenizer would add as well."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = "<bos>" + tokenizer.chat_template
    for prompt in ("What is 1?", [{"role": "user", "content": "What is 1?"}]):
        assert prompt_token_ids(tokenizer, prompt).count(tokenizer.bos_token_id) == 1
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        prompt_token_ids(tokenizer, [{"role": "user", "content": "What is 1?"}])


def test_a_checkpoint_folder_and_an_adapter_are_loaded_as_they_were_trained(model_dir, tmp_path):
    trainer = make_trainer(
        GRPOTrainer,
        model_dir=model_dir,
        output_dir=tmp_path / "run",
        plain_config=True,
        max_steps=2,
        learning_rate=1e-2,
        save_strategy="steps",
        save_steps=1,
        trainer_kwargs={"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")},
    )
    trainer.train()
    merged, tokenizer = load_model(str(tmp_path / "run"))  # checkpoint-2, not checkpoint-1
    ids = torch.tensor([prompt_token_ids(tokenizer, "What is 1 + 2?")])
    with torch.no_grad():
        expected = trainer.model.eval()(ids).logits
        assert torch.allclose(merged(ids).logits, expected, atol=1e-5)
        base = AutoModelForCausalLM.from_pretrained(model_dir)
        assert not torch.allclose(base(ids).logits, expected, atol=1e-5)


def test_a_vision_language_model_keeps_its_class_and_answers_text(tmp_path):
    folder = build_vision_dir(tmp_path / "gemma3", "gemma3")
    model, processor = load_model(str(folder))
    assert isinstance(model, Gemma3ForConditionalGeneration)
    trainer = make_trainer(GRPOTrainer, model_dir=folder, output_dir=tmp_path / "run", plain_config=True)
    conversation = [{"role": "user", "content": "What is 1 + 2?"}]
    assert prompt_token_ids(processor, conversation) == trainer._tokenize_prompts([conversation])[0][0]
    results = evaluate(settings(folder, tmp_path, num_samples=1, k=[1], limit=4))[TASK]
    assert len(results["prompts"]) == 4


@pytest.mark.parametrize(
    ("model", "message"),
    [("./nowhere", "there is no such folder"), ("EMPTY", "holds neither a model"), ("a/b", "cannot be loaded")],
)
def test_a_model_that_is_not_there_is_named(model, message, tmp_path):
    (tmp_path / "empty").mkdir()
    model = str(tmp_path / "empty") if model == "EMPTY" else model
    with pytest.raises(ValueError, match=message) as error:
        load_model(model)
    assert model in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 4, "temperature": 0.0}, "num_samples=4 with temperature=0"),
        ({"num_samples": 4, "k": [1, 8]}, "k=8 must lie between 1 and num_samples=4"),
        ({"task": ["gsm"]}, "task='gsm'"),
        ({"task": [TASK, TASK], "dataset_name": "x"}, "dataset_name='x' can be the source of one task"),
        ({"top_p": 0.0}, r"top_p=0\.0"),
        ({"limit": 0}, "limit=0"),
        ({"vllm_kwargs": '{"tensor_parallel_size": 2}'}, "no effect with backend='transformers'"),
        ({"vllm_kwargs": "2", "backend": "vllm"}, "vllm_kwargs='2' must be a JSON object"),
    ],
)
def test_settings_that_cannot_be_name_the_field(options, message):
    with pytest.raises(ValueError, match=message):
        EvalSettings(**{"model": "m", "task": [TASK], **options})


class StandInLLM:
    """Answers as vLLM does, from a transformers model; knows only the arguments that `vllm.LLM` has."""

    def __init__(self, model, *, dtype="auto", seed=0, max_model_len=None):
        self.model, self.tokenizer = load_model(model, dtype)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert len(prompts) == len(sampling_params)
        return [self.one(*pair) for pair in zip(prompts, sampling_params, strict=True)]

    def one(self, prompt, sampling):
        ids = prompt["prompt_token_ids"]
        torch.manual_seed(sampling.seed)
        out = self.model.generate(
            torch.tensor([ids]),
            do_sample=sampling.temperature > 0,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=sampling.stop_token_ids,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        reason = "stop" if out[-1] in sampling.stop_token_ids else "length"
        text = self.tokenizer.decode(out, skip_special_tokens=True)
        return SimpleNamespace(outputs=[SimpleNamespace(text=text, token_ids=out, finish_reason=reason)])


def test_vllm_is_asked_for_what_transformers_is_asked_for(model_dir, tmp_path, monkeypatch):
    vllm = ModuleType("vllm")
    vllm.LLM = StandInLLM
    vllm.SamplingParams = lambda *, temperature, top_p, max_tokens, seed, stop_token_ids: SimpleNamespace(**locals())
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    greedy = {"num_samples": 1, "k": [1]}
    own = evaluate(settings(model_dir, tmp_path / "a", **greedy))[TASK]
    options = settings(model_dir, tmp_path / "b", **greedy, backend="vllm", vllm_kwargs='{"max_model_len": 99}')
    assert evaluate(options)[TASK]["prompts"] == own["prompts"]
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    get_peft_model(base, LoraConfig(r=2, task_type="CAUSAL_LM")).save_pretrained(tmp_path / "adapter")
    adapter = settings(
        tmp_path / "adapter", tmp_path / "c", **greedy, backend="vllm"
    )  # an adapter that changes nothing
    assert evaluate(adapter)[TASK]["prompts"] == own["prompts"]
    # Several samples of a prompt differ, and come again with the same seed
    sampled = settings(model_dir, tmp_path, backend="vllm")
    backend = make_backend(sampled)
    texts = [[one.text for one in backend.sample(["What is 1?"] * 6, seed)] for seed in (5, 5, 9)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) > 1


def test_without_vllm_the_error_says_how_to_get_it(model_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"backend='vllm' needs vLLM.*adaroll_trl\[vllm\].*backend='transformers'"):
        make_backend(settings(model_dir, tmp_path, backend="vllm"))


def fake_results(correct, samples=1, ids=None, **settings):
    prompts = [
        {"prompt_id": one, "num_samples": samples, "num_correct": int(count)}
        for one, count in zip(ids or map(str, range(len(correct))), correct, strict=True)
    ]
    metrics = {"accuracy": {}, **({"pass@2": {}} if samples > 1 else {})}
    return {"settings": {"task": "even", "model": "m", **settings}, "metrics": metrics, "prompts": prompts}


def test_compare_pairs_the_prompts():
    first, second = fake_results([0, 1, 2, 4] * 10, 4), fake_results([0, 2, 2, 4] * 10, 4)
    accuracy, at_2 = compare(first, second)
    assert (accuracy.metric, at_2.metric) == ("accuracy", "pass@2")
    assert accuracy.difference.value == pytest.approx(1 / 16)
    # The pairs differ in a quarter of the prompts only: the spread of the others does not widen the interval
    assert 0 < accuracy.difference.low < 1 / 16 < accuracy.difference.high
    assert accuracy.difference.half_width < 0.5 * (accuracy.first.half_width + accuracy.second.half_width)
    assert at_2.difference.value == pytest.approx((5 / 6 - 1 / 2) / 4)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (fake_results([0, 1], task="odd"), "first result has task='even', the second task='odd'"),
        (fake_results([0, 1], max_tokens=4), "max_tokens=None, the second max_tokens=4"),
        *((fake_results([0, 1], **{name: 0.5}), f"{name}=0.5") for name in ("split", "dataset_name", "top_p")),
        (fake_results([0, 1, 1]), "different prompts: 2 and 3, 2 of them in both"),
        (fake_results([0, 1], ids=["0", "7"]), "different prompts: 2 and 2, 1 of them in both"),
    ],
)
def test_compare_refuses_what_cannot_be_paired(second, message):
    with pytest.raises(ValueError, match=message):
        compare(fake_results([0, 1]), second)


def test_the_command_evaluates_and_compares(model_dir, tmp_path, capsys):
    given = ["--model", str(model_dir), "--task", TASK, "--dataset_name", "6", "--max-tokens", "6"]
    assert adaroll(["eval", *given, "--output-dir", str(tmp_path / "a")]) == 0
    assert "accuracy" in capsys.readouterr().out
    sampled = ["--num_samples", "3", "--k", "1", "3", "--output_dir", str(tmp_path / "b")]
    assert main([*given, *sampled]) == 0
    assert "pass@3" in capsys.readouterr().out
    assert main([*given, "--temperature", "1", "--output_dir", str(tmp_path / "c")]) == 0
    greedy, three, one = (str(tmp_path / name / TASK / "results.json") for name in ("a", "b", "c"))
    assert main(["--compare", greedy, three]) == 2
    assert "first result has temperature=0.0, the second temperature=1.0" in capsys.readouterr().err
    assert main(["--compare", one, three]) == 0  # the number of samples may differ
    assert "second - first" in capsys.readouterr().out
    assert [len(json.loads(Path(file).read_text())["prompts"]) for file in (one, three)] == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--task", "gsm"], "task='gsm' is not a task"),
        (["--model", "m", "--task", "gsm8k", "--lmit", "3"], "'--lmit' is no option. Did you mean '--limit'?"),
        (["--compare", "a", "b", "--levl", "0.9"], "'--levl' is no option. Did you mean '--level'?"),
        (["--compare", "nowhere.json", "nowhere.json"], "nowhere.json is not a result of `adaroll eval`"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_config_file_is_checked_as_in_training(tmp_path, capsys):
    config = tmp_path / "eval.yaml"
    for text, message in (("model: [1\n", "is no valid YAML, line 2"), ("seed: 1\nseed: 2\n", "has 'seed' twice")):
        config.write_text(text)
        assert main(["--config", str(config), "--model", "m", "--task", "gsm8k"]) == 2
        assert message in capsys.readouterr().err
