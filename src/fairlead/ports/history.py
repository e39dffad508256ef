"""The history of a store, for readers that follow it: rows in order, without a gap, each row
once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from fairlead.ports.statements import Database, Row, Steps

Feed = Literal["attempts", "events"]

ATTEMPT_FIELDS = (
    "xid",
    "seq",
    "task_id",
    "attempt",
    "tries",
    "queue",
    "name",
    "partition",
    "priority",
    "fairness_key",
    "weight",
    "ordering_key",
    "unique_key",
    "submitted_at",
    "run_at",
    "ready_at",
    "triggered_at",
    "claimed_at",
    "started_at",
    "finished_at",
    "outcome",
    "next_state",
    "error_type",
    "error_text",
    "node",
    "version",
    "payload_bytes",
    "trigger_path",
)
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


class Running(NamedTuple):
    """The tasks of a queue that a node holds."""

    queue: str
    node: str
    tasks: int
    claimed_at: int
    """When the last of these tasks was claimed (microseconds since the epoch)."""


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


class HistoryStore(Protocol):
    """Attempts and events of one store, in the order in which they were committed. Times are
    microseconds since the epoch."""

    @property
    def database(self) -> Database:
        """Database that runs the steps."""

    def store_id(self) -> Steps[str]:
        """Return the id of this store, which its migration made once."""

    def horizon(self, feed: Feed = "attempts") -> Steps[Position]:
        """Return a position before which no further row of the feed will ever appear; rows at or
        after it may still be uncommitted. The horizon never goes back, unless an earlier state of
        the store was restored."""

    def attempts(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """Return attempts after `after` and before `until`, in order, at most `limit`, with the
        columns ATTEMPT_FIELDS."""

    def events(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """Return changes that people made to tasks, after `after` and before `until`, in order, at
        most `limit`, with the columns EVENT_FIELDS."""

    def submitted(self, after: str, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Return unfinished tasks without a finished run, in order of their submit, at most
        `limit`, with the columns SUBMITTED_FIELDS. The next `after` is the first field of the last
        row; the first call passes "". Tasks are returned once every transaction that wrote before
        their submit has ended, and only if they have not run until then; the first attempt of the
        others reports them."""

    def newest_submitted(self, now: int) -> Steps[str]:
        """Return an `after` for `submitted` that skips the tasks submitted before about `now`."""

    def running(self, most_bytes: int | None = None) -> Steps[list[Running] | None]:
        """Return the tasks that nodes hold. A store that must read every unfinished task for that
        reads none, and returns None, if their table has more than `most_bytes` bytes."""

    def ended(
        self, after: Position, until: Position, since: int, submitted: int
    ) -> Steps[list[Ended]]:
        """Return counts of the attempts after `after` and at or before `until` that ended from
        `since` on.

        submitted: instant after which the tasks of first attempts were submitted to be counted.
        """

    def attempts_between(self, after: Position, until: Position) -> Steps[Totals]:
        """Return the sums over the attempts after `after` and at or before `until`."""

    def position_after(self, after: Position, until: Position, rows: int) -> Steps[Position]:
        """Return the position of the attempt `rows` rows after `after`; `until` if fewer rows lie
        before it."""

    def readers(self) -> Steps[list[Reader]]:
        """Return all registered readers."""

    def reader(self, name: str) -> Steps[Reader | None]:
        """Return the reader of this name; None if it is not registered."""

    def advance(self, name: str, kind: str, position: Position, now: int) -> Steps[None]:
        """Register a reader, or record that it has read everything up to `position`; its position
        never goes back. Once this has committed, rows that the reader has not read are not
        cleaned."""

    def checked(self, name: str, position: Position, now: int) -> Steps[None]:
        """Record that a lake agrees with this store up to `position`: the store may clean up to
        there."""

    def drop_reader(self, name: str) -> Steps[bool]:
        """Drop a reader, so that rows it has not read may be cleaned; return False if there is no
        such reader."""
