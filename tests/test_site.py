"""The site of the docs builds without a warning, shows what the Markdown says, and asks other hosts for nothing."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import griffe
import pytest
from markdown_it import MarkdownIt

from adaroll_trl.config import AdaRollOptions

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = load_script("site_hooks")


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(project / "mkdocs.yml")]
    return subprocess.run(
        [*command, "--site-dir", str(site)],
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """What a browser would fetch by itself for a page, and how many elements of each kind its text has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.counts: Counter[str] = Counter()
        self.ids: set[str] = set()
        self._in_article = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids.add(named.get("id") or "")
        rel = (named.get("rel") or "").split()
        if tag == "link" and not {"canonical", "prev", "next"} & set(rel):
            self.fetched.append(named.get("href") or "")
        self.fetched += [value for name in ("src", "srcset", "poster", "data") if (value := named.get(name))]
        self.fetched += re.findall(r"url\(([^)]+)\)", named.get("style") or "")
        self._in_article |= tag == "article"
        if self._in_article:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


def built(page: Path, site: Path) -> Path:
    name = page.relative_to(DOCS).with_suffix(".html")
    return site / (name.with_name("index.html") if name.stem == "README" else name)


FOREIGN = re.compile(r"\s*['\"]?(?:[a-z]+:)?//", re.IGNORECASE)


def test_nothing_is_fetched_from_other_hosts(site):
    """No page, style sheet or font of the site lies on another host; links that a reader may click are no requests."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert not [address for address in Page(page).fetched if FOREIGN.match(address)], page.name
        assert 'class="mermaid"' not in page.read_text(), "the theme would fetch its drawing library for that"
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import\s+)([^);]+)", sheet.read_text())
        assert not [address for address in addresses if FOREIGN.match(address)], sheet.name


def test_foreign_addresses_are_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<link rel="stylesheet" href="//a.b/c.css"><script src="https://a.b/c.js"></script><img src="d">')
    assert [bool(FOREIGN.match(address)) for address in Page(page).fetched] == [True, True, False]


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_search_works_from_disk(site):
    """Browsers forbid workers there, which is what the theme searches in."""
    address = f"{(site / 'api' / 'noise.html').as_uri()}?q=calibration"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    shown = subprocess.run([BROWSER, *flags, address], capture_output=True, text=True, timeout=120).stdout
    found = re.findall(r'href="([^"#]+)[^"]*" class="md-search-result__link"', shown)
    assert (site / "metrics.html").as_uri() in found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_pages_look_as_on_a_code_hosting_site(page, site):
    """CommonMark and the site's Markdown read a page alike: as many lists, cells, headings, quotes and code blocks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    opened = Counter(token.tag for token in tokens if token.nesting == 1)
    opened["pre"] = sum(token.type in ("fence", "code_block") for token in tokens)
    counts = Page(built(page, site)).counts
    for tag in ("ul", "ol", "li", "td", "h2", "h3", "blockquote", "pre"):
        assert counts[tag] == opened[tag], f"<{tag}>"


def test_public_names_are_on_the_api_pages(site):
    """Each exported name has its place there, and the sections of its docstring are lists, not text run together."""
    for path, (_, modules) in HOOKS.API.items():
        page = Page(site / Path(path).with_suffix(".html"))
        names = {f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__}
        assert names <= page.ids, names - page.ids
    text = (site / "api" / "solver.html").read_text()
    assert "<li><code>successes</code>, <code>failures</code> (int arrays of shape" in text
    assert "Args:" not in text
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)


def test_options_are_on_their_api_page(site):
    """A field of the config with its `help`, which has no docstring."""
    page = site / "api" / "config.html"
    names = {f"adaroll_trl.config.AdaRollOptions.{field.name}" for field in fields(AdaRollOptions)}
    assert names <= Page(page).ids
    assert "<p>Every prompt gets at most this many rollouts. None means 4 * num_generations.</p>" in page.read_text()


def public_paths() -> list[str]:
    modules = [module for _, modules in HOOKS.API.values() for module in modules]
    return [f"{module}.{name}" for module in modules for name in HOOKS.public_names(module)]


def public_objects() -> list[griffe.Object]:
    extensions = griffe.load_extensions(load_script("site_docstrings").Docstrings)
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=[ROOT])
    package = loader.load("adaroll_trl")
    loader.resolve_aliases()
    objects = [package[path.removeprefix("adaroll_trl.")] for path in public_paths()]
    return [found.final_target if found.is_alias else found for found in objects]


def undocumented(found: griffe.Object) -> list[str]:
    """Its members that the site would leave out: no docstring, and not a word of the class's about them.

    A method that overrides one of a class of this package has that one's docstring.
    """
    if not found.is_class:
        return []
    members = {name: member for name, member in found.members.items() if not name.startswith("_")}
    inherited = {name for base in found.mro() for name in base.members}
    return [
        name
        for name, member in members.items()
        if member.docstring is None and name not in inherited and not name.startswith("on_")  # events of transformers
        if not re.search(rf"\b{name}\b", found.docstring.value)
        if member.is_function or "property" in member.labels or (member.is_attribute and member.annotation is not None)
    ]


def test_public_names_say_what_they_are():
    """`show_if_no_docstring: false` would leave them out of the site, or show a bare name."""
    objects = public_objects()
    assert len(objects) > 50
    assert not [found.path for found in objects if found.docstring is None]
    missing = {found.path: names for found in objects if (names := undocumented(found))}
    assert missing == {"adaroll_trl.trainer.AdaRollMixin": ["num_generations", "rollout_func"]}, "those are TRL's"


def test_what_the_docs_import_is_on_the_api_pages():
    used = set()
    for page in [ROOT / "README.md", *PAGES]:
        for module, names in re.findall(
            r"^ *from (adaroll_trl[\w.]*) import ([^#\n]+)", page.read_text(), re.MULTILINE
        ):
            used |= {f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")}
    assert len(used) > 20
    assert used <= set(public_paths()), used - set(public_paths())


@pytest.mark.parametrize("name", ["site_hooks", "site_docstrings"])
def test_examples_of_the_scripts(name):
    results = doctest.testmod(load_script(name))
    assert results.attempted
    assert results.failed == 0


def test_mistakes_fail_the_build(tmp_path):
    """A page that the navigation lacks, a dead link and a dead anchor are errors, each named with its page."""
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings[: settings.index("\nnav:\n")] + "\nnav:\n  - README.md\n"
    settings = settings.replace("hooks:\n  - scripts/site_hooks.py\n", "")
    settings = settings.replace("scripts/site_docstrings.py", str(ROOT / "scripts" / "site_docstrings.py"))
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Here\n\n[a](gone.md) [b](left_out.md#gone)\n")
    (tmp_path / "docs" / "left_out.md").write_text("# Left out\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for expected in ("left_out.md", "'gone.md'", "left_out.md#gone"):
        assert expected in done.stdout + done.stderr
