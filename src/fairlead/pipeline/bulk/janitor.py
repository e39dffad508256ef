"""What bulk submits leave behind: stages of runs that died, and jobs that no one will ask for any
more."""

from __future__ import annotations

from fairlead.clock import MICROS
from fairlead.pipeline.bulk.stages import stage_of
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Statement, Steps

DAY = 86_400 * MICROS

KEEP_STAGE = DAY
"""Microseconds since a job was last touched after which what it has staged is deleted, orphaned
parts with it."""
KEEP_CHUNKS = 7 * DAY
"""The same for a job whose chunks are half in: only from its stage can it be brought to its end."""
KEEP_JOB = 30 * DAY
"""Microseconds for which a submission is remembered: so long a repeat changes nothing."""


def sweep(store: SqlStore, now: int) -> Steps[int]:
    """Delete what has outlived its time, at most a hundred jobs of it; answers how many stages
    went. `now` in microseconds."""
    stage = stage_of(store)
    abandoned = yield Statement(stage.sql["abandoned_jobs"], (now - KEEP_STAGE, now - KEEP_CHUNKS))
    for submission_id, number in abandoned:
        yield Statement(stage.sql["sweep_job"], (submission_id,))
        yield from stage.drop(number, submission_id)
    for (submission_id,) in (yield Statement(stage.sql["forget_jobs"], (now - KEEP_JOB,))):
        yield Statement(stage.sql["forget_rejects"], (submission_id,))
    return len(abandoned)
