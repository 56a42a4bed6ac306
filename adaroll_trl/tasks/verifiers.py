r"""How a completion is compared with a gold answer: five kinds of answers, by name.

Each verifier looks for the answer that a completion marks as final, the last one if there are several:

| verifier | marks, the stronger ones first | without a mark |
|---|---|---|
| `number` | `\boxed{}` and `####`; "answer is" or "answer:" before a number | the last number |
| `math` | `\boxed{}`; "answer is" or "answer:" | no answer |
| `letter` | `\boxed{}`; "answer", "option" or "choice", then "is" or ":" and a letter | a last line `B` or `B. ...` |
| `yes_no` | `\boxed{}`; "answer is" or "answer:" before yes or no | the last line like `Yes` or `No, ...` |
| `text` | `\boxed{}`; "answer:" | the last line |

A mark that holds no answer, or more than one ("5 or 6"), is no answer: the completion is wrong, whatever it says
before. Thinking up to `</think>` is not looked at.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from .answers import as_number, final_part, find_last_box, last_line, numbers_in, only_number

# Quantifiers are possessive where two of them could share a run of characters: no text makes these patterns slow.
_IS = r"[*_ ]*+(?:\bis\b|:)[*_:\s]*+"  # between "answer" and the answer, markdown included
_WRAP = r"(?:\\?[$(\[{*_\"'\u201c]|\\(?:text|textbf|mathrm|mathbf)\b)*+"  # what may stand before it
_DIGIT = r"(?=[-\u2212]?\\?[$€£]?\.?[0-9])"  # a number begins here
_PHRASE = re.compile(rf"\banswer{_IS}", re.IGNORECASE)


class Verifier(ABC):
    """One way of telling right from wrong. Neither method raises on any text.

    Attributes:
        name (`str`): what `verifier=` of `ColumnTask` takes.
        instruction (`str`): asks for the mark that this verifier looks for.
    """

    name: ClassVar[str]
    instruction: ClassVar[str] = ""

    def extract(self, completion: str) -> str | None:
        """The answer that a completion gives, or None if it gives none."""
        return self.find(final_part(completion))

    def verify(self, completion: str, answer: str) -> bool:
        """Whether the completion's answer is the gold answer."""
        given = self.extract(completion)
        return given is not None and self.same(given, answer)

    @abstractmethod
    def find(self, text: str) -> str | None:
        """The answer in the end of a completion, at most `answers.TAIL` characters."""

    @abstractmethod
    def same(self, given: str, answer: str) -> bool:
        """Whether an extracted answer is the gold answer."""

    @abstractmethod
    def readable(self, answer: str) -> bool:
        """Whether this gold answer is of the verifier's kind."""


class NumberVerifier(Verifier):
    """Numbers by value: exactly, or for a gold answer with decimals within a millionth of it.

    Currency signs, percent signs, units and thousands commas do not count.
    """

    name = "number"
    instruction = "Solve it step by step, then put the final number in \\boxed{}."

    # A heading such as "#### 2. Add" is not a mark.
    _HASHES = re.compile(rf"####\s*+{_WRAP}{_DIGIT}(?![0-9]+[.):]\s*[A-Za-z])((?:(?!####)[^\n])*)")
    _STATED = re.compile(rf"\banswer{_IS}{_WRAP}{_DIGIT}", re.IGNORECASE)
    _MORE = re.compile(r"[^\s+*/=\u00d7\u00f7]+(?:\s+(?:or|and)\s+\S*[0-9]|\s*[-+*/=\u00d7\u00f7]\s*[$(\\]?[0-9])")

    def find(self, text: str) -> str | None:
        box, hashes = find_last_box(text), _last(self._HASHES, text)
        if box is not None and (hashes is None or box[0] > hashes.start()):
            return _spell(only_number(box[1]))
        if hashes is not None:
            return _spell(only_number(hashes[1]))
        stated = _last(self._STATED, text)
        if stated is not None:
            rest = text[stated.end() :].split("\n", 1)[0]
            return _spell(only_number(rest) if self._MORE.match(rest) else numbers_in(rest)[0])
        numbers = numbers_in(text)
        return _spell(numbers[-1]) if numbers else None

    def same(self, given: str, answer: str) -> bool:
        value, gold = as_number(given), as_number(answer)
        if value is None or gold is None:
            return False
        if value == gold:
            return True
        whole = gold == gold.to_integral_value()
        return not whole and abs(float(value) - float(gold)) <= 1e-6 * min(1.0, abs(float(gold)))

    def readable(self, answer: str) -> bool:
        return as_number(answer) is not None


