"""Reads of a SQLite file: ranges of its rows, through connections that cannot write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa

from fairlead.backends.sql.migrate import CURE
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sqlite.database import SqliteDatabase
from fairlead.backends.sqlite.file_modes import check_place
from fairlead.connect import task_store
from fairlead.errors import SchemaMismatch, StoreUnavailable
from fairlead.model.history import Position
from fairlead.pipeline.source.options import ReadOptions
from fairlead.pipeline.source.scan import Piece, Scan, ranges
from fairlead.ports.statements import Row

ROWS_PER_PIECE = 250_000
"""Rows of a piece of a table, by row number; some two seconds of reading."""

MOST_PIECES = 200
"""Default maximum number of pieces of a table, because the row numbers of unfinished tasks may lie
far apart."""

_SQL = load("sqlite.sql", __package__)
_BUSY_SECONDS = 30.0


class SqliteScan(Scan):
    """Scan of SQLite. All executors must see the file, so they run on one machine.

    Attempts never change and row numbers are never reused, so the attempts present at planning are
    read once. Pieces of tasks are from different moments; a task may end before its piece is read.
    """

    offset_fields = ("rowid",)

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        database = task_store(options.url).database
        assert isinstance(database, SqliteDatabase)
        self._path = database.path

    def window(self, after: Position, through: Position) -> list[Piece]:
        # Earlier attempts may have been deleted by age.
        first = max(after.seq + 1, self._ask("attempts_extent")[0][0])
        return self._pieces("attempts", first, through.seq + 1, None)

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one statement, all from one snapshot; the write-ahead log grows until
        the end of the read."""
        # SQLite takes an unknown column in double quotes as a text.
        columns = ", ".join(f"[{name}]" for name in self._columns())
        statement = _SQL[piece.statement].format(columns=columns)
        with self._connection() as connection:
            cursor = connection.execute(statement, self._values(piece))
            while rows := cursor.fetchmany(self._options.batch_rows):
                yield self._batch(list(zip(*rows, strict=True)))

    def plan(self) -> list[Piece]:
        """Return the pieces up to the present last row."""
        table = self._options.table
        first, last = self._ask(f"{table}_extent")[0]
        return self._pieces(table, first, last + 1, self._options.partitions)

    def _pieces(self, table: str, first: int, past: int, parts: int | None) -> list[Piece]:
        step = -(-(past - first) // (parts or MOST_PIECES))
        found = ranges(first, past, max(1, step if parts else max(step, ROWS_PER_PIECE)))
        return [Piece(table, {"first": start, "past": end}) for start, end in found]

    def _ask(self, statement: str, *params: object) -> Sequence[Row]:
        with self._connection() as connection:
            return connection.execute(_SQL[statement], params).fetchall()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one statement. Raise StoreUnavailable, or SchemaMismatch for
        missing tables, or ConfigurationError if other users may replace the file."""
        check_place(self._path)
        url = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(
                sqlite3.connect(url, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as connection:
                yield connection
        except sqlite3.Error as error:
            if str(error).startswith(("no such table", "no such column")):
                raise SchemaMismatch(f"{self._path}: {error}; {CURE}") from error
            raise StoreUnavailable(f"cannot read {self._path}: {error}") from error
