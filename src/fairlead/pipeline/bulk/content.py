"""The content of a submission: how many rows it has, and a digest of them in any order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fairlead.pipeline.bulk.binary_rows import row_bytes
from fairlead.pipeline.bulk.message import StagedPart

if TYPE_CHECKING:
    from fairlead.pipeline.bulk.checks import Reject

_BYTES = 16
_MODULUS = 1 << (8 * _BYTES)
_NOT_CONTENT = frozenset({"ordinal", "id", "partition", "payload_format", "payload"})
"""Columns of a staged row that differ between two runs of the same rows; the payload counts as it
was before compression."""


class RowDigest:
    """Sum of the BLAKE2b digests of rows modulo 2^128, so that neither the order of the rows nor
    their partition changes it. Equal rows count as often as they occur."""

    def __init__(self) -> None:
        self._sum = 0

    @property
    def text(self) -> str:
        """The digest in hexadecimal digits."""
        return f"{self._sum:032x}"

    def add_rows(self, staged: pa.RecordBatch, payloads: Sequence[bytes]) -> None:
        """Add accepted rows and their uncompressed payloads."""
        kept = [name for name in staged.schema.names if name not in _NOT_CONTENT]
        staged = staged.set_column(
            staged.schema.get_field_index("context"), "context", _sorted(staged.column("context"))
        )
        rows = row_bytes(staged.select(kept), 0, bytes(16)).to_pylist()
        self._add(
            b"%d %b%b" % (len(row), row, payload)
            for row, payload in zip(rows, payloads, strict=True)
        )

    def add_rejects(self, rejects: Iterable[Reject]) -> None:
        """Add refused rows, of which only the reason and the beginning of the value are known."""
        self._add(
            "\0".join(("rejected", reject.column, reject.reason, reject.value)).encode()
            for reject in rejects
        )

    def _add(self, rows: Iterable[bytes]) -> None:
        digest, number = hashlib.blake2b, int.from_bytes
        self._sum += sum(number(digest(row, digest_size=_BYTES).digest()) for row in rows)
        self._sum %= _MODULUS


def _sorted(contexts: pa.Array) -> pa.Array:
    """Return the JSON objects with sorted keys: the order of a map's entries is no content."""
    if contexts.null_count == len(contexts):
        return contexts
    texts = (text and json.dumps(json.loads(text), sort_keys=True) for text in contexts.to_pylist())
    return pa.array(texts, pa.string())


def joined_content(messages: Iterable[StagedPart]) -> str:
    """Return the counts and the digest of the rows of all parts, as `fairlead_bulk_jobs.content`
    holds them."""
    rows = rejected = total = 0
    for message in messages:
        rows += message.rows
        rejected += message.rejected
        total += int(message.digest, 16)
    return f"{rows}+{rejected}:{total % _MODULUS:032x}"
