"""The backlog store on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.backlog import SqlBacklogStore, columns
from fairlead.model import LaneKey, Trigger
from fairlead.ports.statements import Many


class SqliteBacklogStore(SqlBacklogStore):
    """A `SqlBacklogStore` on SQLite."""

    # All workers are on the machine of the file, so a power cut ends them too.
    outlives_workers = False

    def _insertion(self, lane: LaneKey, entries: Sequence[Trigger]) -> Many:
        return Many(self._sql["write"], [(*lane, *columns(entry)) for entry in entries])
