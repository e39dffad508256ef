"""Entries of triggers, least first."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Maximum number of taken entries that stay in the list."""

Entry = tuple[int, Any, int, Trigger, Any]
"""(two values that sort it, number of the trigger in the order of adding, the trigger, what its
owner knows about it); the number makes each entry unique. Flat, because entries are compared
often."""


class Entries:
    """At least one entry, least first. Entries arrive in ascending runs, so a sorted list costs
    less than a heap."""

    __slots__ = ("_rows", "_start", "first")

    def __init__(self, first: Entry) -> None:
        self.first = first
        """Least entry."""
        self._rows: list[Entry] | None = None
        """Ascending entries after the first; those before `_start` have been taken."""
        self._start = 0

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries, least first."""
        yield self.first
        if self._rows is not None:
            yield from self._rows[self._start :]

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if it is now the first."""
        rows = self._rows
        is_first = entry < self.first
        if is_first:
            entry, self.first = self.first, entry
        if rows is None:
            self._rows = [entry]
        elif self._start == len(rows) or rows[-1] < entry:
            rows.append(entry)
        else:
            insort(rows, entry, self._start)
        return is_first

    def pop(self) -> Entry | None:
        """Remove the first entry; return the next one, or None if there is none."""
        rows, start = self._rows, self._start
        if rows is None or start == len(rows):
            return None
        self.first = entry = rows[start]
        self._start = start + 1
        if start > _MOST_TAKEN and start > len(rows) // 4:
            del rows[: start + 1]
            self._start = 0
        return entry

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Entry]:
        """Remove and return the entries for which `is_kept` is false. If it is false for all, the
        entries stay, and their owner drops them."""
        removed = [entry for entry in self if not is_kept(entry[3])]
        kept = [entry for entry in self if is_kept(entry[3])] if removed else []
        if kept:
            self.first, *self._rows = kept
            self._start = 0
        return removed
