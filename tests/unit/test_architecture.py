"""ARCHITECTURE.md names only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A name without a folder may stand for a file in many folders, as `backend.py` does.
_NAMED = re.compile(r"`(\w+/[\w/.*]*(?:\.(?:py|sql|lua|cql)|/)|\w+/)`")


def named_in(page: Path) -> set[str]:
    return set(_NAMED.findall(page.read_text(encoding="utf-8")))


PAGES = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/explanation/{page.name}" for page in sorted(ROOT.glob("docs/explanation/*.md"))),
]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_the_page_names_is_in_the_tree(page: str) -> None:
    names = named_in(ROOT / page)
    missing = [
        name
        for name in sorted(names)
        if not any(list(base.glob(name)) for base in (ROOT / "src/fairlead", ROOT / "src", ROOT))
    ]
    assert missing == []
