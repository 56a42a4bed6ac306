"""The code in docs/tasks.md runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "tasks.md"


def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        file = re.match(r"# (\w+\.py)\n", block)
        if file is not None:
            (tmp_path / file[1]).write_text(block)
        else:
            exec(compile(block, str(DOCS), "exec"), names)
    sys.modules.pop("my_tasks", None)


def test_the_page_quotes_the_instructions():
    from adaroll_trl.tasks import TASKS

    page = DOCS.read_text(encoding="utf-8").replace("`", "")
    for name in ("math", "gsm8k", "logiqa", "colota"):
        assert TASKS[name].instruction in page
