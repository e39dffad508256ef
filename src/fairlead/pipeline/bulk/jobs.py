"""Jobs of bulk submit: their rows in fairlead_bulk_jobs, as steps for the caller's transaction, and
the messages about their staged rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from fairlead.clock import MICROS
from fairlead.errors import FairleadError
from fairlead.ports.statements import Statement, Steps

DIGEST_MODULUS = 1 << 128
_TOUCH_EVERY = 60 * MICROS
"""Microseconds between two renewals of `touched_at`. Few of them, so that few replaced rows are in
the way of the next statement beside a transaction that stays open."""


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
    is_keyed: bool
    """True when some rows have unique keys."""
    queues: dict[str, int]
    """Number of partitions of each queue of the rows."""
    digest: str
    """Digest of the rows in any order, in hexadecimal digits; see `rows.digest_of`."""
    bytes: int = 0
    """Nothing reads it; a process of an earlier development version needs it to take over a job."""


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


class JobRow(NamedTuple):
    """Row of a job; the migration describes each column."""

    submission_id: str
    number: int
    epoch: str
    state: str
    publish: str
    opened_at: int
    touched_at: int
    parts: str | None
    staged: int
    published_through: int
    inserted: int
    duplicates: int
    rejected: int
    declared: str | None
    content: str | None

    @property
    def needs_rows(self) -> bool:
        """Whether rows must be staged: False if all rows are published, or if an earlier run staged
        them and began to publish them in chunks."""
        return self.state == "open"

    @property
    def messages(self) -> list[StagedPart]:
        """Messages of the parts being published, in order."""
        return msgspec.json.decode(self.parts or "[]", type=list[StagedPart])

    @property
    def totals(self) -> SubmissionTotals:
        """Totals of the rows that are published so far."""
        counts = (self.staged, self.inserted, self.duplicates, self.rejected)
        return SubmissionTotals(self.submission_id, *counts, self.publish)

    def pieces(self, first: int, last: int) -> list[StagedPiece]:
        """Return the pieces of the parts that cover rows `first` up to `last` (not included),
        counted through all parts in order."""
        found = []
        start = 0
        for message in self.messages:
            begin, end = max(first - start, 0), min(last - start, message.rows)
            if begin < end:
                found.append(StagedPiece(message.attempt, begin, end))
            start += message.rows
        return found

    def check_content(self, given: str | None, kept: str | None) -> None:
        """Raise ContentDiffers unless both digests, if there are two, are the same."""
        if given is not None and kept is not None and given != kept:
            state = "is committed" if self.state == "committed" else "has begun to publish"
            raise ContentDiffers(
                f"submission {self.submission_id!r} {state} with other content ({kept}, not"
                f" {given}): the rows or the options that shape the tasks have changed, and nothing"
                " more was submitted; give new rows a submission_id of their own, or repeat the"
                " same rows"
            )


def find(sql: dict[str, str], submission_id: str, statement: str = "job") -> Steps[JobRow | None]:
    """Return the row of the job; None if there is none."""
    rows = yield Statement(sql[statement], (submission_id,))
    return JobRow(submission_id, *rows[0]) if rows else None


def lock(sql: dict[str, str], submission_id: str, epoch: str) -> Steps[JobRow]:
    """Return the row of the job, locked until the end of this transaction.

    Raise RunSuperseded unless the job is committed or belongs to the run with this epoch.
    """
    job = yield from find(sql, submission_id, "lock_job")
    if job is None or (job.state != "committed" and (job.epoch != epoch or job.state == "aborted")):
        raise superseded(submission_id)
    return job


def touch(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[None]:
    """Record that this run is alive. Raise RunSuperseded if another run has taken over."""
    job = yield from lock(sql, submission_id, epoch)
    if job.epoch != epoch:
        raise superseded(submission_id)
    if not job.touched_at <= now <= job.touched_at + _TOUCH_EVERY:
        yield Statement(sql["touch_job"], (submission_id, now))


def end_run(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[int | None]:
    """End a run that has published nothing; return the number of its job, or None if another run
    owns it."""
    rows = yield Statement(sql["abort_job"], (submission_id, epoch, now))
    return rows[0][0] if rows else None


def superseded(submission_id: str) -> RunSuperseded:
    """Return the error of a run that is aborted or superseded by another run."""
    return RunSuperseded(
        f"submission {submission_id!r}: another run has taken over, or this run was"
        " aborted; this run publishes nothing more"
    )


def joined_content(messages: Iterable[StagedPart]) -> str:
    """Return the counts and the digest of the rows of all parts, as `fairlead_bulk_jobs.content`
    holds them."""
    rows = rejected = total = 0
    for message in messages:
        rows += message.rows
        rejected += message.rejected
        total += int(message.digest, 16)
    return f"{rows}+{rejected}:{total % DIGEST_MODULUS:032x}"
