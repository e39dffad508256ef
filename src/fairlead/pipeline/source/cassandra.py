"""Reads of a backlog in Cassandra: ranges of tokens of the partition key, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from cassandra import InvalidRequest

from fairlead.backends.cassandra.backlog import CassandraBacklogStore
from fairlead.backends.sql.sql_file import load
from fairlead.errors import SchemaMismatch
from fairlead.model import LaneRecord
from fairlead.pipeline.source.scan import Piece, Scan

_SQL = load("cassandra.cql", __package__)
_FIRST_TOKEN, _LAST_TOKEN = -(2**63), 2**63 - 1
_record = msgspec.json.Decoder(LaneRecord)


class CassandraScan(Scan):
    """Scan of the backlog in Cassandra. A piece reads each lane above the ack level that the lane
    had when the piece started, and the pages of a lane are from different moments."""

    def plan(self) -> list[Piece]:
        """Return ranges that cover all tokens, each with at least one of the present partitions, if
        there are any."""
        with self._session() as session:
            tokens = sorted(token for _, _, token in session.execute(_SQL["tokens"]))
        parts = min(self._options.partitions or len(tokens), len(tokens))
        inner = [tokens[len(tokens) * n // parts - 1] for n in range(1, parts)]
        return [
            Piece("backlog", {"above": above, "through": through})
            for above, through in pairwise([_FIRST_TOKEN, *inner, _LAST_TOKEN])
        ]

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the lanes of the partitions, one after the other."""
        queue = self._options.queue
        with self._session() as session:
            found = session.execute(
                session.prepare(_SQL["lanes"]), (piece.values["above"], piece.values["through"])
            )
            for of_queue, partition, records in found:
                if queue in (None, of_queue):
                    for priority, record in sorted((records or {}).items()):
                        above = _record.decode(record).ack_level
                        yield from self._lane(session, (of_queue, partition, priority, *above))

    def _lane(self, session: Any, lane: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        names = self._options.columns
        statement = session.prepare(_SQL["backlog"].format(columns=", ".join(names))).bind(lane)
        statement.fetch_size = self._options.batch_rows
        page = session.execute(statement)
        while True:
            if page.current_rows:
                columns = dict(zip(names, zip(*page.current_rows, strict=True), strict=True))
                if "task_id" in columns:
                    columns["task_id"] = tuple(map(str, columns["task_id"]))
                if "order_at" in columns:
                    columns["order_at"] = tuple(at or None for at in columns["order_at"])
                yield pa.RecordBatch.from_pydict(columns, schema=self._schema)
            if not page.has_more_pages:
                return
            page.fetch_next_page()

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """Open a session. Raise StoreUnavailable, or SchemaMismatch for a missing keyspace or
        table."""
        store = CassandraBacklogStore(self._options.url).session
        with store.translate_errors(), store.make_cluster() as cluster:
            session = cluster.connect()
            try:
                session.set_keyspace(store.url.keyspace)
                yield session
            except InvalidRequest as error:
                what = (
                    f"Cassandra's keyspace {store.url.keyspace} or a table of it is missing: run"
                    " migrate()"
                )
                raise SchemaMismatch(what) from error
