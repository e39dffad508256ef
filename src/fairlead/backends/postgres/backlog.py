"""The backlog store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.backlog import SqlBacklogStore, columns
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.model import LaneKey, Trigger
from fairlead.ports.statements import Statement, Steps


class PostgresBacklogStore(SqlBacklogStore):
    """A `SqlBacklogStore` on PostgreSQL."""

    def __init__(self, store: SqlTaskStore) -> None:
        super().__init__(store)
        self._numbers: dict[LaneKey, int] = {}
        """Number of the record that was written last, by lane."""

    def _insertion(self, lane: LaneKey, entries: Sequence[Trigger]) -> Statement:
        arrays = map(list, zip(*map(columns, entries), strict=True))
        return self._statement("write", *lane, *arrays)

    def _keep_record(self, lane: LaneKey, record: str) -> Steps[None]:
        """Replace the record by one with the next number. A search from the number that was written
        last passes no replaced records."""
        known = self._numbers.get(lane, 0)
        rows = yield self._statement("keep_record", *lane, record, known)
        if not rows and known:  # the transaction that gave the number did not commit
            rows = yield self._statement("keep_record", *lane, record, 0)
        if not rows:
            rows = yield self._statement("first_record", *lane, record)
        self._numbers[lane] = rows[0][0]
