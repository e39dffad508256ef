"""`fairlead pipeline run`: export, build and report in one Spark session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import duration
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import exporter_of, job_in, session_of
from fairlead.pipeline.commands.ingest import export
from fairlead.pipeline.commands.options import SettingsFile, TableOptions, Url
from fairlead.pipeline.commands.output import failures, print_run, watching


class RunOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline run`."""

    url: Url = None
    tables: TableOptions
    settings: SettingsFile = None
    every: Annotated[
        str | None,
        typer.Option(help="Repeat at this interval until interrupted, for example 10m."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Also write this report.", dir_okay=False)] = None
    json: Json = False


@with_options
def run(options: RunOptions) -> None:
    """Export the history, build the tables, and write a report, with one Spark session: only the
    first round waits for the start of Java.

    Exit code 1: a round failed. Example: fairlead pipeline run --every 10m --out report.html
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        pause, settings = duration(options.every), pipeline_settings.load(options.settings)
        exporter, lake = exporter_of(options.url, options.tables.lake, options.tables.catalog)
        with session_of(options.tables.spark, lake) as spark:
            from fairlead.pipeline.jobs.build import build
            from fairlead.pipeline.jobs.report import report
            from fairlead.pipeline.report.data import Selection
            from fairlead.pipeline.warehouse.lease import lease

            while True:
                with watching("exporting"):
                    export(exporter, lake)
                with (
                    lease(lake, SYSTEM_CLOCK, "run"),
                    job_in(spark, lake) as job,
                    watching("building"),
                ):
                    done = build(job, settings)
                print_run(done, options.json)
                if options.out is not None:
                    with watching("reporting"):
                        report(lake, SYSTEM_CLOCK, options.out, Selection())
                if pause is None:
                    return
                time.sleep(pause.total_seconds())
