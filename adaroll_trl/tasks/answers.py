r"""Where the answer stands in a text: inside a box, after `####`, behind "answer:", or at its end.

A completion may name several answers on its way. The one that counts is the last that it marks as final; each verifier
(`verifiers.py`) says which marks it knows and what it does without one.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal

TAIL = 20_000  # characters at the end of a completion that are looked at; a final answer stands there

_BOX = re.compile(r"\\f?boxed(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"[^\s$,;.{}]+")
# A sign after a letter, a digit or a bracket is a subtraction or a hyphen.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])(?P<sign>[-\u2212])\\?[$€£]?)?(?<![A-Za-z0-9])"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)
_LATEX_SPACE = re.compile(r"\\[,!;: ]|(?<=,)\{\}|\{(?=,\})|(?<=\{,)\}")
_EXPONENT = re.compile(r"(?<=[A-Za-z])(\}?)\s*+\^\s*+\{?[0-9]+\}?|\^\{?\\circ\}?")  # cm^2, 5^\circ
_WORDING = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|bf|rm|quad|left|right|approx|pounds)(?![A-Za-z])")
_LOOSE_SIGN = re.compile(r"^([\s${(]*[-\u2212])\s+")
_FRACTION = re.compile(
    r"[\s$({]*+(?P<minus>[-\u2212]?)\s*+(?:\\[dt]?frac\s*\{\s*(-?[0-9.,]{1,25})\s*\}\s*\{\s*(-?[0-9.,]{1,25})\s*\}"
    r"|\$?([0-9.,]{1,25})\s*/\s*([0-9.,]{1,25}))(?P<unit>[^0-9\\^!]*)"
)
_OPERATION = re.compile(r"[!^*+\u00d7\u00f7|]|\\[A-Za-z]")  # makes another number of the one beside it
_MAGNITUDE = re.compile(r"[\s{]*+(?:thousand|million|billion|trillion)s?\b|[kKMB]\b|bn\b|[eE][-+]?[0-9]")


def final_part(completion: str) -> str:
    """The end of a completion, at most `TAIL` characters, after its thinking; empty if that was not finished.

    >>> final_part("<think>5? or 6?</think>It is 6.")
    'It is 6.'
    >>> final_part("<think>5? or 6?")
    ''
    """
    end = completion.rfind("</think>")
    if end >= 0:
        completion = completion[end + len("</think>") :]
    return "" if "<think>" in completion else completion[-TAIL:].replace("\uff1a", ":")  # the full-width colon


def last_line(text: str) -> str:
    """The last line that is not blank, without spaces around it; empty if there is none."""
    return text.rstrip().rsplit("\n", 1)[-1].strip()


def find_last_box(text: str) -> tuple[int, str] | None:
    r"""Where the last `\boxed` or `\fbox` of `text` starts, and what it holds: nested braces and all, or without
    braces the next word. An unfinished box holds the empty string. None without a box.

    >>> find_last_box(r"\boxed{1}, no, \boxed{\frac{1}{2}}.")
    (15, '\\frac{1}{2}')
    >>> find_last_box(r"so \boxed 5$")[1], find_last_box(r"so \boxed{\frac{1}{2}")[1]
    ('5', '')
    """
    starts = list(_BOX.finditer(text))
    if not starts:
        return None
    mark, opening = starts[-1].start(), starts[-1].end()
    if text[opening : opening + 1] != "{":
        bare = _BARE_BOX.match(text, opening)
        return mark, bare.group() if bare else ""
    depth = 0
    for brace in _BRACE.finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)  # an escaped brace is a character like others
        if depth == 0:
            return mark, text[opening + 1 : brace.start()]
    return mark, ""


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` of `text` holds; None without a box, or if it holds nothing.

    >>> last_boxed(r"so \boxed{\boxed{\frac{1}{2}}}.")
    '\\frac{1}{2}'
    """
    found = find_last_box(text)
    return (found[1].strip() or None) if found else None


