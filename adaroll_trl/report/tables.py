"""The tables of a report: figures side by side, single prompts, settings. Each is bounded, however long the run."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..values import is_number
from .completions import Completions, Place, Prompt, read_texts
from .run import Run
from .settings import ALLOCATION_SETTINGS, MAIN_SETTINGS

FloatArray = NDArray[np.float64]

MOST_PROMPTS = 20
MOST_CHARACTERS = 400
_LEAST_ROLLOUTS = 4  # of a prompt that is called hard for its success rate


@dataclass(frozen=True)
class Table:
    """Rows of texts below `heads`; the columns in `long` hold texts of strangers, which wrap. `more` is said below."""

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    long: Sequence[int] = field(default_factory=tuple)
    caption: str = ""


# Figures side by side


def _mean(series: tuple[FloatArray, FloatArray], part: slice = slice(None)) -> float | None:
    values = series[1][part]
    return float(values.mean()) if values.size else None


def _share(run: Run, name: str) -> float | None:
    batches = run.completions.batches
    logged = {"all_wrong": "adaroll/frac_prompts_all_wrong", "all_right": "adaroll/frac_prompts_all_correct"}[name]
    found = _mean(run.files.series(logged))
    return found if found is not None or not batches else float(np.mean([getattr(one, name) for one in batches]))


def _equal_groups(run: Run) -> float | None:
    """Over all phases, each by its number of groups."""
    if not run.adaptive or not run.equal_groups:
        return None
    sizes = [run.completions.pairs[phase].total() for phase in run.equal_groups]
    return float(np.average(list(run.equal_groups.values()), weights=sizes))


def _tenth(run: Run, last: bool) -> float | None:
    series = run.reward_by_prompt()
    size = max(1, series[1].size // 10)
    return _mean(series, slice(-size, None) if last else slice(size))


def _held_out(run: Run, place: int) -> float | None:
    name = run.held_out()
    values = run.files.series(name)[1] if name else np.zeros(0)
    return float(values[place]) if values.size else None


def _median(run: Run, name: str) -> float | None:
    values = run.files.series(name)[1]
    return float(np.median(values)) if values.size else None


def _of(completions: Completions, value: Callable[[Completions], float]) -> float | None:
    return float(value(completions)) if completions.batches else None


def _last_step(run: Run) -> float | None:
    steps = (entry.get("step") for entry in run.files.history)
    return max((float(step) for step in steps if step is not None and is_number(step)), default=None)


_FIGURES: tuple[tuple[str, str, Callable[[Run], float | None]], ...] = (
    ("steps", ",.0f", _last_step),
    ("batches with completions", ",.0f", lambda run: _of(run.completions, lambda c: len(c.batches))),
    ("prompts in them", ",.0f", lambda run: _of(run.completions, lambda c: len(c.prompts))),
    ("rollouts in them", ",.0f", lambda run: _of(run.completions, lambda c: c.rollouts)),
    ("largest group", ",.0f", lambda run: _of(run.completions, lambda c: max(b.largest for b in c.batches))),
    ("reward by prompt, first tenth", ".3f", lambda run: _tenth(run, last=False)),
    ("reward by prompt, last tenth", ".3f", lambda run: _tenth(run, last=True)),
    ("held-out result, first", ".3f", lambda run: _held_out(run, 0)),
    ("held-out result, last", ".3f", lambda run: _held_out(run, -1)),
    ("prompts with signal", ".1%", lambda run: _mean(run.signal())),
    ("equal groups would have (estimate)", ".1%", _equal_groups),
    ("prompts all wrong", ".1%", lambda run: _share(run, "all_wrong")),
    ("prompts all right", ".1%", lambda run: _share(run, "all_right")),
    ("utility per prompt, realised", ".3f", lambda run: _mean(run.files.series("adaroll/utility/realised"))),
    ("utility per prompt, planned", ".3f", lambda run: _mean(run.files.series("adaroll/utility/planned"))),
    ("utility per prompt, equal groups", ".3f", lambda run: _mean(run.files.series("adaroll/utility/uniform"))),
    ("utility per prompt, bound", ".3f", lambda run: _mean(run.files.series("adaroll/utility/bound"))),
    ("step time, median, s", ".3g", lambda run: _median(run, "step_time")),
    ("time to allocate, median, s", ".2g", lambda run: _median(run, "adaroll/time/allocate")),
    ("tokens of a completion", ",.0f", lambda run: _mean(run.files.series("completions/mean_length"))),
)


def figures_table(runs: Sequence[Run]) -> Table:
    """What was measured, a column a run; with two runs the difference too. Rows that no run has are left out."""
    rows = []
    for label, form, value in _FIGURES:
        values = [value(run) for run in runs]
        if all(one is None for one in values):
            continue
        cells = ["-" if one is None else format(one, form) for one in values]
        if len(runs) == 2:
            a, b = values
            cells.append("" if a is None or b is None else _signed(b - a, form))
        rows.append([label, *cells])
    heads = ["", *(run.name for run in runs), *([f"{runs[1].name} - {runs[0].name}"] if len(runs) == 2 else [])]
    caption = (
        "Means over the run, but where it says otherwise. The estimate of equal groups is from this run's outcomes; "
        "utilities planned, of equal groups and bound are what its beliefs expected."
    )
    if len(runs) == 2:
        caption += " One run each: the differences hold what another seed would change, so none is evidence alone."
    return Table("figures", "", heads, rows, caption=caption)


def _signed(value: float, form: str) -> str:
    if form.endswith("%"):
        return f"{100 * value:+.1f} pp"
    return format(value, form if form.startswith("+") else f"+{form}")


# Single prompts


def prompt_tables(runs: Sequence[Run]) -> list[Table]:
    """The hardest prompts that were solved, and those never solved, of each run; of two runs also who solved what."""
    found = []
    for run in runs:
        if run.completions.rewards and run.completions.prompts:
            found += [_solved(run, runs), _never(run, runs)]
    if len(runs) == 2 and all(run.completions.prompts for run in runs):
        found.append(_solved_by(runs))
    return found


def _solved(run: Run, runs: Sequence[Run]) -> Table:
    solved = [one for one in run.completions.prompts.values() if one.solved is not None]
    hard = [one for one in solved if one.rollouts >= _LEAST_ROLLOUTS]
    hard.sort(key=lambda one: (one.successes / one.rollouts, -one.rollouts))
    shown = hard[:MOST_PROMPTS]
    texts = read_texts(run.files, [one.solved for one in shown if one.solved is not None])
    rows = [[*_texts(texts, one.solved), *_counts(one), f"{one.solved_step}"] for one in shown]
    caption = (
        f"{len(solved):,} of {len(run.completions.prompts):,} prompts were solved at least once. Shown are those of "
        f"the lowest success rate over the run (of at least {_LEAST_ROLLOUTS} rollouts), with their first success."
    )
    heads = ["prompt", "its first success", "successes", "rollouts", "batches", "first solved at step"]
    return Table(
        f"solved_{run.colour}", _title("The hardest prompts that were solved", run, runs), heads, rows, (0, 1), caption
    )


def _never(run: Run, runs: Sequence[Run]) -> Table:
    never = [one for one in run.completions.prompts.values() if one.solved is None and one.rollouts]
    never.sort(key=lambda one: -one.rollouts)
    shown = never[:MOST_PROMPTS]
    texts = read_texts(run.files, [one.last for one in shown])
    rows = [[*_texts(texts, one.last), *_counts(one)[1:]] for one in shown]
    spent = sum(one.rollouts for one in never)
    everything = sum(one.rollouts for one in run.completions.prompts.values())
    caption = (
        f"{len(never):,} of {len(run.completions.prompts):,} prompts were never solved; {spent:,} of {everything:,} "
        "rollouts went to them. Shown are those with the most rollouts, with their latest completion. A prompt "
        "without a success in n rollouts may still be solved: with 95 % confidence its rate is below 3 / n."
    )
    heads = ["prompt", "its latest completion", "rollouts", "batches"]
    return Table(f"never_{run.colour}", _title("Prompts never solved", run, runs), heads, rows, (0, 1), caption)


def _solved_by(runs: Sequence[Run]) -> Table:
    first, second = (run.completions.prompts for run in runs)
    both = first.keys() & second.keys()
    solved = [sum(1 for key in both if one[key].solved is not None) for one in (first, second)]
    only_first = sum(1 for key in both if first[key].solved is not None and second[key].solved is None)
    only_second = sum(1 for key in both if first[key].solved is None and second[key].solved is not None)
    rows = [
        ["prompts in both runs", f"{len(both):,}"],
        [f"solved in {runs[0].name}", f"{solved[0]:,}"],
        [f"solved in {runs[1].name}", f"{solved[1]:,}"],
        [f"only in {runs[0].name}", f"{only_first:,}"],
        [f"only in {runs[1].name}", f"{only_second:,}"],
    ]
    caption = "Solved means at least one success in the completions that were logged; more rollouts solve more."
    return Table("solved_by", "Who solved what", ["", "prompts"], rows, caption=caption)


def _title(text: str, run: Run, runs: Sequence[Run]) -> str:
    return f"{text}: {run.name}" if len(runs) > 1 else text


def _counts(one: Prompt) -> list[str]:
    return [f"{one.successes:,}", f"{one.rollouts:,}", f"{one.batches:,}"]


def _texts(texts: dict[Place, tuple[Any, Any]], place: Place | None) -> list[str]:
    prompt, completion = texts[place] if place is not None else ("", "")
    return [shorten(plain_text(prompt)), shorten(plain_text(completion))]


def plain_text(value: Any) -> str:
    """A prompt or completion as text: a conversation with its roles, and nothing that a page cannot show.

    >>> plain_text([{"role": "user", "content": "2 + 2?"}])
    'user: 2 + 2?'
    """
    text = "\n".join(_message(one) for one in value) if isinstance(value, list) else str(value)
    return "".join(one if one == "\n" or not unicodedata.category(one).startswith("C") else "\ufffd" for one in text)


def _message(message: Any) -> str:
    if not isinstance(message, dict):
        return str(message)
    content = message.get("content")
    if isinstance(content, list):
        content = " ".join(
            str(part.get("text") or f"[{part.get('type')}]") for part in content if isinstance(part, dict)
        )
    return f"{message.get('role')}: {content}" if "role" in message else str(content)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """The start and the end of a text that is too long; of a few-shot prompt the question is at its end.

    >>> shorten("a" * 30 + "b" * 30, 20)
    'aaaaaa [...] bbbbbbb'
    """
    if len(text) <= most:
        return text
    start = most // 3
    return f"{text[:start]} [...] {text[-(most - start - 7) :]}"


# Settings


def settings_tables(runs: Sequence[Run]) -> list[Table]:
    """The main settings, and all others; of two runs those that differ come first."""
    names = {name for run in runs for name in run.files.settings if _value(run, name) != "-"}
    if not names:
        return []
    main = [name for name in (*ALLOCATION_SETTINGS, *MAIN_SETTINGS) if name in names]
    others = sorted(names - set(main))
    differ = [name for name in (*main, *others) if len({_value(run, name) for run in runs}) > 1]
    heads = ["", *(run.name for run in runs)]
    tables = []
    if len(runs) == 2:
        tables.append(Table("differ", "Settings that differ", heads, _rows(runs, differ), _columns(runs)))
    tables.append(Table("settings", "Settings", heads, _rows(runs, main), _columns(runs)))
    tables.append(Table("others", "All other settings", heads, _rows(runs, others), _columns(runs)))
    return tables


def _columns(runs: Sequence[Run]) -> Sequence[int]:
    return tuple(range(1, len(runs) + 1))


def _rows(runs: Sequence[Run], names: Iterable[str]) -> list[list[str]]:
    return [[name, *(_value(run, name) for run in runs)] for name in names]


def _value(run: Run, name: str) -> str:
    if name not in run.files.settings or (name in ALLOCATION_SETTINGS and not run.adaptive):
        return "-"
    value = run.files.settings[name]
    return shorten(plain_text(str(value)) if value is None or isinstance(value, str) else json.dumps(value), 200)
