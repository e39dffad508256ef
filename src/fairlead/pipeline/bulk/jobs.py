"""The row of a bulk submit in fairlead_bulk_jobs, as steps for the caller's transaction."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.pipeline.bulk.message import Message, Superseded, Totals
from fairlead.ports.statements import Statement, Steps

_decode = msgspec.json.Decoder(list[Message]).decode


class JobRow(NamedTuple):
    """See the migration for what each column means."""

    submission_id: str
    number: int
    epoch: str
    state: str
    publish: str
    opened_at: int
    parts: str | None
    staged: int
    published_through: int
    inserted: int
    duplicates: int
    rejected: int

    @property
    def messages(self) -> list[Message]:
        """Of the parts that are being published, in order."""
        return _decode(self.parts or "[]")

    @property
    def totals(self) -> Totals | None:
        """None until the job is committed."""
        if self.state != "committed":
            return None
        return Totals(
            self.submission_id,
            self.staged,
            self.inserted,
            self.duplicates,
            self.rejected,
            self.publish,
        )


def find(sql: dict[str, str], submission_id: str) -> Steps[JobRow | None]:
    """The job as it is now."""
    rows = yield Statement(sql["job"], (submission_id,))
    return JobRow(submission_id, *rows[0]) if rows else None


def lock(sql: dict[str, str], submission_id: str, epoch: str) -> Steps[JobRow]:
    """The job, and nobody else changes it before this transaction ends.

    Raises Superseded unless it is committed, or is the job of the run with this epoch.
    """
    rows = yield Statement(sql["lock_job"], (submission_id,))
    job = JobRow(submission_id, *rows[0]) if rows else None
    if job is None or (job.state != "committed" and (job.epoch != epoch or job.state == "aborted")):
        raise superseded(submission_id)
    return job


def touch(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[None]:
    """Show that this run is alive. Raises Superseded."""
    if not (yield Statement(sql["touch_job"], (submission_id, epoch, now))):
        raise superseded(submission_id)


def give_up(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[int | None]:
    """End a run that has published nothing; answers the number of its job, or None when that is not
    its own any more."""
    rows = yield Statement(sql["abort_job"], (submission_id, epoch, now))
    return rows[0][0] if rows else None


def superseded(submission_id: str) -> Superseded:
    """The error of a run whose job is no longer its own."""
    return Superseded(
        f"submission {submission_id!r}: another run has taken over, or this one was given up;"
        " nothing more of it is published"
    )
