"""Reads of PostgreSQL: ranges of blocks, as Arrow straight from COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise

import pyarrow as pa
from adbc_driver_manager import Error
from adbc_driver_postgresql import StatementOptions, dbapi
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fairlead.backends.postgres.database import PostgresDatabase
from fairlead.backends.sql.columns import with_lists
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.migrate import CURE
from fairlead.backends.sql.sql_file import load
from fairlead.connect import task_store
from fairlead.errors import SchemaMismatch, StoreUnavailable
from fairlead.model.history import Position
from fairlead.pipeline.source.scan import Piece, Scan, ranges
from fairlead.ports.statements import Row, Statement, Steps

BLOCKS_PER_PIECE = 8192
"""Blocks of a piece: 64 MiB, some 200,000 attempts or two seconds of reading."""

ROWS_PER_PIECE = 250_000
"""Rows of a piece of a stream."""

BATCH_BYTES = 8 << 20
"""Bytes that the driver gathers for a batch; an executor holds about two batches."""

_SQL = {
    name: with_lists(text, "postgres") for name, text in load("postgres.sql", __package__).items()
}
_NO_BLOCK = 0xFFFFFFFF
"""Number above every block."""
_MISSING = ("42P01", "42703")


class PostgresScan(Scan):
    """Scan of PostgreSQL.

    Attempts never move or change, and every transaction before the horizon is complete, so each
    attempt is read once, also while rows are added. Pieces of tasks are from different moments.
    A task may end before its piece is read. An update may move a row to another
    block, so a changing task may appear twice or not at all; its id identifies it, and the higher
    version is newer.
    """

    offset_fields = ("xid", "seq")

    def plan(self) -> list[Piece]:
        """Return the pieces; the last one has no end, because the table may grow."""
        table, parts = self._options.table, self._options.partitions
        blocks, horizon = self._ask("extent", f"fairlead_{table}")[0]
        step = max(1, -(-blocks // parts)) if parts else BLOCKS_PER_PIECE
        firsts = [first for first, _ in ranges(0, blocks, step)]
        return [
            Piece(table, {"first": f"({first},0)", "past": f"({past},0)", "horizon": horizon})
            for first, past in pairwise([*firsts, _NO_BLOCK])
        ]

    def window(self, after: Position, through: Position) -> list[Piece]:
        ends = [after]
        with closing(self._database()) as database:
            history = SqlHistory(database)
            while ends[-1] < through:
                end = history.position_after(ends[-1], through, ROWS_PER_PIECE)
                ends.append(database.read_now(end))
        names = ("after_xid", "after_seq", "through_xid", "through_seq")
        return [Piece("window", dict(zip(names, (*a, *b), strict=True))) for a, b in pairwise(ends)]

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one statement, all from one snapshot; the server keeps their versions
        until the end of the read. Raises SchemaMismatch if tables or columns are missing, and
        StoreUnavailable for other errors of the server or the connection."""
        rows, database = self._options.batch_rows, self._database()
        columns = sql.SQL(", ").join(map(sql.Identifier, self._columns()))
        literals = {name: sql.Literal(value) for name, value in self._values(piece).items()}
        statement = sql.SQL(_SQL[piece.statement]).format(columns=columns, **literals)
        conninfo = make_conninfo(database.url, application_name="fairlead")
        try:
            with dbapi.connect(conninfo) as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(
                    **{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(BATCH_BYTES)}
                )
                cursor.execute(statement.as_string(None))
                for batch in cursor.fetch_record_batch():
                    for start in range(0, batch.num_rows, rows):
                        yield self._batch(batch.slice(start, rows).columns)
        # pyarrow raises OSError if the connection is lost between two batches.
        except (Error, OSError) as error:
            said = f"{database.location}: {str(error).splitlines()[0]}"
            # Chain no cause: the text of the driver may contain secrets of the connection.
            if isinstance(error, Error) and error.sqlstate in _MISSING:
                raise SchemaMismatch(f"{said}; {CURE}") from None
            raise StoreUnavailable(said) from None

    def _ask(self, statement: str, *params: object) -> Sequence[Row]:
        def steps() -> Steps[Sequence[Row]]:
            return (yield Statement(_SQL[statement], params))

        with closing(self._database()) as database:
            return database.read_now(steps())

    def _database(self) -> PostgresDatabase:
        database = task_store(self._options.url).database
        assert isinstance(database, PostgresDatabase)
        return database
