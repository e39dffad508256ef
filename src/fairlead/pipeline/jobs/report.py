"""`report`: writes the tables of a period as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.clock import Clock
from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.reading.frames import Files, Frames, files_of
from fairlead.pipeline.report.data import Selection, gather
from fairlead.pipeline.report.page import render
from fairlead.pipeline.runs import RUNS, JobRun, OnRows, recorded
from fairlead.pipeline.schema import Table


def report(
    lake: Lake,
    clock: Clock,
    out: Path,
    selection: Selection = Selection(),  # noqa: B008 - frozen
    on_rows: OnRows = lambda part, rows: None,
    catalog: tuple[Any, str] | None = None,
) -> JobRun:
    """Write the page to `out`, replacing an earlier one.

    catalog: Spark session and name of the catalog with the tables; None for the lake's folder.
    Raise ConfigurationError if `out` cannot be written, if other users may replace it, if the
    period has no rows, or if the catalog's warehouse is not on a local folder; BrokenLake for
    damaged files.
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
        "catalog": catalog and catalog[1],
    }
    with recorded(lake, clock, "report", params) as run:
        with Frames(_files(lake, clock, catalog)) as tables:
            data = gather(
                tables, lake, clock.now(), selection, on_rows, in_catalog=catalog is not None
            )
        page = render(data)
        try:
            durable.write(out, lambda path: path.write_text(page, encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"--out {out}: {error.strerror}; choose another file"
            ) from error
    return run


def _files(lake: Lake, clock: Clock, catalog: tuple[Any, str] | None) -> dict[Table, Files]:
    if catalog is None:
        return files_of(lake)
    from fairlead.pipeline.iceberg import IcebergTables

    spark, name = catalog
    tables = IcebergTables(spark, name, lake, clock)
    named = {
        table: tables.name_of(table) for table in TABLES if table not in (ATTEMPTS, EVENTS, RUNS)
    }
    made = {table: found for table, found in named.items() if spark.catalog.tableExists(found)}
    return {
        **files_of(lake, (ATTEMPTS, EVENTS)),
        **{table: _files_in_catalog(spark, found, table) for table, found in made.items()},
    }


def _files_in_catalog(spark: Any, name: str, table: Table) -> Files:
    """Return the data files of the current snapshot. Our writes make no files of deletes."""
    from fairlead.pipeline.iceberg_layout import part_of

    found: dict[str, list[str]] = {}
    rows = spark.table(f"{name}.files").select(part_of(table).alias("part"), "file_path").collect()
    for part, path in rows:  # one row for each file
        scheme, _, local = path.rpartition("file:")
        if scheme or not local.startswith("/"):
            raise ConfigurationError(
                f"{path}: the report reads a warehouse on a folder of this machine only"
            )
        found.setdefault(part or "", []).append(f"/{local.lstrip('/')}")
    return found
