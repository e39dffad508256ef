"""Small pandas frames from the tables of a lake, each by one statement of SQL, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.reading.engine import (
    MEMORY,
    as_our_errors,
    close_outside,
    empty,
    patterns,
    quoted,
    reader_of,
    start,
)
from fairlead.pipeline.schema import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Files = Mapping[str, Sequence[str]]
"""Files of a table, by partition."""

PartsOf = Callable[[Table], Collection[str] | None]
"""Returns the partitions of a table to read; None for all."""

_TABLE = re.compile(r"\{(\w+\.\w+)\}")
_PARAMETER = re.compile(r"\$(\w+)")
_BY_NAME = {table.name: table for table in TABLES}


def _all_parts(table: Table) -> None:
    return None


class Frames:
    """Reads frames from files of the tables. Close it after use."""

    def __init__(
        self,
        files: Mapping[Table, Files],
        memory: str = MEMORY,
        spill: str = "",
        threads: int | None = None,
    ) -> None:
        """spill: folder for what does not fit into memory; without one, a query that needs more is
        refused. Raise ConfigurationError when DuckDB is missing."""
        self._files = files
        self._memory = memory
        self._connection = start(memory, threads)
        self._connection.execute(f"SET temp_directory = {quoted(spill)}")
        close_outside(
            self._connection,
            [file for parts in files.values() for listed in parts.values() for file in listed],
        )

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def parts(self, table: Table) -> list[str]:
        """Return the partitions with rows."""
        return sorted(self._files.get(table, {}))

    def rows(self, table: Table, parts: Collection[str] | None = None) -> str:
        """Return the rows of these partitions, all by default, as a table of SQL."""
        listed = self._files.get(table, {})
        wanted = listed if parts is None else {part: listed.get(part, ()) for part in parts}
        files = [file for _, found in sorted(wanted.items()) for file in found]
        if not files:
            return f"({empty(table)})"
        return reader_of(table, f"[{', '.join(map(quoted, patterns(files)))}]")

    def arrow(
        self,
        text: str,
        given: Mapping[str, Any] | None = None,
        parts: PartsOf = _all_parts,
    ) -> pa.Table:
        """Return the rows of a statement of ours. `{gold.cost}` in it stands for the rows of that
        table in the partitions that `parts` returns.

        Sums of whole numbers are 64 bits. Raise ConfigurationError when the query needs more
        memory, BrokenLake for a file that cannot be read or was replaced meanwhile.
        """

        def rows_of(found: re.Match[str]) -> str:
            table = _BY_NAME[found[1]]
            return self.rows(table, parts(table))

        used = {
            name: value for name, value in (given or {}).items() if name in _PARAMETER.findall(text)
        }
        with as_our_errors(self._memory), self._connection.cursor() as cursor:
            return _narrow(cursor.sql(_TABLE.sub(rows_of, text), params=used).to_arrow_table())

    def frame(
        self,
        text: str,
        given: Mapping[str, Any] | None = None,
        parts: PartsOf = _all_parts,
        *,
        at_most: int,
    ) -> pd.DataFrame:
        """Return the rows of a statement (see `arrow`), which by construction are at most
        `at_most`. Instants are naive and UTC. Raise CheckFailed for more rows."""
        found = self.arrow(text, given, parts)
        if len(found) > at_most:
            raise CheckFailed(
                f"{len(found)} rows, at most {at_most} expected: {found.column_names}"
            )
        return found.to_pandas()


def files_of(lake: Lake, tables: Iterable[Table] = TABLES) -> dict[Table, Files]:
    """Return the files that the newest manifests list. Raise BrokenLake for a damaged manifest."""
    found: dict[Table, Files] = {}
    for table in tables:
        here = lake.table(table)
        found[table] = {
            name: [str(here.folder / file) for file in part.files]
            for name, part in here.manifests.newest().parts.items()
        }
    return found


def _narrow(rows: pa.Table) -> pa.Table:
    """Return the rows with sums as 64 bits, and with instants without their zone."""
    import pyarrow as pa

    for position, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type) and not field.type.scale:
            rows = rows.set_column(position, field.name, rows[field.name].cast(pa.int64()))
        elif pa.types.is_timestamp(field.type):
            rows = rows.set_column(position, field.name, rows[field.name].cast(pa.timestamp("us")))
    return rows
