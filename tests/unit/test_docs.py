"""Pages of the documentation name tests that exist, and README.md stays short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_named_beside_a_published_failure_exists() -> None:
    page = (ROOT / "docs/explanation/published-failures.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`: `(test_\w+)`", page)
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def {name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_the_readme_fits_one_and_a_half_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_make_help_names_every_target_with_its_text() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    targets = [line for line in lines if re.match(r"[a-z][a-z-]*:", line)]
    undocumented = [line for line in targets if "  ## " not in line]
    assert undocumented == ["postgresql:", "pgbouncer:", "java:", "redis:"]
