"""Messages between the processes of one bulk submit, and its totals."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.errors import FairleadError
from fairlead.ports.notification import Notification


class RunSuperseded(FairleadError):
    """Another run of the same submission has taken over; this one publishes nothing."""


class StageLost(FairleadError):
    """Some staged rows are missing, so the others must not be published as if they were
    complete."""


class KeyTaken(FairleadError):
    """Unique keys of some rows were taken, and on_conflict is "error"; nothing was published."""


class ContentDiffers(FairleadError):
    """A submission was published, whole or in part, with other content; this run submitted
    nothing."""


class StagedPart(msgspec.Struct, frozen=True):
    """Message that an attempt of a Spark task staged one part (a partition of the DataFrame)."""

    submission_id: str
    epoch: str
    part: int
    attempt: str
    """UUID of this attempt of the Spark task; empty when the rows were only compared."""
    rows: int
    rejected: int
    bytes: int
    is_keyed: bool
    """True when some rows have unique keys."""
    queues: dict[str, int]
    """Number of partitions of each queue of the rows."""
    digest: str
    """Digest of the rows in any order, in hexadecimal digits; see `content.RowDigest`."""


class StagedPiece(NamedTuple):
    """Rows from `first` up to `last` (not included) that an attempt has staged."""

    attempt: str
    first: int
    last: int


class SubmissionTotals(msgspec.Struct, frozen=True):
    """Totals of the rows of a submission: inserted + duplicate = staged."""

    submission_id: str
    staged: int
    inserted: int
    duplicate: int
    """Rows left out because their unique keys were taken."""
    rejected: int
    """Refused rows, stored in fairlead_bulk_rejects."""
    publish: str
    """"atomic": all rows became visible at once; "chunked": in several commits, each row exactly
    once."""


class Opened(msgspec.Struct, frozen=True):
    """State of a job when this run opened it, sent to the processes that stage."""

    number: int
    submission_id: str
    epoch: str
    state: str
    opened_at: int
    registered: dict[str, int]
    """Number of partitions of each known queue."""
    is_same: bool
    """Whether the digest that the submitter gave is that of the rows published before."""

    @property
    def needs_rows(self) -> bool:
        """Whether rows must be staged: False if all rows are published, or if an earlier run staged
        them and began to publish them in chunks."""
        return self.state == "open"


class Published(NamedTuple):
    """Result of one step of publishing."""

    inserted: int
    notification: Notification


def pieces(messages: list[StagedPart], first: int, last: int) -> list[StagedPiece]:
    """Return the pieces of the parts that cover rows `first` up to `last` (not included), counted
    through all parts in order."""
    found = []
    start = 0
    for message in messages:
        begin, end = max(first - start, 0), min(last - start, message.rows)
        if begin < end:
            found.append(StagedPiece(message.attempt, begin, end))
        start += message.rows
    return found
