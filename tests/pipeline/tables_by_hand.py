"""Rows of any table of the lake, made by hand, for jobs that need no Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from fairlead.pipeline.models import TABLES
from fairlead.pipeline.partitions import PartsOf, all_parts
from fairlead.pipeline.reading.engine import parameters_of, start
from fairlead.pipeline.reading.frames import Frames, with_tables
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import Builds
from fairlead.pipeline.warehouse.location import flat_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.frames import T0

_PLAIN: dict[str, Any] = {
    "string": "x",
    "bigint": 1,
    "int": 1,
    "smallint": 1,
    "tinyint": 1,
    "double": 1.0,
    "boolean": False,
    "timestamp": T0,
    "decimal(18,6)": Decimal(1),
}


def row(table: Table, **fields: Any) -> dict[str, Any]:
    """Return a row of any table. Columns that are not given are null, if they may be null."""
    unknown = fields.keys() - set(table.column_names)
    assert not unknown, unknown
    return {
        c.name: fields.get(c.name, None if c.nullable else _PLAIN[c.type]) for c in table.columns
    }


def put(
    lake: Warehouse, table: Table, rows: Sequence[Mapping[str, Any]], name: str = "by-hand"
) -> None:
    """Add the rows to the table, in files whose names begin with this name. If a build has made
    the table, publish them."""
    here = lake.table(table)
    data = pa.Table.from_pylist([dict(row) for row in rows], table.arrow())
    while True:
        seen = here.state()
        written = here.write(data, name, seen)
        if here.append(written, {}, seen):
            break
        here.take_away(written)
    builds = Builds(lake)
    before, state = builds.newest()
    snapshot = here.state().snapshot
    if table.name in before.snapshots and snapshot is not None:
        assert builds.publish(before.after({table.name: snapshot}), state, 0)


def rows_of(
    lake: Warehouse, table: Table, parts: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a table of the lake, of all or of the given partitions, as the newest
    build has them."""
    build, _ = Builds(lake).newest()
    rows = lake.table(table).load(parts, snapshot=build.snapshots.get(table.name))
    return list(rows.to_pylist())


def micros(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


class MemoryTables(Frames):
    """Tables in memory, because a lake flushes each hour to disk."""

    def __init__(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self._connection = start()
        by_name = {table.name: table for table in TABLES}
        for name, given in rows.items():
            for each in given:
                self._put(by_name[name], dict(each))

    def parts(self, table: Table) -> list[str]:
        return sorted(part for part, rows in self._rows.get(table.name, {}).items() if rows)

    def totals(
        self, text: str, parts: PartsOf = all_parts, given: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        def rows_of(table: Table) -> str:
            self._connection.register(flat_name(table), self._load(table, parts(table)))
            return flat_name(table)

        text = with_tables(text, rows_of)
        cursor = self._connection.execute(text, parameters_of(text, given or {}))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _load(self, table: Table, parts: Collection[str] | None) -> pa.Table:
        known = self._rows.get(table.name, {})
        wanted = known if parts is None else parts
        found = [each for part in wanted for each in known.get(part, [])]
        return pa.Table.from_pylist(found, table.arrow())

    def _put(self, table: Table, row: dict[str, Any]) -> str:
        part = f"{row[table.instant]:{'%Y-%m-%d/%H' if table.by == 'hour' else '%Y-%m-%d'}}"
        self._rows.setdefault(table.name, {}).setdefault(part, []).append(row)
        return part
