"""AdaRollGRPOConfig: defaults, help, validation with errors that say what would be right, and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig, TrlParser

from adaroll_trl import AdaRollGRPOConfig
from adaroll_trl.config import AdaRollOptions, load_by_path, options_of


def config(tmp_path, **options):
    return AdaRollGRPOConfig(**{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, **options})


def test_every_field_has_a_default_and_a_help_text():
    AdaRollOptions()
    for item in fields(AdaRollOptions):
        assert len(item.metadata["help"]) > 20, item.name


def test_it_is_a_grpo_config(tmp_path):
    args = config(tmp_path, num_generations=4)
    assert isinstance(args, GRPOConfig)
    assert args.scale_rewards == GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False).scale_rewards
    assert args.to_dict()["rounds"] == 1


def test_a_plain_config_gets_the_defaults(tmp_path):
    plain = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert options_of(plain) == AdaRollOptions()
    assert options_of(config(tmp_path, rounds=2)) == AdaRollOptions(rounds=2)


def test_what_is_left_open_goes_with_the_allocator_and_the_utility(tmp_path):
    def open_fields(**options):
        args = config(tmp_path, **options)
        return args.utility, args.rounds, args.belief_decay, args.prompt_weighting

    by_visits, within = (1, 0.7, "prompt"), (4, 0.0, "rollout")
    assert open_fields() == open_fields(utility="progress") == ("progress", *by_visits)
    for name in ("cero", "vip", "knapsack"):
        assert open_fields(allocator=name) == ("mixed", *by_visits)
    for utility in ("mixed", "std", "adaroll_trl.utilities:mixed"):
        assert open_fields(utility=utility) == (utility, *within)
    for name in ("uniform", "adaroll_joint", "hora", "vigor", "tests.tiny:RandomCounts"):
        assert open_fields(allocator=name) == ("mixed", *within)
    assert open_fields(allocator="adaroll_joint", utility="progress") == ("progress", *within)  # it needs one prior
    given = {"rounds": 2, "belief_decay": 0.0, "prompt_weighting": "rollout"}
    assert open_fields(**given) == ("progress", *given.values())
    assert options_of(config(tmp_path, utility="mixed")).defaults().rounds == 4


def test_a_config_of_ones_own_chooses_too_and_keeps_its_own_checks(tmp_path):
    @dataclass
    class Own(AdaRollOptions, GRPOConfig):
        pass

    own = Own(output_dir=str(tmp_path), use_cpu=True, bf16=False, belief_decay=0.5)
    assert (own.utility, own.rounds, own.belief_decay, own.num_generations) == ("progress", 1, 0.5, 8)
    with pytest.raises(ValueError, match="divisible"):
        Own(output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=3)


def test_what_is_none_in_a_config_that_is_made_is_chosen_anew(tmp_path):
    @dataclass
    class Apart(AdaRollOptions, GRPOConfig):
        def __post_init__(self):
            GRPOConfig.__post_init__(self)

    apart = Apart(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert apart.utility is None
    assert options_of(apart) == AdaRollOptions()
    args = config(tmp_path)
    args.utility = "mixed"
    assert options_of(args).rounds == 1  # as it was chosen for progress
    args.rounds = args.belief_decay = args.prompt_weighting = None
    assert options_of(args) == AdaRollOptions(utility="mixed")


def test_what_a_recipe_sets_is_left_open_again_on_the_command_line(tmp_path):
    (tmp_path / "recipe.yaml").write_text("utility: mixed\nrounds: 2\nbelief_decay: null\nprompt_weighting: rollout\n")
    line = f"--config {tmp_path}/recipe.yaml --output_dir {tmp_path} --use_cpu --bf16 false --utility None"
    (args,) = TrlParser(AdaRollGRPOConfig).parse_args_and_config(f"{line} --prompt_weighting none".split())
    assert (args.utility, args.rounds, args.belief_decay, args.prompt_weighting) == ("progress", 2, 0.7, "prompt")
    (maximum,) = [action for action in TrlParser(AdaRollGRPOConfig)._actions if action.dest == "max_rollouts"]
    if maximum.type is int:
        pytest.skip("this TRL's parser takes no None for a number")
    numbers = f"{line} --rounds None --belief_decay None --prompt_weighting None"
    (args,) = TrlParser(AdaRollGRPOConfig).parse_args_and_config(numbers.split())
    assert options_of(args) == AdaRollOptions()


def test_the_command_line_sets_every_field(tmp_path):
    parser = HfArgumentParser(AdaRollGRPOConfig)
    line = f"--output_dir {tmp_path} --use_cpu --bf16 false --rounds 3 --belief_decay 0.5 --max_rollouts 20 "
    line += "--success_threshold 0.8 --prompt_weighting prompt --success_reward accuracy --allocator uniform"
    (args,) = parser.parse_args_into_dataclasses(line.split())
    assert (args.rounds, args.belief_decay, args.max_rollouts, args.success_threshold) == (3, 0.5, 20, 0.8)
    assert (args.prompt_weighting, args.success_reward, args.allocator) == ("prompt", "accuracy", "uniform")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0 must be an integer of at least 1"),
        ({"rounds": 2.5}, r"rounds=2.5 must be an integer"),
        ({"rounds": True}, "rounds=True must be an integer"),
        ({"draws_per_round": 0}, "draws_per_round=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"min_rollouts": -1}, "min_rollouts=-1 must be an integer of at least 0"),
        ({"max_rollouts": 6}, "max_rollouts=6 must be at least num_generations=8"),
        ({"max_rollouts": 9, "min_rollouts": 10}, "at least min_rollouts=10"),
        ({"prior_alpha": 0.0}, r"prior_alpha=0.0 must be a finite number above 0"),
        ({"prior_beta": float("nan")}, "prior_beta=nan"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"belief_decay": 1.5}, r"belief_decay=1.5 must be in \[0, 1\]"),
        ({"success_threshold": float("inf")}, "success_threshold=inf"),
        ({"belief_decay": 0.5, "allocator": "adaroll_joint"}, "its tables need one prior for all prompts"),
        ({"prompt_weighting": "token"}, "prompt_weighting='token' is not known. Use one of 'rollout', 'prompt'"),
        ({"allocator": "greedy"}, "allocator='greedy' is not known. Use one of .*'uniform'"),
        ({"utility": "entropy"}, "utility='entropy' is not known. Use one of 'mixed'"),
    ],
)
def test_a_bad_value_is_named_and_shown(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


def test_a_batch_that_does_not_hold_whole_groups_shows_the_arithmetic(tmp_path):
    with pytest.raises(ValueError, match="divisible") as plain:
        GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=6
        )
    with pytest.raises(ValueError, match="does not hold whole groups of num_generations=6") as ours:
        config(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=6)
    text = str(ours.value)
    for part in ("16 rollouts", "per_device_train_batch_size=4", "1 processes", "steps_per_generation=4"):
        assert part in text
    assert "steps_per_generation=3 or 6" in text
    assert "num_generations=4 or 8" in text
    assert "per_device_train_batch_size=3 or 6" in text
    assert len(text) > len(str(plain.value))


def test_a_generation_batch_that_is_no_whole_number_of_steps_shows_the_arithmetic(tmp_path):
    with pytest.raises(ValueError) as error:
        config(tmp_path, per_device_train_batch_size=8, generation_batch_size=100, num_generations=3)
    for part in (
        "generation_batch_size=100 ",
        "per_device_train_batch_size=8 x 1 processes = 8 rollouts",
        "num_generations=3)",
        "generation_batch_size=96 or 120",
        "per_device_train_batch_size=5 or 10",
    ):
        assert part in str(error.value)
    config(tmp_path, per_device_train_batch_size=8, generation_batch_size=120, num_generations=3)
    config(tmp_path, per_device_train_batch_size=10, generation_batch_size=100, num_generations=5)


def test_an_evaluation_batch_that_does_not_hold_whole_groups_shows_the_arithmetic(tmp_path):
    with pytest.raises(ValueError) as error:
        config(tmp_path, per_device_eval_batch_size=8, num_generations_eval=6, eval_strategy="steps", eval_steps=1)
    for part in ("batch of 8 rollouts", "num_generations_eval=6 ", "per_device_eval_batch_size=6 or 12"):
        assert part in str(error.value)
    assert "num_generations_eval=4 or 8" in str(error.value)
    config(tmp_path, per_device_eval_batch_size=12, num_generations_eval=6, eval_strategy="steps", eval_steps=1)


def test_other_errors_of_trl_pass_through(tmp_path):
    with pytest.raises(ValueError, match="at least 2 generations per prompt"):
        config(tmp_path, num_generations=1)


def test_a_dotted_path_is_loaded_and_a_bad_one_named():
    assert load_by_path("utility", "math:sqrt")(4) == 2
    with pytest.raises(ValueError, match="utility='math:nothing' cannot be loaded"):
        load_by_path("utility", "math:nothing")
    with pytest.raises(ValueError, match="allocator='no_such_module:A' cannot be loaded"):
        load_by_path("allocator", "no_such_module:A")


def test_unbiased_gives_no_advice_that_cannot_help():
    from adaroll_trl.checks import check_unbiased

    for allocator, helps in (("adaroll", True), ("hora", False), ("dars", False)):
        with pytest.raises(ValueError, match="in several rounds") as caught:
            check_unbiased(allocator, has_plan=False)
        assert ("rounds=1" in str(caught.value)) == helps


def test_prompt_weights_that_fail_end_in_a_sentence():
    from adaroll_trl.weight_curve import PassRates
    from adaroll_trl.weighting import TargetWeights

    with pytest.raises(ValueError, match=r"`prompt_weighting` points to failed on an array of 32 pass rates"):
        TargetWeights(math.sqrt, 8, PassRates())
