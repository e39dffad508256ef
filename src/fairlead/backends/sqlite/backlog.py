"""The backlog store on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.backlog import SqlBacklogStore, columns
from fairlead.backends.sql.rows import batch
from fairlead.model import LaneKey, Trigger
from fairlead.ports.statements import Many, Steps


class SqliteBacklogStore(SqlBacklogStore):
    """See `SqlBacklogStore`."""

    outlives_workers = (
        False  # what a power cut undoes was relied on by processes of the same machine
    )

    def _insert(self, lane: LaneKey, entries: Sequence[Trigger]) -> Steps[None]:
        yield Many(self._sql["write"], [(*lane, *columns(entry)) for entry in entries])

    def _ids(self, ids: list[str]) -> str:
        return batch(ids)
