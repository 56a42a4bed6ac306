"""The process that compares mathematics; a script, started by `limits.LimitedProcess`.

One JSON object a line: {"gold": LaTeX, "given": LaTeX or null} in, {"readable": bool, "right": bool} out. `readable`
is whether the gold answer can be parsed. It imports neither torch nor this package, and may be killed at any time.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from functools import lru_cache
from typing import Any

MEMORY_LIMIT = 4 << 30  # bytes of address space: 10^{10^{10}} is to fail here, not to fill the machine
_BASE = re.compile(r"_\{?([0-9]+)\}?$")  # a numeral in another base, 2516_{8}


def limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    except (ImportError, ValueError, OSError):  # no such limit on this system: the time limit is left
        pass


def limit_seconds(seconds: float) -> None:
    """From now on this process may compute for so long, then the system ends it; 0 lifts the limit.

    Processor time: verdicts do not depend on what else runs on the machine, and a process whose parent is gone ends.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


@lru_cache(maxsize=4096)
def parsed(latex: str) -> list[Any]:
    """What math-verify makes of an answer: a sympy expression and its text, or only the text, or nothing."""
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return list(parse(rf"\boxed{{{latex}}}", extraction_config=config, parsing_timeout=None))


def comparable(gold: Any, given: Any) -> bool:
    """Whether two parsed answers are of kinds that can be equal. math-verify takes the interval (1, 2), which is also
    how it reads the pair (1, 2), for equal to the set {2, 1}."""
    from latex2sympy2_extended.sets import FiniteSet as ParsedSet
    from sympy import FiniteSet, Interval, Tuple

    ordered = [isinstance(one, (Interval, Tuple)) for one in (gold, given)]
    unordered = [isinstance(one, (FiniteSet, ParsedSet)) for one in (gold, given)]
    return not ((ordered[0] and unordered[1]) or (ordered[1] and unordered[0]))


def same(gold: str, given: str) -> bool:
    from math_verify import verify

    gold_base, given_base = _BASE.search(gold), _BASE.search(given)
    if gold_base and given_base and gold_base[1] != given_base[1]:
        return False  # math-verify drops the base
    first, second = parsed(gold), parsed(given)
    if not first or not second or not comparable(first[0], second[0]):
        return False
    return bool(verify(first, second, timeout_seconds=None))


def answer(request: dict[str, Any]) -> dict[str, bool]:
    try:
        readable = any(not isinstance(one, str) for one in parsed(request["gold"]))
        right = readable and request["given"] is not None and same(request["gold"], request["given"])
    except Exception:  # sympy on odd input, and MemoryError
        return {"readable": True, "right": False}
    return {"readable": readable, "right": right}


def main() -> None:
    limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    time_limit = float(sys.argv[1])
    try:
        same("1", "1")  # imports, and builds the parser's tables
    except ImportError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    logging.disable(logging.CRITICAL)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        limit_seconds(time_limit)
        reply = answer(json.loads(line))
        limit_seconds(0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
