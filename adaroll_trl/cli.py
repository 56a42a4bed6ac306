"""The `adaroll` command: `adaroll demo` runs both trainers side by side; the others have parsers of their own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Only names that cost nothing to import: `adaroll --help` should answer at once.
from .demo.problems import DemoError, ProblemSet
from .demo.settings import ARMS, Settings

# Settings that a model and a data set of the user's own start from; the built-in task's are Settings' own.
_USER_DEFAULTS: dict[str, Any] = {
    "steps": 20,
    "prompts": 4,
    "num_generations": 8,
    "micro_batch": 8,
    "max_completion_length": 256,
    "lr": 1e-6,
    "eval_prompts": 32,
    "eval_samples": 1,
    "eval_times": 1,
    "probe_samples": 16,
    "warm_up_steps": 0,
}
_DATA_FIELDS = ("split", "prompt_column", "answer_column", "level_column", "instruction")
_ADAROLL_FIELDS = ("rounds", "allocator", "utility", "min_rollouts", "max_rollouts")

# Commands that read the rest of the line themselves: module with a `main(arguments)` (or another function after the
# colon), and a line of help.
_OWN_PARSERS = {
    "train": ("adaroll_trl.training.run", "train with GRPO or AdaRoll-GRPO, from a YAML recipe or options; --dry-run"),
    "eval": ("adaroll_trl.evaluation.command", "accuracy and pass@k of a model, with intervals; paired comparisons"),
    "simulate": (
        "adaroll_trl.simulation.command",
        "all allocators side by side on simulated prompts, at equal budget",
    ),
    "plan": (
        "adaroll_trl.simulation.command:plan_main",
        "what to expect of adaptive rollouts at a model's pass rates",
    ),
    "report": ("adaroll_trl.report.command", "what a run left on disk, or two runs, as one HTML page"),
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of `adaroll` and its subcommands."""
    parser = argparse.ArgumentParser(prog="adaroll", description="Adaptive rollout allocation for GRPO.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        allow_abbrev=False,
        help="GRPO and AdaRoll-GRPO side by side, on a built-in task or on your model and data set",
        description="Trains twice from one checkpoint with the same prompts and the same number of rollouts, and "
        "shows what happened. Without --model and --dataset: a tiny model on a built-in task, a few minutes on a CPU.",
    )
    demo.set_defaults(run=run_demo)
    _add_source_options(demo)
    _add_training_options(demo)
    for name, (_, text) in _OWN_PARSERS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _add_source_options(demo: argparse.ArgumentParser) -> None:
    group = demo.add_argument_group("model and data")
    group.add_argument("--model", help="local folder or Hub id of a causal language model (with --dataset)")
    group.add_argument("--dataset", help="local .jsonl, .json, .csv, .parquet, or Hub id[:config] (with --model)")
    group.add_argument("--split", help="split of a Hub data set (default: train)")
    group.add_argument("--prompt-column", help="column with the question (default: the first usual name)")
    group.add_argument("--answer-column", help="column with the gold answer; `#### 12` and \\boxed{12} are understood")
    group.add_argument("--level-column", help="column with a difficulty, for the tables")
    group.add_argument("--instruction", help="text after each question (default: fits the kind of answer)")
    group.add_argument("--output-dir", type=Path, default=Path("outputs/demo"), help="default: outputs/demo")


def _add_training_options(demo: argparse.ArgumentParser) -> None:
    group = demo.add_argument_group("training", "Defaults differ between the built-in task and your own model.")
    group.add_argument(
        "--arm", choices=("both", *ARMS), default="both", help="run both trainers, or one (default: both)"
    )
    whole = {
        "--steps": "optimizer steps of each arm",
        "--prompts": "prompts in a generation batch",
        "--num-generations": "rollouts per prompt: of each in GRPO, on average in AdaRoll-GRPO",
        "--micro-batch": "rollouts in one forward and backward pass",
        "--max-completion-length": "tokens of a completion, at most",
        "--eval-prompts": "held-out prompts",
        "--eval-samples": "completions sampled for each of them",
        "--eval-times": "evaluations spread over the training",
        "--probe-samples": "completions that estimate the success rate of each prompt of the first batch; 0: none",
        "--warm-up-steps": "supervised steps of the built-in model",
        "--seed": "of data, sampling and training (default: 0)",
    }
    for option, text in whole.items():
        group.add_argument(option, type=int, help=text)
    group.add_argument("--lr", type=float, help="learning rate")
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of your model (default: float32; in bfloat16 updates of a small learning rate are rounded away)",
    )
    group.add_argument("--threads", type=int, help="threads (default: 1 for the tiny model, else torch's own choice)")
    own = demo.add_argument_group(
        "AdaRollGRPOConfig", "Left out, the library's defaults hold, with utility 'mixed': prompts come once here."
    )
    own.add_argument("--rounds", type=int, help="generation rounds of a batch")
    own.add_argument("--allocator", help="who decides on the rollouts")
    own.add_argument("--utility", help="what a group of rollouts is worth")
    own.add_argument("--min-rollouts", type=int, help="rollouts that each prompt gets at least")
    own.add_argument("--max-rollouts", type=int, help="and at most")


