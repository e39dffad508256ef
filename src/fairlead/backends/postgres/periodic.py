"""The periodic tasks on PostgreSQL: no frequent statement passes replaced rows of their records."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.periodic import SqlPeriodics
from fairlead.backends.sql.rows import batch
from fairlead.ports.periodic_store import Advance, PeriodicDeclaration
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Row, Steps


class PostgresPeriodics(SqlPeriodics):
    """Periodic tasks whose records have a number that each write raises. A statement begins at the
    last number that this process has read."""

    def __init__(self, tasks: SqlStore) -> None:
        super().__init__(tasks)
        self._numbers: dict[str, int] = {}
        """Number of each record that was read last, by name."""

    def register(self, declared: Sequence[PeriodicDeclaration], node: str, now: int) -> Steps[None]:
        yield self._statement("lock")
        yield from super().register(declared, node, now)

    def _known(self, names: Sequence[str]) -> str:
        return batch([(name, self._numbers.get(name, 0)) for name in names])

    def _record_rows(self) -> Steps[Sequence[Row]]:
        known = batch(list(self._numbers.items()))
        rows = yield self._statement("records", known)
        self._numbers = {row[0]: row[-1] for row in rows}
        return [row[:-1] for row in rows]

    def _pass(self, advance: Advance) -> Steps[Sequence[Row]]:
        return (yield self._statement("pass", *advance, self._numbers.get(advance.name, 0)))
