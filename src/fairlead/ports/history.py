"""The history of a store, as those who follow it read it: in order, without a gap, each row
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
"""Columns of the rows that `attempts` answers."""

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
"""Columns of the rows that `events` answers."""

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
"""Columns of the rows that `submitted` answers."""


class Position(NamedTuple):
    """Where a row of the history stands; places are compared. On SQLite xid is 0: it has one
    writer."""

    xid: int
    seq: int

    def __str__(self) -> str:
        return f"{self.xid}.{self.seq}"

    @classmethod
    def of(cls, text: str) -> Position:
        """Of what `str` made."""
        xid, _, seq = text.partition(".")
        return cls(int(xid), int(seq))


START = Position(0, 0)
"""Before every row."""


class Reader(NamedTuple):
    """Somebody who follows the history: what it has not read is not cleaned."""

    name: str
    kind: str
    """"lake": attempts are cleaned once they were checked. "stream": once they were read. "events":
    those, once read."""
    position: Position
    checked: Position | None
    """Of a lake: up to there it was compared with the store, and agreed."""
    updated_at: int
    """When it last said how far it has read (microseconds)."""
    checked_at: int | None
    """When it was last compared."""


class Totals(NamedTuple):
    """What a stretch of the history adds up to."""

    rows: int
    busy_us: int
    """Of all runs: finished_at - started_at."""
    fingerprint: int
    """Sum over all rows of (31 x finished_at + 17 x seq + version) modulo FINGERPRINT_MODULUS, each
    factor taken modulo it first: a row in the place of another one shows."""


class Running(NamedTuple):
    """The tasks of a queue that a node holds."""

    queue: str
    node: str
    tasks: int
    claimed_at: int
    """When the last one of them was taken (microseconds)."""
    stuck: int
    """Of them, past their greatest time."""


FINGERPRINT_MODULUS = 1_000_000_007


class HistoryStore(Protocol):
    """Attempts and events of one store, in the order in which they were committed."""

    @property
    def database(self) -> Database:
        """Where the steps run."""

    def store_id(self) -> Steps[str]:
        """Which store this is; made once, by its migration."""

    def horizon(self, feed: Feed = "attempts") -> Steps[Position]:
        """No row of the feed will ever appear before this place that is not there now; rows at or
        after it may still be on their way. It never goes back, unless an earlier state of the store
        was restored."""

    def attempts(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """Attempts behind `after` and before `until`, in order, at most `limit`: ATTEMPT_FIELDS."""

    def events(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """What people did to tasks, likewise: EVENT_FIELDS."""

    def submitted(self, after: str, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Unfinished tasks that have no finished run yet, in order of their submit, at most
        `limit`: SUBMITTED_FIELDS; the first field of the last one is the next `after` ("" at
        first). A task that commits later than all it was submitted with is left to its first
        attempt."""

    def newest_submitted(self, now: int) -> Steps[str]:
        """The `after` of `submitted` behind which only tasks are that were submitted about from
        `now` on."""

    def running(self, now: int) -> Steps[list[Running]]:
        """What nodes hold. Every unfinished task is looked at."""

    def attempts_between(self, after: Position, until: Position) -> Steps[Totals]:
        """What the attempts behind `after` and at or before `until` add up to."""

    def position_after(self, after: Position, until: Position, rows: int) -> Steps[Position]:
        """The place of the attempt that is so many rows behind `after`; `until` when that many are
        not before it."""

    def readers(self) -> Steps[list[Reader]]:
        """All that are registered."""

    def reader(self, name: str) -> Steps[Reader | None]:
        """The one of this name; None when it is not registered."""

    def advance(self, name: str, kind: str, position: Position, now: int) -> Steps[None]:
        """Register a reader, or note that it has read everything up to `place`; it never goes back.
        Once this has committed, nothing is cleaned that the reader has not read."""

    def checked(self, name: str, position: Position, now: int) -> Steps[None]:
        """A lake was compared with this store up to `place`, and they agree: up to there the store
        may clean."""

    def drop_reader(self, name: str) -> Steps[bool]:
        """What it has not read may be cleaned; False when there is no such reader."""
