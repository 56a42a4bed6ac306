"""The commands' parser: TRL's, which for an unknown option names the nearest one that there is."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from trl import TrlParser

from .recipe_file import check_recipe_file


class NamingParser(TrlParser):
    """TRL's parser: `--config` names a YAML file, and the command line stands over it.

    Options are not abbreviated: a name that is cut short is no option either.

    Raises:
        ValueError: for an option, or a key of the file, that there is not, and for a file that is no valid YAML.
        OSError: if the file cannot be read.
    """

    def __init__(self, dataclass_types: Any, **kwargs: Any) -> None:
        super().__init__(dataclass_types, **{"allow_abbrev": False, **kwargs})

    def parse_args_and_config(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        words = _split_config(sys.argv[1:] if args is None else args)
        if "--config" in words:
            check_recipe_file(words[words.index("--config") + 1])
        return super().parse_args_and_config(words, *rest, **kwargs)

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


def _split_config(arguments: Sequence[str]) -> list[str]:
    """`--config=file` as TRL's parser wants it, in two words."""
    if list(arguments)[-1:] == ["--config"]:
        raise ValueError("--config is the last word: the path of a YAML file must follow it.")
    return [part for text in arguments for part in (text.split("=", 1) if text.startswith("--config=") else [text])]
