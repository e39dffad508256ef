"""Helpers for the tests of bulk submit: run a job in one call, and read the tables back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairlead import App
from fairlead.pipeline.bulk.job import BulkJob
from fairlead.pipeline.bulk.jobs import StagedPart, SubmissionTotals
from fairlead.pipeline.bulk.options import BulkOptions

OPTIONS = {"queue": "orders", "task": "pay", "submission_id": "march", "args_columns": "n"}


def job_of(url: str, **options: str | None) -> BulkJob:
    """Return a new run of the submission `march`, or of the submission in the options."""
    given = {**OPTIONS, "url": url, **options}
    return BulkJob(
        BulkOptions.read({name: value for name, value in given.items() if value is not None})
    )


def numbers(first: int, last: int, **columns: Any) -> pa.RecordBatch:
    """Return rows with one task for each number."""
    return pa.record_batch({"n": pa.array(range(first, last)), **columns})


def staged(job: BulkJob, parts: Sequence[Sequence[pa.RecordBatch]]) -> list[StagedPart]:
    """Open the job, and stage or compare each part, as Spark does."""
    job.open(next(batch.schema for part in parts for batch in part))
    return [job.stage(part, number) for number, part in enumerate(parts)] if job.reads_rows else []


def submit(
    url: str, parts: Sequence[Sequence[pa.RecordBatch]], **options: str | None
) -> SubmissionTotals:
    """Stage and publish all parts; return the totals."""
    job = job_of(url, **options)
    return job.publish(staged(job, parts))


def rows(url: str, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a SELECT, by column name."""
    app = App(url)
    with app.store.database.transaction() as connection:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    app.close()
    return found


def numbers_in(url: str) -> list[int]:
    """Return the arguments of all SUBMITTED tasks, in the order of their lanes."""
    found = rows(url, "SELECT payload FROM fairlead_tasks ORDER BY ready_seq")
    return [
        int(bytes(row["payload"]).decode().removeprefix('{"n":').removesuffix("}")) for row in found
    ]


def left_in_stage(url: str) -> int:
    """Return the number of staged rows (PostgreSQL) or files (SQLite)."""
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///") + "-bulk")
        return sum(path.is_file() for path in folder.rglob("*"))
    return int(rows(url, "SELECT count(*) AS staged FROM fairlead_bulk_stage")[0]["staged"])
