"""Difficulty as text, for the command line: `0.3*beta(1,9)+0.7*beta(5,2)`, `rates(0.1,0.5)`, `demo`, `file:path`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from .difficulty import Difficulty, beta, mixture, point, rates
from .pass_counts import FITS, read_difficulty, shipped_histograms

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<name>[A-Za-z][\w.-]*)|(?P<sign>\S))"
)
_FUNCTIONS: dict[str, tuple[Callable[..., Difficulty], int | None, str]] = {
    "beta": (beta, 2, "beta(a,b) with two positive numbers, as in beta(0.5,1.5)"),
    "point": (point, 1, "point(p) with a pass rate between 0 and 1, as in point(0)"),
    "rates": (
        lambda *values: rates(values),
        None,
        "rates(p,...) with pass rates between 0 and 1, as in rates(0.1,0.5)",
    ),
}
FORMS = (
    "beta(0.5,1.5), point(0), rates(0.1,0.5), a sum such as 0.3*beta(1,9)+0.7*beta(5,2), file:PATH, or a measured "
    "histogram by name"
)


class DifficultyError(ValueError):
    """Text that is no difficulty; the message points at the place."""


def parse_difficulty(
    text: str, fit: str = "mixture", *, reward: str | None = None, threshold: float | None = None
) -> Difficulty:
    """A difficulty from text.

    Args:
        text (`str`): a sum of parts with their shares, each `beta(a,b)`, `point(p)`, `rates(p,...)` or the name of a
            measured histogram (`shipped_histograms`); or `file:PATH`, see `read_difficulty`.
        fit (`str`): how the pass rates of few rollouts become a distribution: "mixture", "beta" or "raw"
            (`PassCounts.difficulty`).
        reward (`str`, *optional*), threshold (`float`, *optional*): of a file of completions, see `read_pass_counts`.

    Raises:
        DifficultyError: for other text, with a caret below the place.
        ValueError: if a file cannot be read, or `reward` or `threshold` is given without a file.

    >>> parse_difficulty("0.3*beta(1,9) + 0.7*point(1)").mean
    0.73
    """
    if fit not in FITS:
        raise ValueError(f"fit={fit!r} is not known. Use one of {', '.join(FITS)}.")
    if text.strip().startswith("file:"):
        path = text.strip().removeprefix("file:").strip()
        if not path:
            raise ValueError(f"difficulty {text!r}: a path follows `file:`, as in file:outputs/run/completions.")
        return read_difficulty(path, fit, reward=reward, threshold=threshold)
    for name, value in (("reward", reward), ("threshold", threshold)):
        if value is not None:
            raise ValueError(f"{name}={value!r} has no effect on difficulty {text!r}: it is for file:PATH.")
    return _Parser(text, fit).parse()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, fit: str) -> None:
        self.text, self.fit = text, fit
        self.tokens: list[tuple[str, str, int]] = []
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            assert match is not None  # \S takes whatever is left
            # After a value a sign is a plus or a minus, not a number's own
            if match["number"] and match["number"][0] in "+-" and self.tokens and self.tokens[-1][1] in (")", "name"):
                match = re.compile(r"\s*(?P<sign>\S)").match(text, place)
                assert match is not None
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            place = match.end()
        self.at = 0

    def parse(self) -> Difficulty:
        if not self.tokens:
            raise self.error(0, f"a difficulty is one of {FORMS}")
        shares = [self.part()]
        while self.at < len(self.tokens):
            self.take("+", "parts are joined by '+'")
            shares.append(self.part())
        if len(shares) == 1 and shares[0][0] is None:
            return shares[0][1]
        for share, _, place in shares:
            if share is None or share <= 0:
                raise self.error(place, "each part of a sum needs its share, a positive number, as in 0.3*beta(1,9)")
        total = sum(share for share, _, _ in shares if share is not None)
        if abs(total - 1.0) > 1e-6:
            scaled = "+".join(f"{(share or 0.0) / total:.4g}*{one.label}" for share, one, _ in shares)
            raise self.error(0, f"the shares add up to {total:g}, not to 1. Did you mean {scaled}?")
        return mixture([(share, one) for share, one, _ in shares if share is not None])

    def part(self) -> tuple[float | None, Difficulty, int]:
        kind, word, place = self.peek()
        share = None
        if kind == "number":
            self.at += 1
            share = float(word)
            self.take("*", "a share is followed by '*', as in 0.3*beta(1,9)")
            kind, word, name_place = self.peek()
        else:
            name_place = place
        if kind != "name":
            raise self.error(name_place, f"here a part begins: {FORMS}")
        self.at += 1
        if self.at < len(self.tokens) and self.tokens[self.at][1] == "(":
            return share, self.call(word, name_place), place
        return share, self.named(word, name_place), place

    def call(self, name: str, place: int) -> Difficulty:
        if name not in _FUNCTIONS:
            raise self.unknown(name, place, [])
        build, arity, form = _FUNCTIONS[name]
        self.take("(", form)
        values: list[float] = []
        while True:
            kind, word, at = self.peek()
            if kind != "number":
                raise self.error(at, f"a number belongs here: {form}")
            values.append(float(word))
            self.at += 1
            if self.peek()[1] == ")":
                break
            self.take(",", form)
        self.at += 1
        if arity is not None and len(values) != arity:
            raise self.error(place, f"{name} takes {arity} number{'s' * (arity > 1)}, not {len(values)}: {form}")
        try:
            return build(*values)
        except ValueError as error:
            raise self.error(place, str(error)) from error

    def named(self, name: str, place: int) -> Difficulty:
        known = shipped_histograms()
        if name not in known:
            raise self.unknown(name, place, list(known))
        return read_difficulty(known[name], self.fit, label=name)

    def unknown(self, name: str, place: int, measured: list[str]) -> DifficultyError:
        near = _nearest(name, [*_FUNCTIONS, *measured])
        forms = f" A difficulty is one of {FORMS}: {', '.join(shipped_histograms())}."
        return self.error(place, f"{name!r} is not known.{near or forms}")

    def peek(self) -> tuple[str, str, int]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "", len(self.text.rstrip()))

    def take(self, sign: str, why: str) -> None:
        _, word, place = self.peek()
        if word != sign:
            raise self.error(place, f"expected {sign!r}: {why}")
        self.at += 1

    def error(self, place: int, why: str) -> DifficultyError:
        return DifficultyError(f"difficulty {self.text!r}: {why}\n  {self.text}\n  {' ' * place}^")


def _nearest(given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given.lower(), known, n=1, cutoff=0.5)
    if not near:
        return ""
    form = _FUNCTIONS[near[0]][2] if near[0] in _FUNCTIONS else near[0]
    return f" Did you mean {form}?"
