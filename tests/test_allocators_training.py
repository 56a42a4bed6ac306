"""The published allocators in the trainer: exact budgets, options from the config, advice, and resumed runs."""

import json
import warnings
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from packaging.version import Version

from adaroll_trl import AdaRollGRPOConfig, AdaRollGRPOTrainer
from adaroll_trl.allocators import ALLOCATOR_NAMES, Allocator, make_allocator, streaming_allocators
from adaroll_trl.config import WITHIN_A_BATCH, AdaRollOptions
from adaroll_trl.option_effects import advice_on_options, advice_on_visits, expected_visits, ignored_options
from adaroll_trl.planner import RolloutPlanner
from adaroll_trl.solver import plan_round
from tests.tiny import RandomCounts, RecordingTrainer, sums_dataset

BY_VISITS = ("cero", "vip", "knapsack")  # they decide before the first reward
PUBLISHED = [name for name in ALLOCATOR_NAMES if name not in ("uniform", "adaroll", "adaroll_joint")]


def with_ids(size):
    return sums_dataset(size).add_column("prompt_id", [f"p{i}" for i in range(size)])


def watch(trainer):
    """What the trainer's allocator decides, as it decides: counts by prompt id, for each round.

    By id, since TRL shuffles a resumed epoch anew where the data has as few rows as here.
    """
    decided, allocate = [], trainer.allocator.allocate

    def watched(state, *rest):
        counts = allocate(state, *rest)
        decided.append(dict(zip(state.prompt_ids, counts.tolist(), strict=True)))
        return counts

    trainer.allocator.allocate = watched
    return decided


