r"""How a completion is compared with a gold answer: five kinds of answers, by name.

Each verifier looks for the answer that a completion marks as final, the last one if there are several:

| verifier | marks, the stronger ones first | without a mark |
|---|---|---|
| `number` | `\boxed{}` and `####`; "answer" before a number | the last number |
| `math` | `\boxed{}`; "answer" | no answer |
| `letter` | `\boxed{}`; "answer"; a last line of one letter; "option" or "choice" | a last line `B. ...` |
| `yes_no` | `\boxed{}`; "answer" before yes or no | the last line like `Yes`, `No, ...`, `So: No` |
| `text` | `\boxed{}`; "answer:" | the last line |

Behind these words stands "is" or ":"; `<answer>...</answer>` is a mark like "answer:". A statement is the box, or what
stands behind the mark on its line. One that holds no answer, or several ("5 or 6", "A, B", "yes and no"), is no
answer: the completion is wrong, whatever it says before. `docs/tasks.md` has the rules in full.

Thinking up to `</think>` is not looked at.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from decimal import Decimal
from typing import ClassVar

from .answers import as_number, final_part, find_last_box, first_number, last_line, last_number, only_number

__all__ = ["ChoiceVerifier", "LetterVerifier", "NumberVerifier", "TextVerifier", "Verifier", "YesNoVerifier"]

# Quantifiers are possessive where two of them could share a run of characters: no text makes these patterns slow.
_IS = (  # between "answer" and the answer, markdown included
    r"[*_ ]*+(?:\b(?:is|must be)\b|:)[*_:\s]*+"
    r"(?:(?:definitely|clearly|simply|therefore|thus|exactly|about|approximately)\b[:,\s]*+)?+"
)
_ANSWER = rf"(?:<answer>\s*+|\banswer{_IS})"
_WRAP = r"(?:\\?[$(\[{*_\"'`\u201c]|\\(?:text|textbf|mathrm|mathbf)\b)*+"  # what may stand before it
_DIGIT = r"(?=[-\u2212]?\\?[$€£]?\.?[0-9])"  # a number begins here
_PHRASE = re.compile(_ANSWER, re.IGNORECASE)
# A line that begins so states an answer, whatever follows.
_HEADING = re.compile(
    r"^[ \t*_#>]*+(?:the )?(?:final |correct )?answer[*_ ]*+(?:\bis[*_ ]*+)?:[*_\s]*+",
    re.IGNORECASE | re.MULTILINE,
)
_REASON = re.compile(r"\b(?:because|since|(?<!well )as(?! well)|not|rather|which|while|whereas)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?][*_\"')]*\s")


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
    _STATED = re.compile(
        rf"{_ANSWER}(?:{_WRAP}{_DIGIT}|(?=[$\s]*[-\u2212]?\\[dt]?(?:frac|sqrt)\b)|(?=(?:between|from|either)\s+\S?[0-9]))",
        re.IGNORECASE,
    )
    _LINKED = re.compile(  # a list, a range or a calculation without its result
        r"(?:\W|\b(?:or|and|to|maybe|perhaps|possibly|x|times|plus|minus|over)\b|\\[a-z]+)*+[0-9]"
        r"|.*?\b(?:or|and|to)\b\W*+(?:(?:maybe|perhaps|possibly)\W+)?[0-9]",
        re.IGNORECASE | re.DOTALL,
    )

    def find(self, text: str) -> str | None:
        box, hashes = find_last_box(text), _last(self._HASHES, text)
        if box is not None and (hashes is None or box[0] > hashes.start()):
            return _spell(only_number(box[1]))
        if hashes is not None:
            return _spell(only_number(hashes[1].rstrip("! ")))
        stated = _last(self._STATED, text)
        if stated is not None:
            return _spell(self._number(_sentence(_rest(text, stated))))
        return _spell(last_number(text))

    def _number(self, statement: str) -> Decimal | None:
        """Of "18 eggs for 3 people" the first number, behind the last `=`; of two that are linked none."""
        value = only_number(statement)
        if value is not None:
            return value
        first = first_number(statement.rsplit("=", 1)[-1])
        return None if first is None or self._LINKED.match(first[1]) else first[0]

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


class ChoiceVerifier(Verifier):
    """One of a few words: in a box, behind "answer", or as `_unmarked` finds it."""

    _ONE: ClassVar[re.Pattern[str]]  # what a box holds
    _STATED: ClassVar[re.Pattern[str]]  # "answer" and the word

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        if box is not None:
            inside = box[1].strip()
            return self._single(self._ONE.match(inside), inside)
        stated, heading = _last(self._STATED, text), _last(_HEADING, text)
        if stated is not None or heading is not None:
            return None if _later(heading, stated) else self._single(stated, text)
        return self._unmarked(text)

    @abstractmethod
    def _unmarked(self, text: str) -> str | None:
        """The answer of a text without a box and without "answer"."""

    @abstractmethod
    def _single(self, match: re.Match[str] | None, text: str) -> str | None:
        """The word that was matched, unless what follows in the statement names another."""


class LetterVerifier(ChoiceVerifier):
    """The letter of an option, A to Z."""

    name = "letter"
    instruction = 'Think it through, then end with a line "Answer: X", where X is the letter of the right option.'

    _LETTER = r"(?i:option\s+)?\(?(?:([A-Z])(?![\w'\u2019])|([a-z])(?=[^\w\n]*(?:\n|$|</answer>)))"
    _ONE = re.compile(rf"{_WRAP}(?i:option\s+)?\(?([A-Za-z])\b(?=[^A-Za-z0-9]*(?:[.:)]\s.*)?\Z)", re.DOTALL)
    _STATED = re.compile(rf"(?i:{_ANSWER}){_WRAP}{_LETTER}")
    _WEAK = re.compile(rf"(?<!other )(?<!not )\b(?i:option|choice){_IS}{_WRAP}{_LETTER}")
    _ALONE = re.compile(r"[*_(\"'$\s]*([A-Za-z])[*_\"'$\s.)]*")
    _LINE = re.compile(r"[*_(\"'$\s]*([A-Za-z])[*_\"'$\s]*[.):][*_\"'\s]*(?:\s.*)?")
    _CORRECT = re.compile(
        r"(?:(?i:so|thus|hence|therefore),?\s+)?(?:(?i:option)\s+)?\(?([A-Z])\)?\s+is\s+(?:the\s+)?(?:correct|right)"
        r"(?:\s+(?:answer|option|choice))?\.?"
    )
    # Behind "B" any other letter is one too many; behind "B." stands the option's text, which may name letters.
    _LABEL = re.compile(r"[*_\"']*(?:[.:)]+[*_\"'})]*(?:\s|$))")
    _OTHER = re.compile(r"(?<![\w'\u2019])[A-HJ-Z](?![\w'\u2019])")
    _SECOND_LABEL = re.compile(
        r"^\W*[A-Z]\W*$|(?<![\w'\u2019])[A-HJ-Z](?:\)|[.:]\s+\S)|\bor\s+(?:option\s+)?\(?[A-HJ-Z]\W*$"
    )
    _WRONG = re.compile(r"\W*\bis\s+(?:not|wrong|false|incorrect)\b")

    def _unmarked(self, text: str) -> str | None:
        line = last_line(text)
        alone = self._ALONE.fullmatch(line)
        weak = None if alone else _last(self._WEAK, text)
        if weak is not None:
            return self._single(weak, text)
        match = alone or self._CORRECT.fullmatch(line) or self._LINE.fullmatch(line)
        return self._single(match, line)

    def _single(self, match: re.Match[str] | None, text: str) -> str | None:
        """The letter that was matched, unless what follows names another as an option."""
        if match is None:
            return None
        letter = match.group(match.lastindex or 1)
        rest = text[match.end(match.lastindex or 1) :].split("</answer>", 1)[0]
        rest = rest if match.re is self._ONE else rest.split("\n", 1)[0]
        if label := self._LABEL.match(rest):
            several = self._SECOND_LABEL.search(rest[label.end() :])
        else:
            several = self._OTHER.search(_sentence(rest)) or self._WRONG.match(rest)
        return None if several else letter.upper()

    def same(self, given: str, answer: str) -> bool:
        return given.upper() == _bare(answer).upper()

    def readable(self, answer: str) -> bool:
        return re.fullmatch(r"[A-Za-z]", _bare(answer)) is not None


class YesNoVerifier(ChoiceVerifier):
    """Yes or no; true and false mean the same."""

    name = "yes_no"
    instruction = 'Think it through, then end with a line "Answer: Yes" or "Answer: No".'

    _WORDS: ClassVar[dict[str, str]] = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
    # "no" as in "no idea" is none; behind it stands a pause or the start of a reason.
    _WORD = (
        r"(yes|true|false|no(?!\.?\s*[0-9]|-\w)(?=\W*$|\s*[^\w\s]|\s*\n"
        r"|\s+(?:because|since|as|or|and|he|she|it|they|there|this|that|the)\b))\b"
    )
    _ONE = re.compile(rf"{_WRAP}{_WORD}", re.IGNORECASE)
    _STATED = re.compile(rf"{_ANSWER}{_WRAP}{_WORD}", re.IGNORECASE)
    _LINE = re.compile(
        rf"^[ \t]*(?:(?:so|thus|hence|therefore)[,:]?\s+)?{_WRAP}{_WORD}"
        r"[*_\"')]*(?:[.,:;!]|$|(?=\s*[-|/]|\s+(?:or|and)\b))",
        re.IGNORECASE | re.MULTILINE,
    )
    # The other word: directly behind the first, or later where "no" does not belong to a noun.
    _LINKED = re.compile(
        r"(?:\W|\b(?:or|and|maybe|perhaps|possibly|also)\b)*+(yes|no|true|false)\b(?!\s+\w)", re.IGNORECASE
    )
    _LATER = re.compile(r"\b(yes|no)\b(?=\W*$|\s*[,.;:!|/)])", re.IGNORECASE)

    def _unmarked(self, text: str) -> str | None:
        return self._single(_last(self._LINE, text), text)

    def _single(self, match: re.Match[str] | None, text: str) -> str | None:
        if match is None:
            return None
        word = self._WORDS[match[1].lower()]
        rest = text[match.end(1) :].split("</answer>", 1)[0].split("\n", 1)[0]
        linked = self._LINKED.match(rest)
        others = [*([linked[1]] if linked else []), *self._LATER.findall(rest)]
        return None if any(self._WORDS[other.lower()] != word for other in others) else word

    def same(self, given: str, answer: str) -> bool:
        return given == self._WORDS.get(_bare(answer))

    def readable(self, answer: str) -> bool:
        return _bare(answer) in self._WORDS


class TextVerifier(Verifier):
    """Any words, without regard to case, quotation marks, emphasis and a full stop."""

    name = "text"
    instruction = 'End with a line "Answer: " and the answer, nothing else.'

    _STATED = re.compile(r"(?:<answer>|\banswer[*_ ]*:)[*_\s]*([^\n]*)", re.IGNORECASE)

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        if box is not None:
            found = box[1]
        else:
            stated = _last(self._STATED, text)
            found = stated[1].split("</answer>", 1)[0] if stated else last_line(text).rsplit("####", 1)[-1]
        return found.strip() or None

    def same(self, given: str, answer: str) -> bool:
        return _bare(given) == _bare(answer)

    def readable(self, answer: str) -> bool:
        return bool(_bare(answer))


def phrase_tail(text: str) -> str | None:
    """What follows the last "answer is" or "answer:" on its line, or on the next, displayed mathematics as a whole;
    None without one."""
    stated = _last(_PHRASE, text)
    if stated is None:
        return None
    for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
        if text.startswith(opening, stated.end()):
            inside, closed, _ = text[stated.end() + 2 :].partition(closing)
            return f"${inside.strip()}$" if closed else ""
    return _rest(text, stated)


def _rest(text: str, mark: re.Match[str]) -> str:
    """What follows a mark on its line."""
    return text[mark.end() :].split("\n", 1)[0].split("</answer>", 1)[0]


def _sentence(statement: str) -> str:
    """A statement up to the end of its sentence or up to its reason."""
    return _REASON.split(_SENTENCE.split(statement + " ", maxsplit=1)[0], maxsplit=1)[0]


def _later(heading: re.Match[str] | None, stated: re.Match[str] | None) -> bool:
    """Whether the last line that begins with "Answer:" states nothing, and no answer is stated behind it."""
    return heading is not None and (stated is None or stated.end() < heading.end())


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _spell(value: object) -> str | None:
    return None if value is None else format(value, "f")


def _bare(text: str) -> str:
    return text.strip().strip(".*\"'` ()").casefold()
