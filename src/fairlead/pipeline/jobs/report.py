"""`report`: writes the tables of a period as one HTML page."""

from __future__ import annotations

from pathlib import Path

from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline.jobs.build import JobContext
from fairlead.pipeline.lake import durable
from fairlead.pipeline.report.data import Selection, gather
from fairlead.pipeline.report.page import render
from fairlead.pipeline.runs import JobRun, OnRows, recorded
from fairlead.pipeline.tables import lake_tables


def report(
    job: JobContext,
    out: Path,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    on_rows: OnRows = lambda part, rows: None,
) -> JobRun:
    """Write the page to `out`, replacing an earlier one.

    Raise ConfigurationError if `out` cannot be written, if other users may replace it, or if the
    period has no rows, BrokenLake for damaged files.
    """
    if not out.parent.is_dir():
        raise ConfigurationError(f"--out {out}: there is no folder {out.parent}; create it first")
    check_folder("--out", out)
    params = {
        "out": str(out.absolute()),
        "since": selection.since and selection.since.isoformat(),
        "until": selection.until and selection.until.isoformat(),
        "top": selection.top,
        "hash_keys": selection.hash_keys,
        "catalog": job.catalog,
    }
    with recorded(job.lake, job.clock, "report", params) as run:
        run.spark_version = job.spark.version
        tables = lake_tables(job.spark, job.lake, job.catalog, job.clock)
        data = gather(tables, job.lake, job.clock.now(), selection, on_rows)
        page = render(data)
        try:
            durable.write(out, lambda path: path.write_text(page, encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"--out {out}: {error.strerror}; choose another file"
            ) from error
    return run
