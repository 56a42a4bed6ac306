"""docs/reliability.md: no row without a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"


def test_every_row_names_tests_that_are_there():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/\w+\.py)::(test_\w+)`", row)
        assert named, f"no test in: {row[:100]}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"
