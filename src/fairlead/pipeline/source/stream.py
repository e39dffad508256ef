"""The stream of attempts: each attempt once, in the order of commits, from the position of the
checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError
from fairlead.model.history import START, Position
from fairlead.pipeline.source.batch import ReadPart, read_part, scan_of
from fairlead.pipeline.source.options import ReadOptions
from fairlead.ports.statements import Steps

T = TypeVar("T")

KIND = "stream"
"""Kind of the readers for which the store keeps attempts."""


class FairleadStreamReader(DataSourceStreamReader):
    """Stream reader of a store. An offset is the position of the last attempt read.

    The offset moves only to a position at or before which no attempt will appear later. So a batch
    is the same at each read while the store keeps its rows; set the option `reader` to keep them.
    On PostgreSQL, an open transaction that has written holds back attempts committed after it.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Raise ConfigurationError for a table other than attempts, or an unusable URL."""
        if options.table != "attempts":
            raise ConfigurationError(
                f"table {options.table} cannot be streamed, attempts can: read it as a batch"
            )
        self._options = options
        self._scan = scan_of(options)
        self._began: Position | None = None
        self._planned: Position | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the start of a new checkpoint, the same again after a crash in the first batch."""
        return self._offset(self._beginning())

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the end of the next batch, at most `max_rows_per_batch` attempts after the last
        one. Without this option, a batch has all of them: with the trigger availableNow, Spark asks
        a Python source for one end only."""
        # With an existing checkpoint, Spark has first planned an empty batch at its end.
        after = self._planned or self._beginning()
        return self._offset(self._scan.newest(after, self._options.max_rows_per_batch))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[ReadPart]:
        """Return the partitions of the batch after `start` up to `end`."""
        after, through = self._position(start), self._position(end)
        self._planned = through
        if after == through:
            return []
        if self._began is None:
            # The checkpoint existed before, so everything before this batch is read.
            self._began = after
            self._note(after)
        return [ReadPart((piece,)) for piece in self._scan.window(after, through)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._scan, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Record the position in the store. Spark calls `commit` for the last batch of a run only
        in the next run."""
        self._note(self._position(end))

    def _beginning(self) -> Position:
        if self._began is None:
            self._began = START
            self._note(self._began)
        return self._began

    def _note(self, position: Position) -> None:
        """Advance this reader in the store; the position never goes back."""
        name = self._options.reader
        if name is not None:
            self._run(lambda history: _advance(history, name, position))

    def _run(self, steps: Callable[[SqlHistory], Steps[T]]) -> T:
        with closing(task_store(self._options.url).database) as database:
            return database.run(steps(SqlHistory(database)))

    def _position(self, offset: dict[str, int]) -> Position:
        """Return the position of an offset in a checkpoint."""
        names = self._scan.offset_fields
        if offset.keys() != set(names):
            raise ConfigurationError(
                f"the checkpoint's offset {dict(offset)} is not of this store, whose offsets have"
                f" {' and '.join(names)}: give the URL it was begun with, or begin a new checkpoint"
            )
        return Position(offset.get("xid", 0), offset[names[-1]])

    def _offset(self, position: Position) -> dict[str, int]:
        names = self._scan.offset_fields
        return dict(zip(names, position[-len(names) :], strict=True))


def _advance(history: SqlHistory, name: str, position: Position) -> Steps[None]:
    reader = yield from history.reader(name)
    if reader is not None and reader.kind != KIND:
        raise ConfigurationError(f"reader {name!r} is the name of a {reader.kind}: choose another")
    yield from history.advance(name, KIND, position, SYSTEM_CLOCK.now())