def trained(build, settings, checkpoint=None):
    """A trainer at the end of its run, and what its allocator decided: see `watch`."""
    trainer = build(AdaRollGRPOTrainer, **settings)
    decided = watch(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, decided


def by_prompt(completions, number, **kwargs):
    """Rewards that do not depend on what was generated: prompt 0 always succeeds, 1 never, 2 every other time."""
    seen = dict.fromkeys(number, 0)
    rewards = []
    for prompt in number:
        rewards.append([1.0, 0.0, float(seen[prompt] % 2)][prompt])
        seen[prompt] += 1
    return rewards


@pytest.mark.parametrize("name", PUBLISHED)
def test_trains_at_the_exact_budget(build, name):
    """Two batches of 3 prompts and 12 rollouts, the second with what the first one showed."""
    trainer = build(
        RecordingTrainer,
        allocator=name,
        dataset=with_ids(3),
        reward=by_prompt,
        belief_decay=0.9,
        rounds=3 if name in ("reinforce_ada", "vigor", "thompson") else 4,
        max_steps=4,
    )
    decided = watch(trainer)
    trainer.train()
    assert sum(sum(counts.values()) for counts in decided) == 24
    for _, output in trainer.recorded:
        assert len(output["advantages"]) == 12
    for log in (trainer.state.log_history[0], trainer.state.log_history[3]):
        assert log["adaroll/rollouts_per_prompt/mean"] == 4
        assert log["adaroll/rollouts_per_prompt/min"] >= 2


@pytest.mark.skipif(Version(version("trl")) < Version("1.16"), reason="vLLM is stood in for as TRL 1.16 uses it")
@pytest.mark.parametrize("name", streaming_allocators())
def test_trains_in_a_stream(build, sent, name):
    """As above, with 2 rollouts in flight. What a prompt's outcomes are to its allocator, its group shows."""
    trainer = build(
        RecordingTrainer,
        allocator=name,
        dataset=with_ids(3),
        reward=lambda completions, number, **kwargs: [float(prompt == 0) for prompt in number],
        belief_decay=0.9,
        use_vllm=True,
        vllm_mode="colocate",
        stream_rollouts=True,
        in_flight=2,
        max_steps=4,
    )
    trainer.train()
    for _, output in trainer.recorded:
        assert len(output["advantages"]) == 12
    logs = [trainer.state.log_history[0], trainer.state.log_history[3]]
    for log in logs:
        assert log["adaroll/stream/in_flight"] == 2
        assert log["adaroll/rollouts_per_prompt/mean"] == 4
        assert log["adaroll/rollouts_per_prompt/min"] >= 2
    if name == "reinforce_ada":  # nobody ever has both outcomes
        assert logs[0]["adaroll/rollouts_per_prompt/max"] == 4
    if name == "thompson":
        assert trainer.allocator.state_dict() == {"step": 2}


@pytest.mark.parametrize(("name", "options"), [("cero", {"tau": 2.0, "step": 1.0}), ("thompson", {"seed": 3})])
def test_a_resumed_run_decides_as_an_uninterrupted_one(build, tmp_path, name, options):
    settings = {
        "allocator": name,
        "allocator_kwargs": options,
        "dataset": with_ids(3),
        "reward": by_prompt,
        "belief_decay": 0.9,
        "min_rollouts": 1,
        "rounds": 2 if name == "thompson" else 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "max_steps": 9,
    }
    whole, decided = trained(build, settings)
    per_batch = len(decided) // 3
    assert any(counts != decided[0] for counts in decided[1:])
    resumed, again = trained(build, settings, str(tmp_path / "checkpoint-3"))
    assert again == decided[per_batch:]
    assert resumed.allocator.state_dict() == whole.allocator.state_dict()
    # In the middle of the second batch: it is generated again, and decided as it was
    inside = json.loads((tmp_path / "checkpoint-4" / "adaroll_state.json").read_text())["allocator"]
    assert inside == json.loads((tmp_path / "checkpoint-3" / "adaroll_state.json").read_text())["allocator"]


def test_what_vip_has_seen_of_other_prompts_is_resumed(build, tmp_path):
    """Prompts 3 to 5 are near 0 to 2 in their embeddings, so what these showed decides about those."""
    near = {f"p{i}": [float(i % 3), 0.1 * (i // 3)] for i in range(6)}
    settings = {
        "allocator": "vip",
        "allocator_kwargs": {"embeddings": near, "length_scale": 0.5},
        "dataset": with_ids(6),
        "reward": lambda completions, number, **kwargs: by_prompt(completions, [n % 3 for n in number]),
        "shuffle_dataset": False,
        "num_generations": 16,
        "per_device_train_batch_size": 16,
        "steps_per_generation": 3,
        "belief_decay": 0.9,
        "save_strategy": "steps",
        "save_steps": 3,
        "max_steps": 9,
    }
    _, decided = trained(build, settings)
    strangers = {f"p{i}": 16 for i in range(3)}
    assert decided[0] == strangers
    assert list(decided[1]) == ["p3", "p4", "p5"]
    assert set(decided[1].values()) != {16}, "nothing was known of these three but their neighbours"
    _, again = trained(build, settings, str(tmp_path / "checkpoint-3"))
    assert again == decided[1:]


class Greedy(Allocator):
    """Everything to one prompt."""

    name = "greedy"

    def __init__(self, place: int = 0) -> None:
        self.place = place

    def allocate(self, state, rollouts_left, rounds_left):
        counts = np.zeros(state.num_prompts, dtype=np.int64)
        counts[self.place] = rollouts_left
        return counts


class Choosy(Greedy):
    def __init__(self, place):
        raise RuntimeError(f"place={place}")


def planner(**options):
    return RolloutPlanner(AdaRollOptions(**options), 4, 8, 1, pytest.fail)


def test_allocator_kwargs_reach_the_allocator():
    assert planner(allocator="reinforce_ada", allocator_kwargs={"mode": "pos", "k": 3}).allocator.k == 3
    path = "tests.test_allocators_training:Greedy"
    assert planner(allocator=path, allocator_kwargs={"place": 2}).allocator.place == 2
    with pytest.raises(ValueError, match=r"cannot be made with allocator_kwargs=\{'plaice': 2\}: .*'plaice'"):
        planner(allocator=path, allocator_kwargs={"plaice": 2})
    with pytest.raises(ValueError, match="alpha=2 must be a number above 0 and at most 1"):
        planner(allocator="vigor", allocator_kwargs={"alpha": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allocator_kwargs": {"tau": 1}}, "allocator 'adaroll' has no option 'tau'. It takes none."),
        ({"allocator": "cero", "allocator_kwargs": {"utility": 1}}, "allocator 'cero' has no option 'utility'"),
        ({"allocator_kwargs": "{tau: 1}"}, "allocator_kwargs='{tau: 1}' is not JSON"),
        ({"allocator_kwargs": "[1]"}, "allocator_kwargs='[1]' must be a dict of options by name"),
        (
            {"allocator": "cero", "allocator_kwargs": {"tau": 0}},
            "allocator_kwargs of allocator 'cero': tau=0 must be a number above 0",
        ),
        (
            {"allocator": "vip", "allocator_kwargs": {"memory": 10**6}},
            "memory=1000000 must be an integer of at least 0 and at most 10,000",
        ),
        ({"allocator_kwargs": {1: 2}}, "allocator_kwargs={1: 2} must be a dict of options by name"),
    ],
)
def test_bad_allocator_kwargs_are_named(tmp_path, options, message):
    with pytest.raises(ValueError) as caught:
        AdaRollGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **options)
    assert message in str(caught.value)


def test_an_allocator_of_ones_own_that_refuses_its_options():
    with pytest.raises(ValueError, match=r"cannot be made with allocator_kwargs=\{'place': 7\}: place=7"):
        planner(allocator="tests.test_allocators_training:Choosy", allocator_kwargs={"place": 7})


def test_allocator_kwargs_from_the_command_line_and_from_yaml(tmp_path):
    from adaroll_trl.training.arguments import parse

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: x\noutput_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nallocator: reinforce_ada\n"
        "allocator_kwargs:\n  mode: pos\n  k: 2\n"
    )
    assert parse(["--config", str(recipe)])[1].allocator_kwargs == {"mode": "pos", "k": 2}
    over = parse(["--config", str(recipe), "--allocator_kwargs", '{"mode": "balance"}'])[1]
    assert over.allocator_kwargs == {"mode": "balance"}


@pytest.mark.parametrize("name", ["uniform", "cero", "vip", "knapsack", "hora", "pilot_commit", "dars"])
def test_rounds_that_nobody_reads_are_named(name):
    message = ignored_options(AdaRollOptions(allocator=name, rounds=2))
    assert f"No effect with allocator={name!r} and utility='mixed': rounds=2" in message
    assert (ignored_options(AdaRollOptions(allocator=name, rounds=1)) is None) == (name in ("uniform", *BY_VISITS))
    assert ignored_options(AdaRollOptions(allocator="vigor", rounds=2)) is None
    assert ignored_options(AdaRollOptions(allocator="tests.tiny:RandomCounts", rounds=2)) is None


def test_advice_on_options_that_do_less_than_they_seem_to():
    def advice(**options):
        return advice_on_options(AdaRollOptions(**options))

    for name in BY_VISITS:
        (text,) = advice(allocator=name, belief_decay=0.0)
        assert f"allocator={name!r}" in text
        assert "Set belief_decay" in text
        assert advice(allocator=name) == []
        assert advice(allocator=name, belief_decay=0.0, prior_column="pass_rate") == []
    (text,) = advice(belief_decay=0.0)
    assert "allocator='adaroll' with rounds=1 tells prompts apart by their earlier visits" in text
    assert advice(belief_decay=0.0, rounds=2) == advice(belief_decay=0.0, stream_rollouts=True) == []
    (text,) = advice(allocator="vigor", utility="std")
    assert text == "utility='std' is only measured: allocator='vigor' has an aim of its own."
    assert advice(allocator="adaroll", utility="std") == []
    assert advice(allocator="tests.tiny:RandomCounts", utility="std") == []


@pytest.mark.parametrize(
    ("options", "later", "told"),
    [
        ({}, {"utility": "mixed"}, "rounds=4, belief_decay=0.0, prompt_weighting='rollout'"),
        ({}, {"allocator": "vigor", "utility": "mixed"}, "rounds=4, belief_decay=0.0, prompt_weighting='rollout'"),
        ({"utility": "mixed"}, {"utility": "progress"}, "rounds=1, belief_decay=0.7, prompt_weighting='prompt'"),
        ({"utility": "mixed"}, {"allocator": "cero"}, "rounds=1, belief_decay=0.7, prompt_weighting='prompt'"),
        ({}, {"allocator": "cero", "utility": "mixed"}, None),
        ({}, {"allocator": "uniform", "utility": "mixed"}, None),
        ({"utility": "mixed"}, {"utility": "std"}, None),
        ({}, {"utility": "mixed", "rounds": 2}, None),
    ],
)
def test_defaults_left_over_from_the_other_way_to_decide_are_told(options, later, told):
    changed = replace(AdaRollOptions(**options), **later)
    advice = advice_on_options(changed)
    assert len(advice) == (told is not None)
    if told is not None:
        assert f"are {told};" in advice[0]
        opened = replace(changed, rounds=None, belief_decay=None, prompt_weighting=None)
        assert advice_on_options(opened) == []
        assert told == ", ".join(f"{name}={getattr(opened, name)!r}" for name in WITHIN_A_BATCH)


@pytest.mark.parametrize("options", [{"steps_per_generation": 1}, {"min_rollouts": 4}])
def test_where_nothing_can_be_decided_one_warning_says_so(build, options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(AdaRollGRPOTrainer, utility="progress", max_steps=1, **options)
    (told,) = [text for text in (str(one.message) for one in caught) if "GRPO" in text]
    assert "there is nothing to allocate" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, True),
        ({"allocator": "cero"}, True),
        ({"allocator": "uniform"}, False),
        ({"allocator": "tests.tiny:RandomCounts"}, False),
        ({"utility": "mixed"}, False),
        ({"rounds": 2}, False),
        ({"stream_rollouts": True}, False),
        ({"prior_column": "pass_rate"}, False),
    ],
)
def test_one_round_for_prompts_that_never_come_back_is_told(options, told):
    chosen = AdaRollOptions(**options)
    advice = advice_on_visits(chosen, chosen.rounds, 0.5)
    assert (advice is not None) == told
    assert not told or "A prompt comes 0.5 times on average" in advice
    assert advice_on_visits(chosen, chosen.rounds, None) is None
    assert advice_on_visits(chosen, chosen.rounds, 1.5) is None


