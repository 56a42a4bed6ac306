"""The page: a template filled with pictures and tables. It loads nothing from anywhere, and runs no script."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from .figures import Picture, pictures
from .run import Run
from .tables import figures_table, prompt_tables, settings_tables

_TEMPLATE = "page.html.j2"


def require_jinja() -> Any:
    """Jinja2.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "Reports need Jinja2, which is not installed. Install it with `pip install adaroll_trl[plots]`."
        ) from error
    return jinja2


def write_report(runs: Sequence[Run], output: Path) -> Path:
    """Write the page to `output`, and its pictures into a folder beside it.

    Returns:
        `Path`: the folder of the pictures.

    Raises:
        ImportError: if matplotlib or Jinja2 is not installed.
        OSError: if a file cannot be written.
    """
    jinja2 = require_jinja()
    sections, missing = pictures(runs)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # prompts and completions are data from strangers
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(_TEMPLATE).render(
        runs=runs,
        sections={name: [(one, _data_uri(one)) for one in drawn] for name, drawn in sections.items()},
        missing=missing,
        figures=figures_table(runs),
        prompts=prompt_tables(runs),
        settings=settings_tables(runs),
        version=__version__,
        date=datetime.date.today().isoformat(),
    )
    folder = output.with_name(f"{output.stem}_figures")
    folder.mkdir(parents=True, exist_ok=True)
    for drawn in sections.values():
        for one in drawn:
            (folder / f"{one.name}.png").write_bytes(one.png)
    output.write_text(page, encoding="utf-8", errors="replace")
    return folder


def _data_uri(picture: Picture) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
