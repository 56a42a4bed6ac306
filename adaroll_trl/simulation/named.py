"""The utilities and allocators that the options of a command name: this package's, and a user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..allocators.base import Allocator
from ..utilities import UTILITY_NAMES, Utility, as_utility, make_utility


def named_utilities(names: Sequence[str], kappas: Sequence[float]) -> list[Utility]:
    """The utilities that `--utility` names, `progress` once for each of `--kappa`.

    Raises:
        ValueError: for a name that is none, a function that cannot be used, or a kappa that nothing reads.
    """
    if kappas and "progress" not in names:
        raise ValueError(
            f"--kappa {kappas[0]:g} has no effect with --utility {' '.join(names)}: only progress reads it."
        )
    found = []
    for name in names:
        if ":" in name:
            from ..config import load_by_path  # imports TRL: seconds

            found.append(as_utility(load_by_path("--utility", name)))
        elif name not in UTILITY_NAMES:
            known = ", ".join(UTILITY_NAMES)
            raise ValueError(f"--utility {name} is not known. Use one of {known}, or package.module:function.")
        elif name == "progress" and kappas:
            found += [make_utility(name, kappa=kappa) for kappa in kappas]
        else:
            found.append(make_utility(name))
    return found


def named_allocators(
    names: Sequence[str], arguments: Mapping[str, Any] | None
) -> dict[str, Callable[[str | Utility], Allocator]]:
    """Those of `--allocators` that are a user's own or have options: from a utility to a new allocator.

    Raises:
        ValueError: for a name that is none or given twice, and for options that it does not take.
    """
    from ..allocators import ALLOCATOR_NAMES, check_own_options, make_allocator

    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--allocators {name} is given twice: give each once.")
        if name not in ALLOCATOR_NAMES and ":" not in name:
            known = ", ".join(ALLOCATOR_NAMES)
            raise ValueError(f"--allocators {name} is not known. Use any of {known}, or package.module:Class.")
    others = [name for name in names if name != "uniform"]
    if arguments is not None and len(others) != 1:
        raise ValueError(
            f"--allocator-kwargs {json.dumps(arguments)} are the options of one allocator: name it, and at most "
            "uniform beside it, with --allocators."
        )
    make: dict[str, Callable[[str | Utility], Allocator]] = {}
    for name in others:
        if ":" in name:
            from ..planner import load_allocator  # imports TRL: seconds

            make[name] = lambda utility, path=name: load_allocator(path, arguments or {}, "--allocators")  # type: ignore[misc]
        elif arguments is not None:
            check_own_options(name, arguments)
            make[name] = lambda utility, name=name: make_allocator(name, utility=utility, **arguments)  # type: ignore[misc]
        if name in make:
            make[name]("mixed")  # what it refuses is said before the first is played
    return make