def test_advice_on_visits_names_what_helps():
    def advice(visits=1.0, **options):
        return advice_on_visits(AdaRollOptions(**options), 1, visits)

    assert "A prompt comes once, and" in advice()
    assert "groups will be equal, as in GRPO" in advice()
    assert advice().endswith("with rounds=2 or more, or utility='mixed'.")
    assert advice(allocator="vigor", belief_decay=0.5).endswith("with rounds=2 or more.")
    assert advice(allocator="cero").endswith("with allocator='adaroll' and utility='mixed'.")
    assert advice(utility="std", rounds=1, belief_decay=0.5).endswith("with rounds=2 or more.")  # it is not progress
    alone = {"utility": "mass", "rounds": 1}
    assert "groups will be unequal" in advice(**alone, belief_decay=0.5)
    assert "groups will be unequal" in advice_on_options(AdaRollOptions(**alone))[0]
    counts = plan_round([0] * 8, [0] * 8, 64, 1, "mass", min_rollouts=2, max_rollouts=32)
    assert counts.max() > counts.min()
    assert "groups may be unequal" in advice(min_rollouts=0)
    for minimum, equal in ((0, False), (2, True)):
        counts = plan_round([0] * 8, [0] * 8, 24, 1, "progress", min_rollouts=minimum, max_rollouts=12)
        assert (counts.max() == counts.min()) == equal


