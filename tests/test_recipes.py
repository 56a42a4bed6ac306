"""The recipes and launch layouts: what each file says, that pairs cannot drift, and that the launch lines add up."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from adaroll_trl.checks import nothing_to_decide
from adaroll_trl.config import AdaRollOptions, options_of
from adaroll_trl.training.arguments import parse

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*/*/*.yaml"))
LAYOUTS = sorted((ROOT / "recipes" / "accelerate").glob("*.yaml"))
CARRIED = [path for path in RECIPES if path.stem == "progress_carry"]
ADAPTIVE = [path for path in RECIPES if path.stem.endswith("adaroll")] + CARRIED
PAPER = {
    "llama-3.1-8b-instruct": ("meta-llama/Llama-3.1-8B-Instruct", 1e-6),
    "llama-3.2-3b-instruct": ("meta-llama/Llama-3.2-3B-Instruct", 1e-6),
    "gemma-3-4b-it": ("google/gemma-3-4b-it", 5e-6),
}
PAPER_RECIPES = [path for path in RECIPES if path.parent.parent.name in PAPER]
ALLOCATION = {*AdaRollOptions.__dataclass_fields__, "trainer", "output_dir"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT / "recipes").with_suffix(""))


def baseline_of(adaptive: Path) -> Path:
    of_grpo = adaptive.stem in ("adaroll", "progress_carry")
    return adaptive.with_stem("grpo" if of_grpo else adaptive.stem.removesuffix("_adaroll"))


def again(path: Path) -> set[str]:
    """The setting by which a recipe's prompts come back, which its baseline has from the command line."""
    found = re.search(r"beside it, each with --(\w+) (\S+)\.$", header(path), re.MULTILINE)
    return {found[1]} if found else set()


def settings(path: Path) -> dict[str, str]:
    """Each line `key: value # source` as it stands."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {line.split(":")[0]: line for line in lines}


def header(path: Path) -> str:
    """The comment on top, without its signs and with continued lines joined."""
    block = path.read_text().split("\n\n")[0] if path not in LAYOUTS else path.read_text()
    lines = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    return "\n".join(lines).replace("\\\n", " ")


@cache
def launch(path: Path) -> tuple[Any, Any, Any, Any]:
    """The launch line on top of a file: accelerate's arguments, and the script's on that many processes."""
    (line,) = (line for line in header(path).splitlines() if re.search(r"scripts/train.py\s+--config", line))
    words = shlex.split(line.replace("python ", "accelerate launch --num_processes 1 ", 1))
    found, _, _ = _validate_launch_command(launch_command_parser().parse_args(words[words.index("launch") + 1 :]))
    assert found.training_script == "scripts/train.py"
    plan = ["--dry_run", "true", "--assume_processes", str(found.num_processes)]
    return found, *parse([*found.training_script_args, *plan])


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch lines are written for the root of the repository."""
    monkeypatch.chdir(ROOT)


def test_every_folder_has_its_pairs():
    folders = {path.parent for path in RECIPES}
    models = {"llama-3.1-8b-instruct", "llama-3.2-3b-instruct", "gemma-3-4b-it"}
    for folder in (
        ROOT / "recipes" / model / task for model in models for task in ("math", "gsm8k", "logiqa", "colota")
    ):
        assert folder in folders
        found = {path.stem for path in folder.glob("*.yaml")}
        assert found == {*("grpo", "adaroll", "progress_carry", "dr_grpo", "dr_grpo_adaroll", "dapo", "dapo_adaroll")}


