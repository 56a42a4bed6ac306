r"""Mathematical expressions, compared by math-verify within a time limit.

What counts as the same is math-verify's: value, not form (`\frac{1}{2}` and `0.5`), up to 6 decimals; sets and lists
in any order; intervals with their kind of brackets; `x = 5` and `5`; units, degrees and currency do not count, and
`50\%` is both 50 and 0.5. Two things are stricter here: an ordered pair or interval is not the set of its ends, and
numerals in two different bases differ.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from .answers import as_number, find_last_box
from .limits import LimitedProcess
from .verifiers import Verifier, phrase_tail

__all__ = ["MathVerifier"]

LONGEST = 1_000  # characters of an answer that are worth parsing; gold answers of MATH have at most some 150
TIME_LIMIT = 5.0  # seconds of processor time for one comparison; most take some hundredths

_DOLLARS = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_NOISE = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;: ]|[\s$]")
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_SENTENCE = re.compile(r"\.\s+(?=[A-Z])")
_REMAINDER = re.compile(r"\\[bp]?mod(?![a-z])")
_TWO_PARTS = re.compile(r"[0-9][^0-9]*\b(?:and|or)\b[^0-9]*[0-9]")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def require_math_verify() -> None:
    """
    Raises:
        ImportError: if math-verify is not installed, with the command that installs it.
    """
    if find_spec("math_verify") is None:
        raise ImportError(
            "Mathematical answers are compared by math-verify, which is not installed: "
            'pip install "adaroll_trl[math]", or pip install "math-verify>=0.8".'
        )


class MathVerifier(Verifier):
    """LaTeX by value, see the module.

    The comparison runs in a process of its own, started at the first question; an answer that keeps it busy for longer
    than the limit is wrong, with one warning in all.

    Args:
        time_limit (`float`): seconds of processor time for one comparison, above 0.

    Raises:
        ImportError: at the first comparison, if math-verify is not installed.
    """

    name = "math"
    instruction = "Solve it step by step, then put the final answer in \\boxed{}."

    def __init__(self, time_limit: float = TIME_LIMIT):
        if not time_limit > 0:
            raise ValueError(f"time_limit={time_limit!r} must be a number of seconds above 0.")
        self.process = LimitedProcess(Path(__file__).with_name("math_worker.py"), time_limit)
        self.time_limit = time_limit
        self.late = 0  # comparisons that were stopped
        # A group of rollouts gives the same few answers again and again.
        self._ask = lru_cache(maxsize=65_536)(self._ask_once)

    def find(self, text: str) -> str | None:
        box = find_last_box(text)
        found = box[1] if box is not None else _unwrapped(phrase_tail(text) or "")
        found = found.strip()
        return found if found and len(found) <= LONGEST and _balanced(found) else None

    def same(self, given: str, answer: str) -> bool:
        if not self.readable(answer):
            return False
        if as_number(answer) is not None and _not_one_number(given):
            return False
        return _plain(given) == _plain(answer) or self._ask(answer, given)[1]

    def readable(self, answer: str) -> bool:
        """Whether math-verify can parse the gold answer."""
        return 0 < len(answer) <= LONGEST and _balanced(answer) and self._ask(answer, None)[0]

    def _ask_once(self, gold: str, given: str | None) -> tuple[bool, bool]:
        """(gold is readable, given is right)."""
        require_math_verify()
        reply = self.process.ask({"gold": gold, "given": given})
        if reply is None:
            self.late += 1
            if self.late == 1:
                warnings.warn(
                    f"math-verify did not come to an end within {self.time_limit:g} s with the gold answer "
                    f"{gold[:80]!r} and the answer {(given or '')[:80]!r}, which counts as wrong. Later ones are not "
                    "reported.",
                    stacklevel=2,
                )
            return given is not None, False
        return bool(reply["readable"]), bool(reply["right"])


def _unwrapped(text: str) -> str:
    """The mathematics of a line of prose: what its dollars hold, or all of it without the full stop; empty if several
    pairs of dollars leave open which one it is."""
    held = ["".join(groups) for groups in _DOLLARS.findall(text)]
    if held:
        return held[0] if len(held) == 1 else ""
    return _SENTENCE.split(text.strip(), maxsplit=1)[0].strip("*_").rstrip(".").strip()


def _not_one_number(latex: str) -> bool:
    """Forms of which math-verify reads one number and drops the rest: `5=6`, `5 \\mod 6`, "5 hours and 30 minutes"."""
    bare = _TEXT.sub(r" \1 ", latex)
    sides = [as_number(side) for side in bare.split("=")]
    unequal = len({side for side in sides if side is not None}) > 1
    return unequal or _REMAINDER.search(bare) is not None or _TWO_PARTS.search(bare) is not None


def _plain(latex: str) -> str:
    r"""An answer without spacing and `\text`, to compare words ("June 20") and to spare the parser what is equal."""
    bare = _NOISE.sub("", _TEXT.sub(r"\1", latex)).rstrip(".")
    return _FRACTION.sub(r"\\frac", bare).replace(r"\varnothing", r"\emptyset")


def _balanced(latex: str) -> bool:
    depth = 0
    for brace in _BRACES.findall(latex):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0
