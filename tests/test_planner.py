"""The planner between trainer and allocator: what it settles and refuses before the first step."""

import pytest

from adaroll_trl.config import AdaRollOptions
from adaroll_trl.planner import RolloutPlanner


def planner(num_generations=8, num_prompts=4, **options):
    return RolloutPlanner(AdaRollOptions(**options), num_prompts, num_generations, 1, lambda warning: None)


def test_default_maximum_is_four_times_the_average_as_far_as_can_be_planned():
    assert planner(8).max_rollouts == 32
    assert planner(66).max_rollouts == 256
    assert planner(66, allocator="uniform").max_rollouts == 264


@pytest.mark.parametrize(
    ("num_generations", "options", "message"),
    [
        (8, {"max_rollouts": 300}, "max_rollouts=300: allocator 'adaroll' plans groups of up to 256"),
        (300, {}, "num_generations=300: allocator 'adaroll' plans groups of up to 256"),
        (8, {"max_rollouts": 7}, "max_rollouts=7 must be at least num_generations=8"),
        (8, {"allocator": "math:sqrt"}, "allocator='math:sqrt' cannot be made without arguments"),
        (8, {"allocator": "pathlib:Path"}, "not an adaroll_trl.allocators.Allocator"),
        (8, {"allocator": ":x"}, "allocator=':x' cannot be loaded"),
        (8, {"utility": "nowhere:x"}, "utility='nowhere:x' cannot be loaded"),
    ],
)
def test_what_cannot_be_planned_is_refused_at_once(num_generations, options, message):
    with pytest.raises(ValueError, match=message):
        planner(num_generations, **options)
