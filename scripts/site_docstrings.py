"""A griffe extension for the site's API pages: the sections of this project's docstrings, as Markdown.

griffe's own parsers read one name and a Python type in front of the colon. Here, as in Hugging Face's style, stand
several names and prose with Markdown in it, `low, high (array of shape (n,), *optional*): text`, which they tear apart
or show with its backticks. So the sections become Markdown lists, and griffe is told to parse nothing
(`docstring_style: null` in mkdocs.yml); the types as Python knows them are in the signature.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import griffe

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?: {4}.*(?:\n|\Z)|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"(?P<names>\*{0,2}\w[\w., *]*?)(?: \((?P<type>.*?)\))?:\s", re.DOTALL)
_REFERENCE = re.compile(r"\[`~?([\w.]+)`\]")  # a link to a name, in Hugging Face's style
_DOCTEST = re.compile(r"^(?P<indent> *)>>> (?:.+(?:\n|\Z))+", re.MULTILINE)


def to_markdown(docstring: str) -> str:
    r"""The docstring with its sections as headed lists, its doctests as code blocks, and names as code.

    >>> print(to_markdown("Sum, as [`~math.fsum`].\n\nArgs:\n    a, b (`int`): what to add,\n        in any order.\n"))
    Sum, as `math.fsum`.
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    - `a`, `b` (`int`): what to add,
        in any order.
    """
    return _DOCTEST.sub(_fence, _SECTION.sub(_section, _REFERENCE.sub(r"`\1`", docstring))).strip()


def _section(match: re.Match[str]) -> str:
    heading, body = match[1], textwrap.dedent(match[2]).strip("\n")
    if heading not in ("Returns", "Yields"):
        body = "\n".join(_entry(entry) for entry in re.split(r"\n(?=\S)", body))
    return f"**{heading}**\n\n{body}\n\n"


def _entry(entry: str) -> str:
    """One name of a section, or several, with the lines that belong to it; at the margin."""
    head = _ENTRY.match(entry)
    if head is None:
        return f"- {entry}"
    names = ", ".join(f"`{name.strip()}`" for name in head["names"].split(","))
    of_type = f" ({' '.join(head['type'].split())})" if head["type"] else ""
    return f"- {names}{of_type}: {entry[head.end() :]}"


def _fence(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"


class Docstrings(griffe.Extension):
    """Rewrites every docstring that griffe loads; the `help` of a config's field becomes one."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if attr.docstring is not None or not isinstance(attr.value, griffe.ExprCall):
            return
        given = {part.name: part.value for part in attr.value.arguments if isinstance(part, griffe.ExprKeyword)}
        metadata = given.get("metadata")
        if not isinstance(metadata, griffe.ExprDict):
            return
        named = dict(zip(map(str, metadata.keys), metadata.values, strict=True))
        text = ast.parse(str(named.get("'help'")), mode="eval").body
        if isinstance(text, ast.Constant) and text.value is not None:  # not an f-string, which no public config has
            attr.docstring = griffe.Docstring(text.value, parent=attr)
            attr.value = given.get("default")

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
