"""Small pandas frames from the tables of a lake, each by one statement of SQL, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.models import TABLES
from fairlead.pipeline.partitions import PartsOf, all_parts
from fairlead.pipeline.reading.engine import (
    MEMORY,
    as_our_errors,
    file_names,
    opened,
    parameters_of,
    rows_of,
)
from fairlead.pipeline.reading.snapshots import Seen
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse

_TABLE = re.compile(r"\{(\w+\.\w+)\}")
_BY_NAME = {table.name: table for table in (*TABLES, LEDGER)}


def with_tables(text: str, rows_of: Callable[[Table], str]) -> str:
    """Return a statement with `rows_of` of a table for each `{gold.cost}` in the text."""
    return _TABLE.sub(lambda found: rows_of(_BY_NAME[found[1]]), text)


def tables_in(text: str) -> set[Table]:
    """Return the tables that a statement names so."""
    return {_BY_NAME[name] for name in _TABLE.findall(text)}


class Frames:
    """Reads frames from tables at the snapshots that were seen. Close it after use."""

    keys_at_once = 4_000_000
    """Number of hashes that are counted in memory at once."""

    def __init__(self, warehouse: Warehouse, seen: Seen) -> None:
        """Raise ConfigurationError when DuckDB is missing."""
        self.seen = seen
        self._connection = opened(warehouse, seen.tables)

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows."""
        at = self.seen.tables.get(table)
        return [] if at is None else sorted({file.part for file in at.files if file.rows})

    def totals(
        self, text: str, parts: PartsOf = all_parts, given: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the few rows of an aggregation of ours, by column. `{gold.cost}` in it stands for
        the rows of that table in the partitions that `parts` returns.

        Raise ConfigurationError when the query needs more memory, BrokenLake for a file that cannot
        be read or was replaced meanwhile.
        """
        used = parameters_of(text, given or {})
        with as_our_errors(MEMORY), self._connection.cursor() as cursor:
            cursor.execute(self._query(text, parts), used)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def frame(
        self,
        text: str,
        given: Mapping[str, Any] | None = None,
        parts: PartsOf = all_parts,
        *,
        at_most: int,
    ) -> pd.DataFrame:
        """Return the rows of a statement (see `totals`), which by construction are at most
        `at_most`. Instants are naive and UTC, sums of whole numbers are 64 bits. Raise CheckFailed
        for more rows, and as `totals` does."""
        used = parameters_of(text, given or {})
        with as_our_errors(MEMORY), self._connection.cursor() as cursor:
            found = _narrow(cursor.sql(self._query(text, parts), params=used).to_arrow_table())
        if len(found) > at_most:
            raise CheckFailed(
                f"{len(found)} rows, at most {at_most} expected: {found.column_names}"
            )
        return found.to_pandas()

    def _query(self, text: str, parts: PartsOf) -> str:
        def rows(table: Table) -> str:
            return rows_of(table, file_names(self.seen.tables.get(table), parts(table)))

        return with_tables(text, rows)


def _narrow(rows: pa.Table) -> pa.Table:
    """Return the rows with sums as 64 bits, and with instants without their zone."""
    for position, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type) and not field.type.scale:
            rows = rows.set_column(position, field.name, rows[field.name].cast(pa.int64()))
        elif pa.types.is_timestamp(field.type):
            rows = rows.set_column(position, field.name, rows[field.name].cast(pa.timestamp("us")))
    return rows