class LetterVerifier(Verifier):
    """The letter of an option, A to Z."""

    name = "letter"
    instruction = 'Think it through, then end with a line "Answer: X", where X is the letter of the right option.'

    _ONE = re.compile(rf"{_WRAP}(?i:option\s+)?\(?([A-Za-z])\b[^A-Za-z0-9]*(?:[.:)]\s.*)?", re.DOTALL)
    _STATED = re.compile(
        rf"\b(?i:answer|option|choice){_IS}{_WRAP}(?i:option\s+)?\(?"
        r"(?:([A-Z])(?![\w'\u2019])|([a-z])(?=[^\w\n]*(?:\n|$)))"
        r"(?P<other>(?:\W{0,4}\b(?:or|and)\b\W{1,4}|\W{0,3}[/,&]\W{0,4})[A-HJ-Z](?![\w'\u2019]))?"
    )
    _LINE = re.compile(r"[*_(\"'$\s]*([A-Za-z])(?:[*_\"'$\s]*[.):][*_\"'\s]*(?:\s.*)?|[*_\"'$\s]*)")

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        if box is not None:
            match = self._ONE.fullmatch(box[1].strip())
            return match[1].upper() if match else None
        stated = _last(self._STATED, text)
        if stated is not None:
            return None if stated["other"] else str(stated[1] or stated[2]).upper()
        match = self._LINE.fullmatch(last_line(text))
        return match[1].upper() if match else None

    def same(self, given: str, answer: str) -> bool:
        return given.upper() == _bare(answer).upper()

    def readable(self, answer: str) -> bool:
        return re.fullmatch(r"[A-Za-z]", _bare(answer)) is not None


class YesNoVerifier(Verifier):
    """Yes or no; true and false mean the same."""

    name = "yes_no"
    instruction = 'Think it through, then end with a line "Answer: Yes" or "Answer: No".'

    _WORDS: ClassVar[dict[str, str]] = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
    _WORD = r"(yes|no|true|false)\b(?P<other>\W{0,4}(?:\bor\b|/)\W{0,4}(?:yes|no|true|false)\b)?"
    _ONE = re.compile(rf"{_WRAP}{_WORD}", re.IGNORECASE)
    _STATED = re.compile(rf"\banswer{_IS}{_WRAP}{_WORD}", re.IGNORECASE)
    _LINE = re.compile(rf"^[ \t]*{_WRAP}{_WORD}[*_\"')]*(?:[.,:;!]|$)", re.IGNORECASE | re.MULTILINE)

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        match = self._ONE.match(box[1].strip()) if box is not None else _last(self._STATED, text)
        if match is None and box is None:
            match = _last(self._LINE, text)
        return self._WORDS[match[1].lower()] if match and not match["other"] else None

    def same(self, given: str, answer: str) -> bool:
        return given == self._WORDS.get(_bare(answer))

    def readable(self, answer: str) -> bool:
        return _bare(answer) in self._WORDS


class TextVerifier(Verifier):
    """Any words, without regard to case, quotation marks, emphasis and a full stop."""

    name = "text"
    instruction = 'End with a line "Answer: " and the answer, nothing else.'

    _STATED = re.compile(r"\banswer[*_ ]*:[*_\s]*([^\n]*)", re.IGNORECASE)

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        if box is not None:
            found = box[1]
        else:
            stated = _last(self._STATED, text)
            found = stated[1] if stated else last_line(text).rsplit("####", 1)[-1]
        return found.strip() or None

    def same(self, given: str, answer: str) -> bool:
        return _bare(given) == _bare(answer)

    def readable(self, answer: str) -> bool:
        return bool(_bare(answer))


def phrase_tail(text: str) -> str | None:
    """What follows the last "answer is" or "answer:" on its line, or on the next; None without one."""
    stated = _last(_PHRASE, text)
    return text[stated.end() :].split("\n", 1)[0] if stated else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _spell(value: object) -> str | None:
    return None if value is None else format(value, "f")


def _bare(text: str) -> str:
    return text.strip().strip(".*\"'` ()").casefold()