def test_the_files_are_what_the_composer_writes_and_a_changed_one_is_found(tmp_path):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "make_recipes.py", tmp_path / "scripts")
    command = [sys.executable, "scripts/make_recipes.py", "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    changed = tmp_path / "recipes" / "gemma-3-4b-it" / "math" / "grpo.yaml"
    changed.write_text(changed.read_text().replace("temperature: 1.0", "temperature: 0.9"))
    (changed.parent / "mine.yaml").write_text("trainer: grpo\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == [
        "recipes/gemma-3-4b-it/math/grpo.yaml",
        "recipes/gemma-3-4b-it/math/mine.yaml",
    ]


@pytest.mark.parametrize("adaptive", ADAPTIVE, ids=name_of)
def test_a_pair_differs_in_the_lines_of_allocation_only(adaptive):
    ours, theirs = settings(adaptive), settings(baseline_of(adaptive))
    differing = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    own = ALLOCATION | again(adaptive)
    assert differing | again(adaptive) == {*ours} & own
    assert {*theirs} & ALLOCATION == {"trainer", "output_dir"}
    (_, *ours), (_, *theirs) = launch(adaptive), launch(baseline_of(adaptive))
    for left, right in zip(ours, theirs, strict=True):
        names = [item.name for item in fields(left)]
        assert {name for name in names if getattr(left, name) != getattr(right, name)} <= own
    assert (ours[0].trainer, theirs[0].trainer) == ("adaroll", "grpo")


@pytest.mark.parametrize("path", CARRIED, ids=name_of)
def test_carried_beliefs_meet_prompts_that_come_back_and_the_baselines_get_the_same_budget(path):
    accelerate, script, config, _ = launch(path)
    assert config.belief_decay > 0
    prompts = config.generation_batch_size // config.num_generations
    if script.task == "arithmetic":
        size = int(script.dataset_name.split(":")[0])
        assert config.max_steps * prompts == 5 * size, "whole visits"
    else:
        assert (config.max_steps, config.num_train_epochs) == (-1, 5)
    options = re.search(r"each with (--\w+ \S+)\.$", header(path), re.MULTILINE)[1]
    plan = ["--dry_run", "true", "--assume_processes", str(accelerate.num_processes)]
    for baseline in ("grpo", "adaroll"):
        words = ["--config", str(path.with_stem(baseline)), *shlex.split(options), *plan]
        for own, other in zip((script, config), parse(words), strict=False):
            names = {item.name for item in fields(own)} - ALLOCATION
            assert {name for name in names if getattr(own, name) != getattr(other, name)} == set()


@pytest.mark.parametrize("path", CARRIED, ids=name_of)
def test_carried_beliefs_are_the_librarys_defaults(path):
    """All but what success is, which depends on the task, and the maximum in figures."""
    _, _, config, _ = launch(path)
    options, defaults = options_of(config), AdaRollOptions()
    own = {item.name for item in fields(options) if getattr(options, item.name) != getattr(defaults, item.name)}
    assert own - {"success_reward", "success_threshold"} == {"max_rollouts"}
    assert options.max_rollouts == 4 * config.num_generations


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_the_launch_line_on_top_gives_a_batch_with_something_to_decide(path):
    accelerate, script, config, model = launch(path)
    assert accelerate.training_script_args == ["--config", str(path.relative_to(ROOT))]
    assert path.parent.name == script.task
    assert path.parent.parent.name.startswith(model.model_name_or_path.split("/")[-1].lower())
    assert config.output_dir == f"outputs/{name_of(path)}"
    prompts, rest = divmod(config.generation_batch_size, config.num_generations)
    assert rest == 0
    options = options_of(config)
    assert nothing_to_decide(prompts, config.num_generations, options.min_rollouts, accelerate.num_processes) is None
    assert config.steps_per_generation == config.gradient_accumulation_steps, "one optimiser step a generation batch"


def model_folder(hub_id: str) -> str:
    return hub_id.split("/")[-1].lower()


@pytest.mark.parametrize("path", PAPER_RECIPES, ids=name_of)
def test_fewer_gpus_give_the_same_batch_with_the_steps_named_on_top(path):
    steps = re.search(r"--gradient_accumulation_steps (\d+), (\d+), (\d+)\.", header(path))
    assert steps is not None
    _, _, config, _ = launch(path)
    for processes, accumulation in zip((4, 2, 1), steps.groups(), strict=True):
        rollouts = config.per_device_train_batch_size * processes * int(accumulation)
        assert rollouts == config.generation_batch_size == 256


def expected_loss(stem: str) -> dict[str, Any]:
    if stem.startswith("dapo"):
        return {"loss_type": "dapo", "scale_rewards": "group", "epsilon_high": 0.28}
    loss, scale = ("dr_grpo", "none") if stem.startswith("dr_grpo") else ("grpo", "group")
    return {"loss_type": loss, "scale_rewards": scale, "epsilon_high": None}


@pytest.mark.parametrize("path", PAPER_RECIPES, ids=name_of)
def test_a_recipe_names_its_loss_and_what_success_is(path):
    _, script, config, _ = launch(path)
    assert {name: getattr(config, name) for name in expected_loss(path.stem)} == expected_loss(path.stem)
    punished = ["get_soft_overlong_punishment"] if path.stem.startswith("dapo") else []
    assert script.reward_funcs == [f"{script.task}_accuracy", *punished]
    assert (script.soft_punish_cache is not None) == bool(punished)
    assert config.success_reward == (f"{script.task}_accuracy" if path in ADAPTIVE else None)


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_every_line_says_where_it_comes_from(path):
    for key, line in settings(path).items():
        assert " # " in line, key


@pytest.mark.parametrize("path", PAPER_RECIPES, ids=name_of)
def test_the_papers_settings_are_the_papers(path):
    _, _, config, model = launch(path)
    assert (model.model_name_or_path, config.learning_rate) == PAPER[path.parent.parent.name]
    assert config.lr_scheduler_type == "cosine"
    assert config.optim.startswith("adamw")
    assert not model.use_peft


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda path: path.stem)
def test_a_layout_has_only_what_accelerate_knows(layout):
    known = vars(launch_command_parser().parse_args(["script.py"]))
    content = yaml.safe_load(layout.read_text())
    for section in ("deepspeed_config", "fsdp_config"):
        assert {*content.get(section, {})} <= {*known}
    arguments, *_ = launch(layout)  # accelerate itself refuses unknown keys outside of these
    assert Path(arguments.config_file) == layout.relative_to(ROOT)
    kinds = {"single_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}
    assert content["distributed_type"] == kinds.get(layout.stem, "DEEPSPEED")
    stages = {"zero2": 2, "vllm_colocate": 2, "zero3": 3, "vllm_server": 3}
    assert arguments.zero_stage == stages.get(layout.stem)
    assert arguments.use_fsdp == (layout.stem == "fsdp2")
    assert int(arguments.fsdp_version) == (2 if layout.stem == "fsdp2" else 1)
    assert arguments.mixed_precision == "bf16"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda path: path.stem)
