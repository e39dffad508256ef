"""Entries of triggers, least first."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Maximum number of taken entries that stay in the list."""

_FEW = 20
"""Ratio of old to new entries above which new ones are inserted one by one instead of sorted."""

Entry = tuple[int, Any, int, Trigger, Any]
"""(two values that sort it, number of the trigger in the order of adding, the trigger, what its
owner knows about it); the number makes each entry unique. Flat, because entries are compared
often."""


class Entries:
    """At least one entry, least first. A new entry that is neither the first nor the last is sorted
    in only at the next `pop`. Entries arrive in ascending runs, so this costs less than a heap."""

    __slots__ = ("_between", "_rows", "_start", "first")

    def __init__(self, first: Entry) -> None:
        self.first = first
        """Least entry."""
        self._rows: list[Entry] | None = None
        """Ascending entries after the first; those before `_start` have been taken."""
        self._start = 0
        self._between: list[Entry] | None = None
        """Other entries, in any order."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        yield self.first
        if self._rows is not None:
            yield from self._rows[self._start :]
        yield from self._between or ()

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if it is now the first."""
        rows, start = self._rows, self._start
        if entry < self.first:
            first, self.first = self.first, entry
            if rows is None:
                self._rows = [first]
            elif start:
                self._start = start - 1
                rows[start - 1] = first
            else:
                rows.insert(0, first)
            return True
        if self._between is not None:
            self._between.append(entry)
        elif rows is None:
            self._rows = [entry]
        elif start == len(rows) or rows[-1] < entry:
            rows.append(entry)
        else:
            self._between = [entry]
        return False

    def pop(self) -> Entry | None:
        """Remove the first entry; return the next one, or None if there is none."""
        if self._between is not None:
            self._tidy()
        rows = self._rows
        if rows is None or self._start == len(rows):
            return None
        start = self._start
        self.first = entry = rows[start]
        self._start = start + 1
        if start > _MOST_TAKEN and start > len(rows) // 4:
            del rows[: start + 1]
            self._start = 0
        return entry

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false. If it is false for all, the
        entries stay, and their owner drops them."""
        removed = [entry[3] for entry in self if not is_kept(entry[3])]
        kept = sorted(entry for entry in self if is_kept(entry[3])) if removed else []
        if kept:
            self.first, *rows = kept
            self._rows, self._start, self._between = rows, 0, None
        return removed

    def _tidy(self) -> None:
        rows, between = self._rows or [], self._between or []
        del rows[: self._start]
        self._start = 0
        if len(between) * _FEW < len(rows):
            for entry in between:
                insort(rows, entry)
        else:
            rows += between
            rows.sort()
        self._rows, self._between = rows, None
