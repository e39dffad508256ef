"""The history of a store, for readers that follow it: rows in order, without a gap, each row
once."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fairlead.model.attempt import AttemptRecord

Feed = Literal["attempts", "events"]

ATTEMPT_FIELDS = ("xid", *AttemptRecord.__struct_fields__)
"""Columns of the rows that `attempts` returns."""

EVENT_FIELDS = (
    "xid",
    "seq",
    "task_id",
    "version",
    "kind",
    "at",
    "queue",
    "name",
    "fairness_key",
    "weight",
    "priority",
    "run_at",
    "actor",
    "details",
)
"""Columns of the rows that `events` returns."""

SUBMITTED_FIELDS = (
    "position",
    "task_id",
    "at",
    "queue",
    "name",
    "fairness_key",
    "weight",
    "priority",
    "run_at",
)
"""Columns of the rows that `submitted` returns."""


class Position(NamedTuple):
    """Position of a row in the history; positions are ordered. On SQLite xid is 0, because there is
    only one writer."""

    xid: int
    seq: int

    def __str__(self) -> str:
        return f"{self.xid}.{self.seq}"

    @classmethod
    def of(cls, text: str) -> Position:
        """Parse the text that `str` returns."""
        xid, _, seq = text.partition(".")
        return cls(int(xid), int(seq))


START = Position(0, 0)
"""Position before every row."""


class Reader(NamedTuple):
    """A registered reader of the history; cleaning keeps every row that a reader has not read."""

    name: str
    kind: str
    """"lake": attempts are cleaned once they were checked. "stream": attempts are cleaned once they
    were read. "events": events are cleaned once they were read."""
    position: Position
    checked: Position | None
    """Position up to which a lake was compared with the store and agreed; None for other kinds."""
    updated_at: int
    """When the reader last advanced its position (microseconds since the epoch)."""
    checked_at: int | None
    """When the lake was last compared with the store (microseconds since the epoch)."""


class Totals(NamedTuple):
    """Sums over a range of attempts."""

    rows: int
    busy_us: int
    """Sum of finished_at - started_at over all runs (microseconds)."""
    fingerprint: int
    """Sum over all rows of (31 x finished_at + 17 x seq + version) modulo FINGERPRINT_MODULUS, with
    each factor reduced by it first. Replacing a row changes the sum."""


class Ended(NamedTuple):
    """Counts of attempts that ended."""

    queue: str
    fairness_key: str
    outcome: str
    node: str
    """Node of lost attempts; empty for others."""
    attempts: int
    firsts: int
    """First attempts of tasks that were submitted recently."""


FINGERPRINT_MODULUS = 1_000_000_007
