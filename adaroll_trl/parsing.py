"""The commands' parser: TRL's, which for an unknown option names the nearest one that there is."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Any

from trl import TrlParser


class NamingParser(TrlParser):
    """TRL's parser: `--config` names a YAML file, and the command line stands over it.

    Options are not abbreviated: a name that is cut short is no option either.

    Raises:
        ValueError: for an option, or a key of the file, that there is not.
    """

    def __init__(self, dataclass_types: Any, **kwargs: Any) -> None:
        super().__init__(dataclass_types, **{"allow_abbrev": False, **kwargs})

    def set_defaults_with_config(self, **kwargs: Any) -> list[str]:
        known = {action.dest for action in self._actions} - {"help"}
        for key in kwargs:
            if key not in known:
                raise ValueError(f"The config file has {key!r}, which is no option.{_nearest(key, known, self.prog)}")
        return super().set_defaults_with_config(**kwargs)

    def parse_args_into_dataclasses(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        options, unknown = self.parse_known_args(args)
        if unknown:
            raise unknown_option(self, unknown[0])
        self.prepare(options)
        return super().parse_args_into_dataclasses(args, *rest, **kwargs)

    def prepare(self, options: argparse.Namespace) -> None:
        """Called with the options before the dataclasses are made of them."""


def unknown_option(parser: argparse.ArgumentParser, given: str) -> ValueError:
    """The error for a word of the command line that no option takes, with the nearest option."""
    known = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
    return ValueError(f"{given!r} is no option.{_nearest(given.split('=')[0], known, parser.prog)}")


def _nearest(given: str, known: Iterable[str], command: str) -> str:
    near = difflib.get_close_matches(given, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else f" `{command} --help` lists them."
