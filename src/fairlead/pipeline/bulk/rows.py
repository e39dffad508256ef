"""Check and encode user rows as staged rows with ids and partitions, batch by batch, and a digest
of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.model import DEFAULT_PRIORITY, DEFAULT_WEIGHT
from fairlead.pipeline.bulk import arguments
from fairlead.pipeline.bulk.binary_rows import row_bytes
from fairlead.pipeline.bulk.checks import Problems, Reject, check
from fairlead.pipeline.bulk.columns import STAGED, known_columns
from fairlead.pipeline.bulk.declared_types import PLACE, PROBLEM, convert
from fairlead.pipeline.bulk.ids import IdSpace
from fairlead.pipeline.bulk.jobs import DIGEST_MODULUS
from fairlead.pipeline.bulk.options import BulkOptions

MOST_BYTES = 64 << 20
"""Maximum number of bytes of user rows in one batch: the encoded rows may be several times larger,
and are limited to 2 GiB."""
_CONTENT = [
    name
    for name in STAGED.names
    if name not in ("ordinal", "id", "partition", "payload_format", "payload")
]
"""Columns of a staged row that are the same in two runs of the same rows; the payload counts as it
was before compression."""


def digest_of(contents: Iterable[bytes]) -> int:
    """Return the sum of the BLAKE2b digests of rows modulo 2^128, so that neither the order of the
    rows nor their partition changes it. Equal rows count as often as they occur."""
    digest, number = hashlib.blake2b, int.from_bytes
    total = sum(number(digest(content, digest_size=16).digest()) for content in contents)
    return total % DIGEST_MODULUS


def _contents(
    staged: pa.RecordBatch, payloads: Sequence[bytes], rejects: Iterable[Reject]
) -> Iterator[bytes]:
    """Yield the content of each row: accepted ones with their uncompressed payloads, and refused
    ones, of which only the reason and the beginning of the value are known."""
    contexts = staged.column("context")
    if contexts.null_count < len(contexts):
        # The order of the entries of a map is no content.
        texts = [
            text and json.dumps(json.loads(text), sort_keys=True) for text in contexts.to_pylist()
        ]
        index = staged.schema.get_field_index("context")
        staged = staged.set_column(index, "context", pa.array(texts, pa.string()))
    rows = row_bytes(staged.select(_CONTENT), 0, bytes(16)).to_pylist()
    for row, payload in zip(rows, payloads, strict=True):
        yield b"%d %b%b" % (len(row), row, payload)
    for reject in rejects:
        yield "\0".join(("rejected", *reject[1:])).encode()


class RowEncoder:
    """Encoder of the rows of one part, in order."""

    def __init__(self, options: BulkOptions, registered: Mapping[str, int], space: IdSpace) -> None:
        """`registered`: number of partitions of each known queue."""
        self._options = options
        self._registered = registered
        self._space = space
        self.rows = 0
        self.rejected = 0
        self.digest = 0
        """Digest of all rows; see `digest_of`."""
        self.is_keyed = False
        """True when a row has a unique key."""
        self.queues: dict[str, int] = {}
        """Number of partitions of each queue of the rows."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[Reject]]]:
        """Yield the batch in encoded pieces (see `columns.STAGED`), each with its refused rows."""
        at_once = max(1, batch.num_rows * MOST_BYTES // max(MOST_BYTES, batch.nbytes))
        for first in range(0, batch.num_rows, at_once):
            yield self._encode(batch.slice(first, at_once))

    def _encode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Reject]]:
        options, names = self._options, batch.schema.names
        known = known_columns(batch.schema, options)
        places = batch.column(PLACE).to_pylist() if PLACE in names else None
        problems = Problems(self.rows + self.rejected, places)
        if PROBLEM in names:
            found = batch.column(PROBLEM)
            for row in pc.indices_nonzero(found.is_valid()).to_pylist():
                column, _, reason = found[row].as_py().partition("\n")
                problems.note(row, column, None, reason)
        for name, type_ in options.types:
            values = convert(name, batch.column(name), type_, problems)
            batch = batch.set_column(names.index(name), name, values)
        for column in known:
            default = {"queue": options.queue, "name": options.task}.get(column)
            values = batch.column(column)
            check(column, values if default is None else values.fill_null(default), problems)
        if options.submission_id is None:
            reason = "unique_key None: without option submission_id every row needs one"
            for row in pc.indices_nonzero(batch.column("unique_key").is_null()).to_pylist():
                problems.note(row, "unique_key", None, reason)
        payloads = arguments.encoded(batch, options, problems)
        rejects = problems.rejects
        if rejects:
            good = np.ones(batch.num_rows, dtype=bool)
            good[problems.rows] = False
            batch = batch.filter(pa.array(good))
            payloads = list(compress(payloads, good.tolist()))
        encoded = self._staged({name: batch.column(name) for name in known}, payloads)
        self.rows += encoded.num_rows
        self.digest += digest_of(_contents(encoded, payloads, rejects))
        self.rejected += len(rejects)
        return encoded, rejects

    def _staged(self, columns: dict[str, pa.Array], payloads: list[bytes]) -> pa.RecordBatch:
        """Return the rows with the columns of `STAGED`."""
        options, count = self._options, len(payloads)
        defaults = {
            "priority": DEFAULT_PRIORITY,
            "weight": DEFAULT_WEIGHT,
            "keep_result": options.keep_result,
            "queue": options.queue,
            "name": options.task,
            "fairness_key": "",
        }

        def column(name: str) -> pa.Array:
            type_, default = STAGED.field(name).type, defaults.get(name)
            values = columns[name].cast(type_) if name in columns else pa.nulls(count, type_)
            return values if default is None else values.fill_null(pa.scalar(default, type_))

        if "run_at" in columns:
            columns["run_at"] = columns["run_at"].cast(pa.timestamp("us", "UTC"), False)
        if "context" in columns:
            maps = columns["context"].to_pylist()
            texts = [json.dumps(dict(entries)) if entries else None for entries in maps]
            columns["context"] = pa.array(texts, pa.string())
        lows = self._space.lows(self.rows, count)
        counts = self._counts(column("queue"))
        partitions = self._space.partitions(lows, column("ordering_key"), counts)
        columns["ordinal"] = pa.array(range(self.rows, self.rows + count), pa.int64())
        columns["id"] = self._space.ids(lows)
        columns["partition"] = pa.array(partitions)
        columns["payload"], columns["payload_format"] = arguments.packed(payloads)
        staged = pa.record_batch([column(name) for name in STAGED.names], schema=STAGED)
        self.is_keyed = self.is_keyed or staged.column("unique_key").null_count < count
        return staged

    def _counts(self, queues: pa.Array) -> npt.NDArray[np.uint64]:
        """Return the number of partitions of each row's queue."""
        names = queues.dictionary_encode()
        found = names.dictionary.to_pylist()
        for queue in found:
            self.queues.setdefault(queue, self._options.partitions_of(self._registered, queue))
        counts = np.array([self.queues[queue] for queue in found] or [1], dtype=np.uint64)
        of_rows: npt.NDArray[np.uint64] = counts[names.indices.to_numpy()]
        return of_rows
