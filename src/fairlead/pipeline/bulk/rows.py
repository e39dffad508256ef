"""Check and encode user rows as staged rows with ids and partitions, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.model import DEFAULT_PRIORITY, DEFAULT_WEIGHT
from fairlead.pipeline.bulk import arguments
from fairlead.pipeline.bulk.checks import Problems, Reject, check
from fairlead.pipeline.bulk.columns import known_columns, staged
from fairlead.pipeline.bulk.content import RowDigest
from fairlead.pipeline.bulk.declared_types import PLACE, PROBLEM, convert
from fairlead.pipeline.bulk.ids import IdSpace
from fairlead.pipeline.bulk.options import BulkOptions

MOST_BYTES = 64 << 20
"""Maximum number of bytes of user rows in one batch: the encoded rows may be several times larger,
and are limited to 2 GiB."""


class RowEncoder:
    """Encoder of the rows of one part, in order."""

    def __init__(self, options: BulkOptions, registered: Mapping[str, int], space: IdSpace) -> None:
        """`registered`: number of partitions of each known queue."""
        self._options = options
        self._registered = registered
        self._space = space
        self._rows_read = 0
        self.rows = 0
        self.rejected = 0
        self.bytes = 0
        self.digest = RowDigest()
        self.is_keyed = False
        """True when a row has a unique key."""
        self.queues: dict[str, int] = {}
        """Number of partitions of each queue of the rows."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[Reject]]]:
        """Yield the batch in encoded pieces (see `columns.staged`), each with its refused rows."""
        at_once = max(1, batch.num_rows * MOST_BYTES // max(MOST_BYTES, batch.nbytes))
        for first in range(0, batch.num_rows, at_once):
            yield self._encode(batch.slice(first, at_once))

    def _encode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Reject]]:
        options = self._options
        known = known_columns(batch.schema, options)
        problems = Problems(self._rows_read, batch.num_rows, _places(batch))
        self._rows_read += batch.num_rows
        batch = _readable(batch, options, problems)
        for column in known:
            default = {"queue": options.queue, "name": options.task}.get(column)
            values = batch.column(column)
            check(column, values if default is None else values.fill_null(default), problems)
        if options.submission_id is None:
            _need_unique_keys(batch, problems)
        payloads = arguments.encoded(batch, options, problems)
        rejects = problems.rejects
        if rejects:
            good = problems.good()
            batch = batch.filter(good)
            payloads = [
                payload
                for payload, is_good in zip(payloads, good.to_pylist(), strict=True)
                if is_good
            ]
        columns = {column: batch.column(column) for column in known}
        encoded = pa.record_batch(self._columns(batch.num_rows, columns, payloads), schema=staged())
        self.rows += encoded.num_rows
        self.digest.add_rows(encoded, payloads)
        self.digest.add_rejects(rejects)
        self.rejected += len(rejects)
        self.bytes += encoded.nbytes
        return encoded, rejects

    def _columns(
        self, count: int, columns: dict[str, pa.Array], payloads: list[bytes]
    ) -> list[pa.Array]:
        """Return the columns as in `columns.staged()`."""
        options = self._options
        queues = _given(columns, "queue", pa.string(), count, options.queue)
        ordering_keys = _given(columns, "ordering_key", pa.string(), count)
        unique_keys = _given(columns, "unique_key", pa.string(), count)
        self.is_keyed = self.is_keyed or unique_keys.null_count < count
        lows = self._space.lows(self.rows, count)
        run_at = columns.get("run_at")
        stored, formats = arguments.packed(payloads)
        return [
            pa.array(range(self.rows, self.rows + count), pa.int64()),
            self._space.ids(lows),
            pa.array(self._space.partitions(lows, ordering_keys, self._counts(queues))),
            _given(columns, "priority", pa.int16(), count, DEFAULT_PRIORITY),
            _given(columns, "weight", pa.float64(), count, DEFAULT_WEIGHT),
            pa.repeat(options.keep_result, count),
            queues,
            _given(columns, "name", pa.string(), count, options.task),
            _given(columns, "fairness_key", pa.string(), count, ""),
            ordering_keys,
            unique_keys,
            pa.nulls(count, pa.int64())
            if run_at is None
            else run_at.cast(pa.timestamp("us", "UTC"), False).cast(pa.int64()),
            _contexts(columns.get("context"), count),
            formats,
            stored,
        ]

    def _counts(self, queues: pa.Array) -> pa.Array:
        """Return the number of partitions of each row's queue."""
        names = queues.dictionary_encode()
        found = names.dictionary.to_pylist()
        for queue in found:
            self.queues.setdefault(queue, self._options.partitions_of(self._registered, queue))
        return np.array([self.queues[queue] for queue in found] or [1], dtype=np.uint64)[
            names.indices.to_numpy()
        ]


def _given(
    columns: Mapping[str, pa.Array],
    name: str,
    type: pa.DataType,
    count: int,
    default: str | float | None = None,
) -> pa.Array:
    """Return the column with its nulls filled by the default; without the column, the default."""
    if name not in columns:
        return (
            pa.nulls(count, type) if default is None else pa.repeat(pa.scalar(default, type), count)
        )
    values = columns[name].cast(type)
    return values if default is None else values.fill_null(pa.scalar(default, type))


def _places(batch: pa.RecordBatch) -> list[str] | None:
    """Return where each row comes from, if the reader of a file has said so."""
    return batch.column(PLACE).to_pylist() if PLACE in batch.schema.names else None


def _readable(batch: pa.RecordBatch, options: BulkOptions, problems: Problems) -> pa.RecordBatch:
    """Return the rows with the declared types; refuse those that a reader of files could not
    read."""
    if PROBLEM in batch.schema.names:
        found = batch.column(PROBLEM)
        for row in pc.indices_nonzero(found.is_valid()).to_pylist():
            column, _, reason = found[row].as_py().partition("\n")
            problems.note(row, column, None, reason)
    for name, type_ in options.types:
        values = convert(name, batch.column(name), type_, problems)
        batch = batch.set_column(batch.schema.get_field_index(name), name, values)
    return batch


def _need_unique_keys(batch: pa.RecordBatch, problems: Problems) -> None:
    for row in pc.indices_nonzero(batch.column("unique_key").is_null()).to_pylist():
        problems.note(
            row,
            "unique_key",
            None,
            "unique_key None: without option submission_id every row needs one",
        )


def _contexts(column: pa.Array | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.string())
    return pa.array(
        [json.dumps(dict(entries)) if entries else None for entries in column.to_pylist()],
        pa.string(),
    )
