"""What the processes of one bulk submit tell each other, and what it says at its end."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.errors import FairleadError
from fairlead.ports.notification import Notification


class Superseded(FairleadError):
    """Another run of the same submission has taken over; this one publishes nothing."""


class StageLost(FairleadError):
    """Rows that were staged are gone: nothing that is left may count as the whole."""


class KeyTaken(FairleadError):
    """Under on_conflict=error a unique key was taken: nothing was published."""


class Message(msgspec.Struct, frozen=True):
    """One attempt (a run of a task of Spark) has staged one part (a partition of the DataFrame)."""

    submission_id: str
    epoch: str
    part: int
    attempt: str
    """A UUID; made for this run alone."""
    rows: int
    rejected: int
    bytes: int
    is_keyed: bool
    """True when some of its rows have unique keys."""
    queues: dict[str, int]
    """Partitions of the queues of its rows."""


class Piece(NamedTuple):
    """Rows `first` up to `last` (not included) of what an attempt has staged."""

    attempt: str
    first: int
    last: int


class Totals(msgspec.Struct, frozen=True):
    """What became of the rows of a submission. inserted + duplicate = staged."""

    submission_id: str
    staged: int
    inserted: int
    duplicate: int
    """Left out, as their unique key was taken."""
    rejected: int
    """Refused, and kept in fairlead_bulk_rejects."""
    publish: str
    """"atomic": all of it became visible at once; "chunked": it did not, though each row did
    exactly once."""


class Opened(msgspec.Struct, frozen=True):
    """The state of a job when this run opened it; travels to the processes that stage."""

    number: int
    submission_id: str
    epoch: str
    state: str
    opened_at: int
    registered: dict[str, int]
    """Partitions of the queues that are known."""

    @property
    def needs_rows(self) -> bool:
        """False: all is published, or all is staged by an earlier run and being published in
        chunks."""
        return self.state == "open"


class Published(NamedTuple):
    """What one step of publishing did."""

    inserted: int
    notification: Notification


def pieces(messages: list[Message], first: int, last: int) -> list[Piece]:
    """Rows `first` up to `last` of all parts together, in the order of the parts."""
    found = []
    start = 0
    for message in messages:
        begin, end = max(first - start, 0), min(last - start, message.rows)
        if begin < end:
            found.append(Piece(message.attempt, begin, end))
        start += message.rows
    return found