def test_visits_of_a_prompt(tmp_path):
    common = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "num_generations": 4}
    steps = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "gradient_accumulation_steps": 1}
    epochs = AdaRollGRPOConfig(**common, **steps, num_train_epochs=2.5)
    assert expected_visits(epochs, 3, 48) == 2.5
    assert expected_visits(epochs, 3, None) is None
    assert expected_visits(AdaRollGRPOConfig(**common, **steps, max_steps=48), 3, 48) == 1.0  # 16 batches of 3
    twice = AdaRollGRPOConfig(**common, **steps, max_steps=48, num_iterations=2)
    assert expected_visits(twice, 3, 48) == 0.5


def test_the_trainer_gives_the_advice_once(build):
    with pytest.warns(UserWarning, match="belief_decay=0 forgets") as caught:
        build(AdaRollGRPOTrainer, allocator="vip", belief_decay=0.0)
    assert len([w for w in caught if "belief_decay=0 forgets" in str(w.message)]) == 1


def test_an_allocator_of_ones_own_has_a_snapshot():
    """The default copies `state_dict`, whatever it holds."""

    class Counting(RandomCounts):
        def __init__(self):
            super().__init__(1)
            self.seen = {"n": [0]}

        def state_dict(self):
            return self.seen

    allocator = Counting()
    snapshot = allocator.snapshot()
    allocator.seen["n"][0] = 5
    assert snapshot() == {"n": [0]}
    assert make_allocator("uniform").snapshot()() == {}


def test_an_allocator_is_told_how_each_batch_ended(build):
    """Once a batch, with all of its outcomes and the beliefs from before it."""
    trainer = build(
        RecordingTrainer,
        allocator="thompson",
        dataset=with_ids(3),
        reward=by_prompt,
        belief_decay=0.9,
        rounds=2,
        max_steps=4,
    )
    ended = []
    trainer.allocator.observe = ended.append
    trainer.train()
    assert len(ended) == 2
    for batch, state in enumerate(ended):
        assert np.sum(state.rollouts) == np.sum(state.successes + state.failures) == 12
        rate = dict(zip(state.prompt_ids, state.successes / state.rollouts, strict=True))
        assert (rate["p0"], rate["p1"]) == (1.0, 0.0)
        assert (np.min(state.prior_alpha + state.prior_beta) > 2) == (batch > 0)