def _refuse_ignored(options: argparse.Namespace) -> None:
    """An option that would have no effect is a mistake; better to say so than to run without it."""
    without_effect = {
        "needs --model and --dataset": (_DATA_FIELDS, options.dataset is None),
        "is of the built-in model, not of --model": (("warm_up_steps",), options.model is not None),
        "has no effect with --arm grpo": (_ADAROLL_FIELDS, options.arm == "grpo"),
    }
    for reason, (names, applies) in without_effect.items():
        given = [name for name in names if getattr(options, name) is not None]
        if applies and given:
            raise DemoError(f"--{given[0].replace('_', '-')} {getattr(options, given[0])} {reason}.")


def make_settings(options: argparse.Namespace) -> Settings:
    """Settings from the command line, with the defaults of the built-in task or of a user's own model."""
    if (options.model is None) != (options.dataset is None):
        missing = "--dataset" if options.dataset is None else "--model"
        raise DemoError(
            f"--model and --dataset belong together: {missing} is missing. Without both, a built-in task runs."
        )
    _refuse_ignored(options)
    chosen = dict(_USER_DEFAULTS) if options.model is not None else {}
    for name in Settings.__dataclass_fields__:
        value = getattr(options, name, None)
        if value is not None:
            chosen[name] = value
    if options.micro_batch is None:
        rollouts = chosen.get("prompts", 16) * chosen.get("num_generations", 8)
        wanted = chosen.get("micro_batch", rollouts)
        chosen["micro_batch"] = max(size for size in range(1, wanted + 1) if rollouts % size == 0)
    chosen["arms"] = tuple(ARMS) if options.arm == "both" else (options.arm,)
    chosen["adaroll"] = {
        name: getattr(options, name) for name in _ADAROLL_FIELDS if getattr(options, name) is not None
    }
    return Settings(**chosen)


def load_problems(options: argparse.Namespace, settings: Settings, tokenizer: Any) -> ProblemSet:
    """The built-in problems, or the user's data set."""
    num_train = settings.steps * settings.prompts
    if options.dataset is None:
        from .demo.problems import builtin_problems

        return builtin_problems(num_train, settings.eval_prompts, settings.seed)
    from .demo.user_data import read_rows, user_problems

    return user_problems(
        read_rows(options.dataset, options.split or "train"),
        name=Path(options.dataset).name,
        prompt_column=options.prompt_column,
        answer_column=options.answer_column,
        level_column=options.level_column,
        instruction=options.instruction,
        chat=getattr(tokenizer, "chat_template", None) is not None,
        num_train=num_train,
        num_held_out=settings.eval_prompts,
        seed=settings.seed,
    )


def run_demo(options: argparse.Namespace) -> int:
    """`adaroll demo`."""
    settings = make_settings(options)
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    _set_threads(options.threads or (1 if options.model is None else None))  # a tiny model is fastest on one
    from rich.console import Console

    from .demo.arms import trainer_config
    from .demo.display import Display
    from .demo.run import make_checkpoint, measure, quiet, report

    console = Console()
    with quiet():
        from .demo.user_data import load_policy, load_tokenizer

        tokenizer = load_tokenizer(options.model) if options.model is not None else None
        problems = load_problems(options, settings, tokenizer)
        for arm in settings.arms:
            trainer_config(arm, settings)  # a bad option should not wait until the first arm is done
        console.print(_opening(options, settings, problems), highlight=False)
        with Display(console, settings) as display:
            start = str(options.model or make_checkpoint(settings, display))
            result = measure(
                settings, problems, lambda: (load_policy(start, settings.dtype), load_tokenizer(start)), display
            )
        report(result, console)
    return 0


def _set_threads(threads: int | None) -> None:
    if threads is None:
        return
    import torch

    torch.set_num_threads(threads)


def _opening(options: argparse.Namespace, settings: Settings, problems: ProblemSet) -> str:
    model = options.model or "a tiny Llama, trained here"
    arms = " and ".join(ARMS[arm] for arm in settings.arms)
    return (
        f"[bold]{arms}[/bold] on {problems.name}, with {model}: {settings.steps} steps of {settings.prompts} prompts "
        f"x {settings.num_generations} rollouts, learning rate {settings.lr:g}, seed {settings.seed}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; bad input ends with one sentence on stderr and exit status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _OWN_PARSERS:
        module, _, function = _OWN_PARSERS[given[0]][0].partition(":")
        return int(getattr(import_module(module), function or "main")(given[1:]))
    options = build_parser().parse_args(given)
    try:
        return int(options.run(options))
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
