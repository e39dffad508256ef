"""The row of a bulk submit in fairlead_bulk_jobs, as steps for the caller's transaction."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.pipeline.bulk.message import (
    ContentDiffers,
    RunSuperseded,
    StagedPart,
    SubmissionTotals,
)
from fairlead.ports.statements import Statement, Steps

_decode = msgspec.json.Decoder(list[StagedPart]).decode


class JobRow(NamedTuple):
    """Row of a job; the migration describes each column."""

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
    declared: str | None
    content: str | None

    @property
    def messages(self) -> list[StagedPart]:
        """Messages of the parts being published, in order."""
        return _decode(self.parts or "[]")

    @property
    def totals(self) -> SubmissionTotals | None:
        """Totals of the job; None until it is committed."""
        return self.counts if self.state == "committed" else None

    @property
    def counts(self) -> SubmissionTotals:
        """Totals of the rows that are published so far."""
        return SubmissionTotals(
            self.submission_id,
            self.staged,
            self.inserted,
            self.duplicates,
            self.rejected,
            self.publish,
        )


def find(sql: dict[str, str], submission_id: str) -> Steps[JobRow | None]:
    """Return the row of the job; None if there is none."""
    rows = yield Statement(sql["job"], (submission_id,))
    return JobRow(submission_id, *rows[0]) if rows else None


def lock(sql: dict[str, str], submission_id: str, epoch: str) -> Steps[JobRow]:
    """Return the row of the job, locked until the end of this transaction.

    Raise RunSuperseded unless the job is committed or belongs to the run with this epoch.
    """
    rows = yield Statement(sql["lock_job"], (submission_id,))
    job = JobRow(submission_id, *rows[0]) if rows else None
    if job is None or (job.state != "committed" and (job.epoch != epoch or job.state == "aborted")):
        raise superseded(submission_id)
    return job


def touch(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[None]:
    """Record that this run is alive. Raise RunSuperseded if another run has taken over."""
    if not (yield Statement(sql["touch_job"], (submission_id, epoch, now))):
        raise superseded(submission_id)


def end_run(sql: dict[str, str], submission_id: str, epoch: str, now: int) -> Steps[int | None]:
    """End a run that has published nothing; return the number of its job, or None if another run
    owns it."""
    rows = yield Statement(sql["abort_job"], (submission_id, epoch, now))
    return rows[0][0] if rows else None


def check_content(job: JobRow, given: str | None, kept: str | None) -> None:
    """Raise ContentDiffers unless both digests, if there are two, are the same."""
    if given is not None and kept is not None and given != kept:
        state = "is committed" if job.state == "committed" else "has begun to publish"
        raise ContentDiffers(
            f"submission {job.submission_id!r} {state} with other content ({kept}, not {given}):"
            " the rows or the options that shape the tasks have changed, and nothing more was"
            " submitted; give new rows a submission_id of their own, or repeat the same rows"
        )


def superseded(submission_id: str) -> RunSuperseded:
    """Return the error of a run that is aborted or superseded by another run."""
    return RunSuperseded(
        f"submission {submission_id!r}: another run has taken over, or this run was"
        " aborted; this run publishes nothing more"
    )
