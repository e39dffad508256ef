"""`report`: what the tables say about a stretch of time, as one page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fairlead.errors import ConfigurationError
from fairlead.pipeline.jobs.build import Job
from fairlead.pipeline.lake import durable
from fairlead.pipeline.report.data import TOP, gather
from fairlead.pipeline.report.page import render
from fairlead.pipeline.runs import Run, Tell, recorded
from fairlead.pipeline.tables import lake_tables


def report(
    job: Job,
    out: Path,
    since: datetime | None = None,
    until: datetime | None = None,
    hash_keys: bool = False,
    tell: Tell = lambda part, rows: None,
    top: int = TOP,
    unexported: int | None = None,
) -> Run:
    """Write the page of the time from `since` until `until` (as in `period`) to `out`, or replace
    it.

    `top` keys, names and errors are shown one by one. `hash_keys` shows no key as it is.
    `unexported` is how many finished attempts the store has that the lake has not, when somebody
    asked it. Raises ConfigurationError for an `out` that cannot be written, and when nothing lies
    between; BrokenLake for files that are not what they should be.
    """
    if not out.parent.is_dir():
        raise ConfigurationError(f"--out {out}: there is no folder {out.parent}; make it first")
    params = {
        "out": str(out.absolute()),
        "since": since and since.isoformat(),
        "until": until and until.isoformat(),
        "top": top,
        "hash_keys": hash_keys,
        "catalog": job.catalog,
    }
    with recorded(job.lake, job.clock, "report", params) as run:
        run.spark_version = job.spark.version
        tables = lake_tables(job.spark, job.lake, job.catalog, job.clock)
        data = gather(
            tables, job.lake, job.clock.now(), since, until, top, hash_keys, unexported, tell
        )
        page = render(data)
        try:
            durable.write(out, lambda aside: aside.write_text(page, encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"--out {out}: {error.strerror}; choose another file"
            ) from error
    return run
