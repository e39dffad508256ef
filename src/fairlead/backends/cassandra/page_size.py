"""The number of rows in a page of a read, by the bytes of the rows.

Cassandra holds a page in memory as a whole, and counts its rows only: 150 tasks of 1 MB in one
response ended a server with a heap of 512 MB.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.ports.statements import Row

MOST_READ = 8 << 20
"""Bytes of the rows in one page, about."""

_FIRST = 16
"""Rows in the first page, whose sizes are unknown."""


class PageSize:
    """The size of the next page, learned from rows that were received or written. A page of small
    rows at most doubles the size of the next."""

    def __init__(self) -> None:
        self._row = MOST_READ // _FIRST
        """Bytes of a row, at most, as far as it is known."""

    def within(self, most: int) -> int:
        """Return how many rows to read in one page: at most `most`, at least one."""
        return max(1, min(most, MOST_READ // self._row))

    def on_rows(self, rows: Sequence[Row]) -> None:
        """Learn from rows whose large columns are texts, almost all of ASCII: payloads are in
        Base64."""
        sizes = (sum(len(text) for text in row if isinstance(text, str)) for row in rows)
        if rows:
            self._row = max(1, self._row // 2, *sizes)
