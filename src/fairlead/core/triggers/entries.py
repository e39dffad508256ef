"""Entries of a column: triggers in their order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from fairlead.model import Trigger

_MOST_TAKEN = 500
"""Maximum number of taken entries that stay in the list of a column."""

_FEW = 20
"""Ratio of old to new entries above which new ones are inserted one by one instead of sorted."""

Order = tuple[int, int, int] | tuple[int, int, int, Hashable]
"""Position in a table: (rank, id of the level or 0, number of the trigger in the order of adding).
The number makes each position unique, so a flow after it is never compared."""

Entry = tuple[int, Any, int, Any, Trigger]
"""(three values that sort it within its column or flow, its order in the table or the lane that
gives it a rank, the trigger); flat, because entries are compared often."""


class Entries:
    """Entries of a column, least first. A new entry that is neither the first nor the last is
    sorted in only at the next `pop`. Entries arrive in ascending runs, so this costs less than a
    heap."""

    __slots__ = ("_between", "_rows", "_start")

    def __init__(self, *rows: Entry) -> None:
        """`rows`: the first entries, ascending."""
        self._rows = [*rows]
        """Ascending entries; those before `_start` have been taken."""
        self._start = 0
        self._between: list[Entry] | None = None
        """Entries above the first, in any order; None if there are none."""

    def __len__(self) -> int:
        return len(self._rows) - self._start + len(self._between or ())

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries in any order."""
        yield from self._rows[self._start :]
        yield from self._between or ()

    @property
    def first(self) -> Entry:
        """The least entry. Read it only if there is one."""
        return self._rows[self._start]

    def add(self, entry: Entry) -> bool:
        """Add an entry; return True if it is now the first."""
        rows, start = self._rows, self._start
        if start == len(rows):
            rows.append(entry)
            return True
        if entry < rows[start]:
            if start:
                self._start = start - 1
                rows[start - 1] = entry
            else:
                rows.insert(0, entry)
            return True
        if self._between:
            self._between.append(entry)
        elif rows[-1] < entry:
            rows.append(entry)
        else:
            self._between = [entry]
        return False

    def pop(self) -> Entry | None:
        """Remove the first entry; return the next one, if there is any."""
        start = self._start = self._start + 1
        if self._between or (start > _MOST_TAKEN and start > len(self._rows) // 4):
            self._tidy()
            start = 0
        return self._rows[start] if start < len(self._rows) else None

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        self._rows, self._start, self._between = sorted(entries), 0, None

    def keep(self, is_kept: Callable[[Trigger], bool]) -> list[Trigger]:
        """Remove and return the triggers for which `is_kept` is false."""
        removed = [entry[4] for entry in self if not is_kept(entry[4])]
        if removed:
            self.replace([entry for entry in self if is_kept(entry[4])])
        return removed

    def _tidy(self) -> None:
        rows, between = self._rows, self._between or ()
        del rows[: self._start]
        self._start = 0
        if len(between) * _FEW < len(rows):
            for entry in between:
                insort(rows, entry)
        else:
            rows += between
            rows.sort()
        self._between = None
