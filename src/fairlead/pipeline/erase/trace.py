"""Traces that a key leaves in rows of other keys: the days whose sums count its attempts, and the
errors whose example text may come from one of its attempts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import to_micros
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.erase.rows import is_of
from fairlead.pipeline.erase.wanted import Wanted
from fairlead.pipeline.parts import HOUR_US
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse

READ = (
    "fairness_key",
    "queue",
    "name",
    "outcome",
    "error_fp",
    "submitted_at",
    "ready_at",
    "claimed_at",
    "started_at",
    "finished_at",
)

Error = tuple[int, str, str, int]
"""Hour (microseconds), queue, name and fingerprint: the key of gold.failures."""


@dataclass
class Trace:
    """Days and errors that count attempts of a key."""

    rows: int = 0
    dates: set[str] = field(default_factory=set)
    errors: set[Error] = field(default_factory=set)

    def add(self, rows: pa.Table) -> None:
        """Add attempts of the key."""
        self.rows += rows.num_rows
        if not rows.num_rows:
            return
        ends = rows["finished_at"].cast(pa.int64())
        begins = pc.min_element_wise(
            ends, *(rows[name].cast(pa.int64()) for name in ("ready_at", "started_at"))
        )
        days = pa.table({"first": pc.divide(begins, DAY_US), "last": pc.divide(ends, DAY_US)})
        for pair in days.group_by(["first", "last"]).aggregate([]).to_pylist():
            self.dates.update(map(_date, range(pair["first"], pair["last"] + 1)))
        failed = rows.select(["finished_at", "queue", "name", "outcome", "error_fp"]).filter(
            pc.not_equal(rows["outcome"], "done")
        )
        self.errors.update(map(_error, failed.to_pylist()))

    def may_quote(self, failures: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows of gold.failures that may contain an error text of these
        attempts."""
        keys = failures.select(["hour", "queue", "name", "error_fp"]).to_pylist()
        found = [
            (to_micros(k["hour"]), k["queue"], k["name"], k["error_fp"]) in self.errors
            for k in keys
        ]
        return pa.chunked_array([pa.array(found, pa.bool_())])


def trace(warehouse: Warehouse, wanted: Wanted) -> Trace:
    """Return the trace of a key's attempts in bronze. Load one partition at a time."""
    found, table = Trace(), warehouse.table(ATTEMPTS)
    for part in sorted({file.part for file in table.files()}):
        rows = table.load([part], list(READ))
        found.add(rows.filter(is_of(ATTEMPTS, rows, wanted)))
    return found


def _error(row: dict[str, Any]) -> Error:
    end = to_micros(row["finished_at"])
    fingerprint = row["error_fp"]
    if fingerprint is None:
        fingerprint = zlib.crc32(row["outcome"].encode())  # as in gold.failures
    return end - end % HOUR_US, row["queue"], row["name"], fingerprint


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
