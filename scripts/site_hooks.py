"""Hooks of mkdocs for the site: the API pages, and links that lead out of docs/.

The Markdown in docs/ is written for a code-hosting site, where `../adaroll_trl/weights.py` is a file one can click on.
The site has no such file. If pyproject.toml names a repository (`[project.urls]`, "Repository"), the link leads there;
without one it becomes the file's path as code, which a reader with a clone can open, and never a dead link.

An API page has the public names of a module, its `__all__`, so a new name is on it without an edit here. The pages
exist in the site only: in docs/ they would be lists of names without text.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY: str | None = PROJECT.get("urls", {}).get("Repository")

API = {  # page: title, modules
    "api/trainer.md": ("API: trainer", ["adaroll_trl"]),
    "api/config.md": ("API: config", ["adaroll_trl.config"]),
    "api/callbacks.md": ("API: callbacks", ["adaroll_trl.callbacks", "adaroll_trl.batch"]),
    "api/tasks.md": (
        "API: tasks",
        ["adaroll_trl.tasks", "adaroll_trl.tasks.verifiers", "adaroll_trl.tasks.mathematics"],
    ),
    "api/allocators.md": (
        "API: allocators",
        ["adaroll_trl.allocators", "adaroll_trl.allocators.integers", "adaroll_trl.checks"],
    ),
    "api/solver.md": ("API: solvers", ["adaroll_trl.solver"]),
    "api/advantages.md": ("API: advantages", ["adaroll_trl.advantages"]),
    "api/weights.md": ("API: weights of prompts", ["adaroll_trl.weights"]),
    "api/simulation.md": ("API: simulation", ["adaroll_trl.simulation"]),
    "api/noise.md": ("API: noise of gradients", ["adaroll_trl.noise"]),
    "api/plots.md": ("API: plots", ["adaroll_trl.plots"]),
    "api/gpu_check.md": ("API: GPU check", ["adaroll_trl.gpu_check.context"]),
}

_CELL, _CODE = re.compile(r"<td.*?</td>", re.DOTALL), re.compile(r"(?<=<code>)[^<]*(?=</code>)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the API pages."""
    for path, (title, modules) in API.items():
        text = f"# {title}\n"
        for module in modules:
            listed = "\n\n".join(f"::: {module}.{name}" for name in public_names(module))
            text += f"\nThe public names of `{module}`:\n\n{listed}\n"
        files.append(File.generated(config, path, content=text))
    return files


def public_names(module: str) -> list[str]:
    """`__all__` of a module of this project, which is not imported: torch takes longer than the whole site."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in ast.parse(source.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    raise ValueError(f"{source} has no `__all__`, from which its page of the site is made. Add one.")


def on_page_markdown(markdown: str, page: Page, files: Files, **kwargs: Any) -> str:
    """Turns the links that lead out of the site."""
    return resolve_links(markdown, page.file.src_uri, set(files.src_uris), REPOSITORY)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Lets long names in tables break at their underscores, slashes and commas, for phones.

    >>> on_page_content("<p><code>a_b</code></p><td><code>a_b</code></td>")
    '<p><code>a_b</code></p><td><code>a_<wbr>b</code></td>'
    """
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: re.sub("(?<=[_/,])", "<wbr>", code[0]), cell[0]), html)


def resolve_links(markdown: str, page: str, known: set[str], repository: str | None) -> str:
    """`markdown` with links to files that the site does not have led to the repository, or turned into code.

    Args:
        markdown (`str`): of the page; its fenced code stays as it is.
        page (`str`): its path in docs/.
        known (set of `str`): paths in docs/ of all files of the site.
        repository (`str`, *optional*): address of the repository.

    >>> text = "[checks.py](../adaroll_trl/checks.py), [changes](../CHANGELOG.md), [more](more.md#a)"
    >>> resolve_links(text, "page.md", {"more.md"}, None)
    '`adaroll_trl/checks.py`, changes (`CHANGELOG.md`), [more](more.md#a)'
    >>> resolve_links("[changes](../CHANGELOG.md)", "page.md", set(), "https://host/project")
    '[changes](https://host/project/blob/HEAD/CHANGELOG.md)'
    """

    def turn(match: re.Match[str]) -> str:
        text, (target, _) = match["text"], urldefrag(match["target"])
        if not target or ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if path.removeprefix("docs/") in known or not (ROOT / path).exists():  # a dead link is mkdocs's to report
            return match[0]
        if repository is not None:
            return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{path})"
        named = path.endswith(text.strip("`/"))
        return f"`{path}`" if named else f"{text} (`{path}`)"

    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turn, part) for part in parts)
