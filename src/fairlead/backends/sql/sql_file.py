"""SQL files: named statements that an operator can read and run."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from fairlead.backends.sql.columns import LISTS, with_lists
from fairlead.ports.statements import Database

_PART = re.compile(r"^\{(\w+)\}$", re.MULTILINE)
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def package_of(database: Database) -> str:
    """Return the package that holds the statements and migrations of this database's dialect."""
    return type(database).__module__.rpartition(".")[0]


def load(file_name: str, package: str) -> dict[str, str]:
    """Return the statements of a file in `package`, by name.

    Each block starts with a line `-- name: NAME`. A line `{NAME}` stands for another block. In the
    package of a dialect, other names in braces stand for lists of columns; see columns.py.
    """
    return {**_blocks(file_name, package)}


@cache  # each adapter of each application loads the same files
def _blocks(file_name: str, package: str) -> dict[str, str]:
    text = resources.files(package).joinpath(file_name).read_text()
    parts = _NAME.split(text)
    blocks = {
        name: _without_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    dialect = package.rpartition(".")[2]
    if dialect in LISTS:
        blocks = {name: with_lists(body, dialect) for name, body in blocks.items()}
    return {name: _PART.sub(lambda found: blocks[found[1]], body) for name, body in blocks.items()}


def _without_comments(body: str) -> str:
    return "\n".join(line for line in body.strip().splitlines() if not line.startswith("--"))
