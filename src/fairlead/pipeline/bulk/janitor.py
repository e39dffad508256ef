"""Clean up after bulk submits: delete the staged rows of dead runs, and old jobs."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.bulk.stage import stage_of
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Statement, Steps

DAY = 86_400 * MICROS

# Microseconds since the last change of a job, after which the job loses its stage or is deleted.
KEEP_STAGE = DAY
KEEP_STAGE_OF_PUBLISHING = 7 * DAY
"""For a job that has published some of its rows, which can never be completed without its stage."""
KEEP_JOB = 30 * DAY
"""Microseconds for which a job is kept after its last change. While the job is kept, a repeated
submission submits nothing again."""


def sweep(store: SqlStore, now: int) -> Steps[int]:
    """Delete up to a hundred abandoned stages, and all jobs older than KEEP_JOB; return how many
    stages were deleted. `now` in microseconds."""
    stage = stage_of(store)
    abandoned = yield Statement(
        stage.sql["abandoned_jobs"], (now - KEEP_STAGE, now - KEEP_STAGE_OF_PUBLISHING)
    )
    for submission_id, number in abandoned:
        yield Statement(stage.sql["sweep_job"], (submission_id,))
        yield from stage.drop(number, submission_id)
    for (submission_id,) in (yield Statement(stage.sql["delete_old_jobs"], (now - KEEP_JOB,))):
        yield Statement(stage.sql["delete_rejects"], (submission_id,))
    return len(abandoned)