def gold_answer(text: str) -> str:
    """The answer in a data set's answer field: after `####` (GSM8K), else in the last box (MATH), else all of it.

    >>> gold_answer("He has 1,200 / 2 = 600 left.\\n#### $1,200")
    '$1,200'
    """
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    return (last_boxed(text) or text).strip()


def solution_steps(text: str) -> int | None:
    """The number of calculator spans `<<...>>` in a GSM8K solution, a fair measure of its difficulty; else None."""
    return text.count("<<") if "####" in text else None


def as_number(text: str) -> Decimal | None:
    """The number that `text` is, give or take `$`, `%`, commas and a full stop; None if it is not one number.

    >>> as_number("$1,200."), as_number("12 apples")
    (Decimal('1200'), None)
    """
    match = _NUMBER.fullmatch(text.strip().strip("$%. "))
    return _value(match) if match else None


def numbers_in(text: str) -> list[Decimal]:
    r"""The numbers of a text in their order, LaTeX's thousands (`1{,}200`, `1\,200`) read as one.

    >>> numbers_in(r"From 1{,}250 - 7 = 1,243, or -0.5; H2O and 1,2")
    [Decimal('1250'), Decimal('7'), Decimal('1243'), Decimal('-0.5'), Decimal('1'), Decimal('2')]
    """
    return [_value(match) for match in _NUMBER.finditer(_LATEX_SPACE.sub("", text))]


def last_number(text: str) -> Decimal | None:
    """The last number of a text; None if there is none, or if it is only part of one ("1/2", "5 million", "1e3").

    >>> last_number("from 3 to 12."), last_number("about 1.5 million")
    (Decimal('12'), None)
    """
    text = _LATEX_SPACE.sub("", text)
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    if last is None or _MAGNITUDE.match(text, last.end()) or re.search(r"[0-9]\s?/\s?$", text[: last.start()][-4:]):
        return None
    return _value(last)


def first_number(text: str) -> tuple[Decimal, str] | None:
    """The number that a text begins with, give or take `$`, brackets and emphasis, and what follows it; None if the
    text begins with something else, or the number is only part of one.

    >>> first_number("$18 per day"), first_number("5k"), first_number("x = 5")
    ((Decimal('18'), ' per day'), None, None)
    """
    text = _LATEX_SPACE.sub("", text)
    match = _NUMBER.search(text)
    if match is None or re.search(r"[\w\\]", text[: match.start()].replace("\\$", "")):
        return None
    return None if _MAGNITUDE.match(text, match.end()) else (_value(match), text[match.end() :])


def only_number(text: str) -> Decimal | None:
    r"""The number that a marked answer states: behind its last `=`, and no other number or operation beside it. A
    plain fraction of two numbers has its value, to 50 digits.

    >>> only_number(r"3 \times 4 = 12\text{ cm}^2"), only_number("12 or 13"), only_number(r"\sqrt{16}")
    (Decimal('12'), None, None)
    >>> only_number(r"-\frac{72}{4}"), only_number("36/2 eggs"), only_number("1.5 million")
    (Decimal('-18'), Decimal('18'), None)
    """
    text = _EXPONENT.sub(r"\1", _WORDING.sub("", _LATEX_SPACE.sub("", text.rsplit("=", 1)[-1])))
    text = _LOOSE_SIGN.sub(r"\1", text).removeprefix("+")
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None and not _MAGNITUDE.match(fraction["unit"]):
        above, below = (as_number(part) for part in fraction.groups()[1:5] if part is not None)
        if above is None or not below:
            return None
        value = Context(prec=50).divide(above, below)
        return value.copy_negate() if fraction["minus"] else value
    numbers = list(_NUMBER.finditer(text))
    if len(numbers) != 1 or _OPERATION.search(text) or _MAGNITUDE.match(text, numbers[0].end()):
        return None
    return _value(numbers[0])


def _value(match: re.Match[str]) -> Decimal:
    return Decimal(("-" if match["sign"] else "") + match["digits"].replace(",", ""))
