"""Writes recipes/<model>/<dataset>/*.yaml from the tables below, so that the recipes of a folder cannot drift apart.

python scripts/make_recipes.py           # write them
python scripts/make_recipes.py --check   # say which files are not what this script writes; status 1 if any
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent / "recipes"


class Setting(NamedTuple):
    """One line of a recipe: `key: value # source`.

    The source is "paper" (AdaRoll-GRPO's), the method that defines the value, "ours" for what this library adds, or
    "chosen" for what no paper says.
    """

    key: str
    value: str
    source: str


Section = tuple[str, list[Setting]]  # a title and its lines


class Model(NamedTuple):
    hub_id: str
    learning_rate: str
    vllm_memory: str
    lora_rate: str  # ten times the other
    lora: str


class Data(NamedTuple):
    title: str
    completion: int
    epochs: str
    why_completion: str
    why_epochs: str = "chosen: about 230 steps"
    source: tuple[str, str] | None = None  # where the task names no Hub id of its own


LLAMA_LORA = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
# A pattern, since plain names such as q_proj also match the vision tower, which text alone never trains
GEMMA_LORA = r"'.*language_model.*\.(q|k|v|o|gate|up|down)_proj'"
MODELS = {
    "llama-3.1-8b-instruct": Model("meta-llama/Llama-3.1-8B-Instruct", "1.0e-6", "0.35", "1e-5", LLAMA_LORA),
    "llama-3.2-3b-instruct": Model("meta-llama/Llama-3.2-3B-Instruct", "1.0e-6", "0.25", "1e-5", LLAMA_LORA),
    "gemma-3-4b-it": Model("google/gemma-3-4b-it", "5.0e-6", "0.3", "5e-5", GEMMA_LORA),
}
DATASETS = {
    "math": Data("MATH", 1024, "1", "long derivations"),
    "gsm8k": Data("GSM8K", 512, "1", "a few lines of arithmetic"),
    "logiqa": Data("LogiQA", 768, "1", "a passage's reasoning in words"),
    "colota": Data(
        "CoLoTa",
        512,
        "5",
        "a few sentences",
        "chosen: about 240 steps on 1,521 prompts",
        ("data/colota/CoLoTa_qa.json", "the file that its authors publish, to be put there; split into 1,521 and 170"),
    ),
}
LOSSES = {
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "dapo": "DAPO's loss and soft overlong punishment (no dynamic sampling)",
}
GENERATIONS = 8
DEVICE_BATCH, ACCUMULATION, GPUS = 4, 8, 8
PROGRESS = "progress_carry"  # for prompts that come back; compared with `grpo` under TRL's GRPO loss only
VISITS = 5  # of each prompt in its recipes
AGAIN = Setting("num_train_epochs", str(VISITS), "ours: prompts come back, or there would be nothing to carry")


def arms_of(loss: str) -> list[str]:
    """The recipes of a loss by their file's name: without adaptive rollouts first."""
    return ["grpo", "adaroll", PROGRESS] if loss == "grpo" else [loss, f"{loss}_adaroll"]


def arm_lines(name: str, folder: str, task: str, generations: int, again: Setting) -> list[Setting]:
    """Who decides how many rollouts a prompt gets, and where the run is written: all that differs within a pair.

    `again` is the line that lets prompts come back, which `progress_carry` needs.
    """
    output = Setting("output_dir", f"outputs/{folder}/{name}", "chosen: each arm its own")
    if name in LOSSES:
        return [Setting("trainer", "grpo", "paper: the baseline"), output]
    adaptive = adaroll_lines(output, task, generations)
    return replaced(adaptive, [*PROGRESS_LINES, again]) if name == PROGRESS else adaptive


# The library's defaults, written out: docs/results.md has the evidence, where prompts come back
PROGRESS_LINES = [
    Setting("trainer", "adaroll", "ours: not a method of the paper"),
    Setting("allocator", "adaroll", "ours, the default: planned in rounds, here in one"),
    Setting("utility", "progress", "ours, the default: counts more than a group's first signal"),
    Setting("kappa", "2.0", "ours, the default: not measured on this model (kappa_every measures it)"),
    Setting("rounds", "1", "ours, the default: earlier visits decide; one generation call a step"),
    Setting("min_rollouts", "2", "ours, the default: the fewest with a signal; no prompt is given up"),
    Setting("prior_alpha", "1.0", "ours, the default: uniform, and not fitted"),
    Setting("prior_beta", "1.0", "ours, the default: as above"),
    Setting("belief_decay", "0.7", "ours, the default: what outcomes count for at the next visit, by prompt_id"),
    Setting("prompt_weighting", "prompt", "ours, the default: prompts weigh alike, as in GRPO's equal groups"),
]


def replaced(lines: list[Setting], others: list[Setting]) -> list[Setting]:
    """`lines` with `others` in the place of those of the same key, and behind them where there is none."""
    by_key = {setting.key: setting for setting in [*lines, *others]}
    return list(by_key.values())


def without(parts: list[Section], arm: list[Setting]) -> list[Section]:
    """The sections less the lines that the arm has too."""
    own = {setting.key for setting in arm}
    return [(title, [setting for setting in lines if setting.key not in own]) for title, lines in parts]


def adaroll_lines(output: Setting, task: str, generations: int) -> list[Setting]:
    """The paper's policy."""
    return [
        Setting("trainer", "adaroll", "paper"),
        output,
        Setting("allocator", "adaroll", "ours: the paper's policy, planned in rounds"),
        Setting("utility", "mixed", "paper's default, as we read its figure; its formula is not public"),
        Setting("rounds", "4", "ours: the paper decides rollout by rollout"),
        Setting("min_rollouts", "2", "ours"),
        Setting("max_rollouts", str(4 * generations), "ours: 4 x num_generations"),
        Setting("prior_alpha", "1.0", "ours: uniform; the paper's prior is not public"),
        Setting("prior_beta", "1.0", "ours: as above"),
        Setting("belief_decay", "0.0", "paper, as we read it: every visit starts at the prior"),
        Setting("prompt_weighting", "rollout", "ours: a prompt weighs as much as its rollouts, as in TRL's losses"),
        Setting("success_reward", f"{task}_accuracy", "ours: a rollout succeeds where its answer is right"),
        Setting("success_threshold", "0.5", "ours: the accuracy is 0 or 1"),
    ]


def loss_lines(loss: str, task: str, completion: int) -> list[Setting]:
    accuracy = f"{task}_accuracy"
    if loss == "grpo":
        return [
            Setting("loss_type", "grpo", "paper"),
            Setting("scale_rewards", "group", "GRPO: divides by the group's standard deviation"),
            Setting("reward_funcs", f"[{accuracy}]", "chosen: 1 for a right answer, else 0"),
        ]
    if loss == "dr_grpo":
        return [
            Setting("loss_type", "dr_grpo", "paper"),
            Setting("scale_rewards", "none", "Dr. GRPO: does not divide by the standard deviation"),
            Setting("reward_funcs", f"[{accuracy}]", "chosen: 1 for a right answer, else 0"),
        ]
    return [
        Setting("loss_type", "dapo", "paper"),
        Setting("scale_rewards", "group", "DAPO: as GRPO"),
        Setting("epsilon_high", "0.28", "DAPO: clip-higher"),
        Setting("reward_funcs", f"[{accuracy}, get_soft_overlong_punishment]", "DAPO: the sum of both"),
        Setting("soft_punish_cache", str(completion // 5), "chosen: a fifth of the length, as in DAPO"),
    ]


def sections(model: Model, data: Data, task: str, loss: str) -> Iterator[Section]:
    """What all recipes of a loss say."""
    yield (
        "Model and data",
        [
            Setting("model_name_or_path", model.hub_id, "paper"),
            Setting("dtype", "float32", "chosen: master weights; an update of 1e-6 is lost in bfloat16"),
            Setting("bf16", "true", "chosen: computes in bfloat16"),
            Setting("task", task, "paper"),
            *([Setting("dataset_name", *data.source)] if data.source else []),
            Setting("dataset_train_split", "train", "chosen: the published training split"),
            Setting("seed", "42", "chosen: both arms see the same prompts in the same order"),
        ],
    )
    yield (
        "Rollouts",
        [
            Setting("num_generations", str(GENERATIONS), "chosen: the average of a prompt"),
            Setting("per_device_train_batch_size", str(DEVICE_BATCH), "chosen: rollouts in a forward pass"),
            Setting("gradient_accumulation_steps", str(ACCUMULATION), "chosen: one optimiser step a generation batch"),
            Setting("max_completion_length", str(data.completion), f"chosen: {data.why_completion}"),
            Setting("temperature", "1.0", "chosen: samples from the policy itself"),
            Setting("use_vllm", "true", "chosen; false generates with transformers"),
            Setting("vllm_mode", "colocate", "chosen"),
            Setting("vllm_gpu_memory_utilization", model.vllm_memory, "chosen: weights and cache, of 80 GB"),
            Setting("vllm_max_model_length", "4096", "chosen: longest prompt and completion"),
        ],
    )
    yield (
        "Loss",
        [
            *loss_lines(loss, task, data.completion),
            Setting("beta", "0.0", "chosen: no KL term, no reference model"),
            Setting("num_iterations", "1", "chosen: on-policy"),
        ],
    )
    yield (
        "Optimiser",
        [
            Setting("learning_rate", model.learning_rate, "paper"),
            Setting("lr_scheduler_type", "cosine", "paper"),
            Setting("optim", "adamw_torch_fused", "paper: AdamW"),
            Setting("warmup_steps", "10", "chosen"),
            Setting("max_grad_norm", "1.0", "chosen"),
            Setting("num_train_epochs", data.epochs, data.why_epochs),
            Setting("gradient_checkpointing", "true", "chosen: memory for time"),
        ],
    )
    yield (
        "Logs and checkpoints",
        [
            Setting("logging_steps", "1", "chosen"),
            Setting("report_to", "none", "chosen; or wandb, trackio, tensorboard"),
            Setting("save_strategy", "steps", "chosen"),
            Setting("save_steps", "50", "chosen"),
            Setting("save_total_limit", "2", "chosen"),
            Setting("eval_strategy", '"no"', "chosen: the checkpoints are scored afterwards"),
        ],
    )


def pair_of(again: Setting) -> list[str]:
    """What `progress_carry` is, and how its baselines get its budget; lines of its comment on top."""
    return [
        "The library's defaults. Prompts come back, and the rollouts of a visit follow from the visits before it;",
        "a batch of prompts that come for the first time is GRPO's. docs/recipes.md says why.",
        f"At the same budget: grpo.yaml and adaroll.yaml beside it, each with --{again.key} {again.value}.",
    ]


def header(folder: str, name: str, model: Model, data: Data, loss: str) -> str:
    rollouts = DEVICE_BATCH * GPUS * ACCUMULATION
    lines = [
        "accelerate launch --config_file recipes/accelerate/zero3.yaml scripts/train.py \\",
        f"    --config recipes/{folder}/{name}.yaml",
        "",
        f"{model.hub_id} on {data.title}, {LOSSES[loss]}.",
        f"{GPUS} GPUs x {DEVICE_BATCH} rollouts x {ACCUMULATION} steps = {rollouts} rollouts = "
        f"{rollouts // GENERATIONS} prompts x {GENERATIONS}. On 4, 2, 1 GPUs add",
        f"--gradient_accumulation_steps {', '.join(str(ACCUMULATION * k) for k in (2, 4, 8))}.",
        *(pair_of(AGAIN) if name == PROGRESS else []),
        "Full fine-tuning, as in the paper. For LoRA add",
        f"--use_peft true --dtype bfloat16 --learning_rate {model.lora_rate} \\",
        f"--lora_target_modules {model.lora}",
        "Written by scripts/make_recipes.py: change it there.",
    ]
    return comment(lines)


def comment(lines: list[str]) -> str:
    return "\n".join(f"# {line}".rstrip() for line in lines)


def body(parts: list[Section]) -> str:
    blocks = []
    for title, settings in parts:
        lines = [f"{setting.key}: {setting.value} # {setting.source}" for setting in settings]
        blocks.append("\n".join([f"# {title}", *lines]))
    return "\n\n".join(blocks)


ARM_TITLE = "Allocation: the only lines in which the two recipes of a pair differ"


def paper_recipes() -> Iterator[tuple[Path, str]]:
    """The paper's models, data sets and losses."""
    for model_name, model in MODELS.items():
        for task, data in DATASETS.items():
            folder = f"{model_name}/{task}"
            for loss in LOSSES:
                for name in arms_of(loss):
                    arm = arm_lines(name, folder, task, GENERATIONS, AGAIN)
                    text = body([*without(list(sections(model, data, task, loss)), arm), (ARM_TITLE, arm)])
                    yield ROOT / folder / f"{name}.yaml", f"{header(folder, name, model, data, loss)}\n\n{text}\n"


SMOLLM2 = "smollm2-135m-instruct/arithmetic"
SMOLLM2_GENERATIONS = 6
SMOLLM2_SECTIONS: list[Section] = [
    (
        "Model and data",
        [
            Setting("model_name_or_path", "outputs/smollm2", "python scripts/get_smollm2.py outputs/smollm2"),
            Setting("dtype", "float32", "chosen: bfloat16 is slow on a CPU"),
            Setting("bf16", "false", "chosen: as above"),
            Setting("use_cpu", "true", "chosen"),
            Setting("dataloader_pin_memory", "false", "chosen: there is no GPU to copy to"),
            Setting("task", "arithmetic", "chosen: generated, and spans all success rates of this model"),
            Setting("dataset_name", '"480:0"', "chosen: 480 prompts of seed 0, each once in 60 steps"),
            Setting("seed", "0", "chosen"),
        ],
    ),
    (
        "Rollouts",
        [
            Setting("num_generations", str(SMOLLM2_GENERATIONS), "chosen: the average of a prompt"),
            Setting("per_device_train_batch_size", "16", "chosen: rollouts in a forward pass"),
            Setting("gradient_accumulation_steps", "3", "chosen: one optimiser step a generation batch"),
            Setting("max_completion_length", "5", "chosen: a number and a line break"),
            Setting("temperature", "1.0", "chosen: samples from the policy itself"),
        ],
    ),
    ("Loss", [Setting("loss_type", "dapo", "chosen: TRL's default"), Setting("beta", "0.0", "chosen: no KL term")]),
    (
        "Optimiser",
        [
            Setting("learning_rate", "2.0e-5", "chosen"),
            Setting("lr_scheduler_type", "constant_with_warmup", "chosen"),
            Setting("warmup_steps", "3", "chosen"),
            Setting("max_steps", "60", "chosen"),
            Setting("gradient_checkpointing", "false", "chosen: there is memory enough"),
        ],
    ),
    (
        "Logs and checkpoints",
        [
            Setting("logging_steps", "1", "chosen"),
            Setting("report_to", "none", "chosen"),
            Setting("save_steps", "20", "chosen"),
            Setting("save_total_limit", "1", "chosen"),
        ],
    ),
]
SMOLLM2_ARM = ("trainer", "output_dir", "allocator", "utility", "rounds", "min_rollouts", "max_rollouts")
SMOLLM2_AGAIN = Setting("dataset_name", '"96:0"', f"ours: 96 prompts of seed 0, each {VISITS} times in 60 steps")
SMOLLM2_COMMANDS = ("python benchmarks/smollm2/run.py", "python benchmarks/smollm2/run.py --prompts repeated")


def smollm2_recipes() -> Iterator[tuple[Path, str]]:
    """A real model on a CPU, without a hub."""
    for name in arms_of("grpo"):
        arm = arm_lines(name, SMOLLM2, "arithmetic", SMOLLM2_GENERATIONS, SMOLLM2_AGAIN)
        known = {*PROGRESS_LINES, SMOLLM2_AGAIN} if name == PROGRESS else set()
        own = [setting for setting in arm if setting.key in SMOLLM2_ARM or setting in known]
        parts = [*without(SMOLLM2_SECTIONS, own), (ARM_TITLE, own)]
        lines = [
            f"python scripts/train.py --config recipes/{SMOLLM2}/{name}.yaml",
            "",
            "SmolLM2-135M-Instruct on generated arithmetic. One CPU core, 5 GB: under half a minute a step.",
            f"Both recipes of a pair, and their evaluation: {SMOLLM2_COMMANDS[name == PROGRESS]}",
            *(pair_of(SMOLLM2_AGAIN) if name == PROGRESS else []),
            f"1 process x 16 rollouts x 3 steps = 48 rollouts = 8 prompts x {SMOLLM2_GENERATIONS}.",
            "Written by scripts/make_recipes.py: change it there.",
        ]
        yield ROOT / SMOLLM2 / f"{name}.yaml", f"{comment(lines)}\n\n{body(parts)}\n"


def recipes() -> Iterator[tuple[Path, str]]:
    """Every recipe: its file and what it says."""
    yield from paper_recipes()
    yield from smollm2_recipes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; list the files that differ")
    arguments = parser.parse_args()
    expected = dict(recipes())
    strays = [path for path in ROOT.glob("*/*/*.yaml") if path not in expected]
    wrong = [path for path, text in expected.items() if not path.exists() or path.read_text() != text]
    if arguments.check:
        for path in [*wrong, *strays]:
            print(f"{path.relative_to(ROOT.parent)} is not what scripts/make_recipes.py writes")
        return 1 if wrong or strays else 0
    for path in wrong:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(expected[path])
    print(f"{len(wrong)} of {len(expected)} recipes written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
