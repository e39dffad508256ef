"""A list as the store of one lane."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from fairlead.model import Level, Trigger

_FEW = 20
"""Ratio of stored to written entries above which new entries are inserted one by one, without a
sort of all entries."""


class ListStore:
    """Entries ascending by level."""

    def __init__(self) -> None:
        self._rows: list[Trigger] = []

    def write(self, entries: Sequence[Trigger]) -> None:
        if len(entries) * _FEW < len(self._rows):
            for entry in entries:
                insort(self._rows, entry, key=_level)
        else:
            self._rows = sorted([*self._rows, *entries], key=_level)

    def read_above(self, level: Level, limit: int) -> list[Trigger]:
        first = bisect_right(self._rows, level, key=_level)
        return self._rows[first : first + limit]

    def delete_through(self, level: Level) -> None:
        del self._rows[: bisect_right(self._rows, level, key=_level)]


def _level(entry: Trigger) -> Level:
    assert entry.level is not None
    return entry.level
