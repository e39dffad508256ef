"""The backlog store on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.backlog import SqlBacklogStore, columns
from fairlead.backends.sql.rows import batch
from fairlead.model import LaneKey, Trigger
from fairlead.ports.statements import Many, Steps


class SqliteBacklogStore(SqlBacklogStore):
    """A `SqlBacklogStore` on SQLite."""

    # All workers are on the machine of the file, so a power cut ends them too.
    outlives_workers = False

    def _insert(self, lane: LaneKey, entries: Sequence[Trigger]) -> Steps[None]:
        yield Many(self._sql["write"], [(*lane, *columns(entry)) for entry in entries])

    def _ids(self, ids: list[str]) -> str:
        return batch(ids)