def test_the_launch_line_of_a_layout_gives_the_recipes_batch(layout):
    _, _, config, model = launch(layout)
    assert config.generation_batch_size == 256
    assert (config.use_vllm, config.vllm_mode) == (True, "server" if layout.stem == "vllm_server" else "colocate")
    if layout.stem in ("single_gpu", "ddp"):
        assert model.use_peft


def test_the_server_is_started_as_trl_starts_it():
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    (line,) = (
        line for line in header(ROOT / "recipes/accelerate/vllm_server.yaml").splitlines() if "vllm serve" in line
    )
    words = shlex.split(line)
    assert "VLLM_SERVER_DEV_MODE=1" in words
    model = words[words.index("serve") + 1]
    imposed = build_command(ScriptArguments(model=model))
    imposed = imposed[imposed.index("--weight-transfer-config") :]
    assert words[-len(imposed) :] == imposed
    *_, trained = launch(ROOT / "recipes/accelerate/vllm_server.yaml")
    assert trained.model_name_or_path == model


@pytest.fixture(scope="module")
def composer() -> Any:
    spec = importlib.util.spec_from_file_location("make_recipes", ROOT / "scripts" / "make_recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_composer_gives_each_pair_one_body(composer: Any):
    found = {path: text.split("\n\n", 1)[1].split(composer.ARM_TITLE)[0] for path, text in composer.recipes()}
    for path in ADAPTIVE:
        lines = [line for line in found[baseline_of(path)].splitlines() if line.split(":")[0] not in again(path)]
        assert found[path].splitlines() == lines
