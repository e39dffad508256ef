"""A fair lane with the rows that its channel keeps, and the trigger table that it fills."""

from __future__ import annotations

from fairlead.core.fair.backlog import Backlog
from fairlead.core.fair.steps import BacklogWrite, Changes
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import Level, Trigger


class StoredLane:
    """A backlog whose writes end at once."""

    def __init__(self, backlog: Backlog, table: TriggerTable) -> None:
        self.backlog = backlog
        self._table = table
        self._rows: dict[Level, Trigger] = {}

    @property
    def stored(self) -> int:
        """Number of triggers that were written to the store."""
        return len(self._rows)

    def tidy(self) -> None:
        """Move triggers between memory and store until the backlog asks for nothing more."""
        self.apply(self.backlog.shrink())
        while (read := self.backlog.next_read()) is not None:
            above = [row for level, row in sorted(self._rows.items()) if level > read.above]
            self.apply(self.backlog.read(above[: read.limit]))

    def apply(self, changes: BacklogWrite | Changes) -> None:
        """Write what the backlog writes, and give the table what it adds and drops."""
        if isinstance(changes, BacklogWrite):
            self._rows |= {row.level: row for row in changes.entries if row.level is not None}
            changes = self.backlog.written(changes)
        self._table.remove(changes.dropped)
        for trigger in changes.added:
            self._table.push(trigger)
