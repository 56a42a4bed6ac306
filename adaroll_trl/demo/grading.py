"""Right or wrong, for data sets of a user's own: what the gold answer is, and when a completion agrees with it.

Three graders, picked by what the gold answers look like: numbers are compared with the number that a completion ends
on (or marks with `####` or `\\boxed{}`), mathematical expressions are left to math-verify where it is installed,
anything else must stand on the last line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

from .problems import Grader

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_BOXED = re.compile(r"\\boxed\s*\{")


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` of `text` holds, nested braces and all.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for place in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[starts[-1] : place]
    return None


def gold_answer(text: str) -> str:
    """The answer in a data set's answer field: after `####` (GSM8K), else in the last box (MATH), else all of it.

    >>> gold_answer("He has 1,200 / 2 = 600 left.\\n#### $1,200")
    '$1,200'
    """
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


def solution_steps(text: str) -> int | None:
    """The number of calculator spans `<<...>>` in a GSM8K solution, a fair measure of its difficulty; else None."""
    return text.count("<<") if "####" in text else None


def as_number(text: str) -> float | None:
    """The number that `text` is, give or take `$`, `%`, commas and a full stop; None if it is not one number.

    >>> as_number("$1,200."), as_number("12 apples")
    (1200.0, None)
    """
    bare = text.strip().strip("$%. ")
    return float(bare.replace(",", "")) if _NUMBER.fullmatch(bare) else None


def stated_number(completion: str) -> float | None:
    """The number that a completion gives as its answer: after `####`, else boxed, else the last one it mentions."""
    place = completion.rsplit("####", 1)[1] if "####" in completion else last_boxed(completion)
    if place is not None:
        numbers = _NUMBER.findall(place)
        return float(numbers[0].replace(",", "")) if numbers else None
    numbers = _NUMBER.findall(completion)
    return float(numbers[-1].replace(",", "")) if numbers else None


def grade_number(completion: str, answer: str) -> float:
    gold, given = as_number(answer), stated_number(completion)
    return float(gold is not None and given is not None and abs(gold - given) <= 1e-6 * max(1.0, abs(gold)))


def grade_text(completion: str, answer: str) -> float:
    """Whether the last line that is not empty says the answer, without regard to case, `####` and a full stop."""
    lines = [line for line in completion.splitlines() if line.strip()]
    stated = lines[-1].rsplit("####", 1)[-1] if lines else ""
    return float(_plain(stated) == _plain(answer))


def grade_expression(completion: str, answer: str) -> float:
    """TRL's own accuracy reward, which leaves the comparison to math-verify."""
    from trl.rewards import accuracy_reward

    reward = accuracy_reward([[{"role": "assistant", "content": completion}]], [f"${answer}$"])[0]
    return float(reward or 0.0)


def pick_grader(answers: Sequence[str]) -> Grader:
    """The grader for a data set with these gold answers."""
    if all(as_number(answer) is not None for answer in answers):
        return grade_number
    if any("\\" in answer for answer in answers) and find_spec("math_verify") is not None:
        return grade_expression
    return grade_text


def _plain(text: str) -> str:
    return text.strip().strip(".*\"'` ").casefold()
