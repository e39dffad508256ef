"""`fairlead pipeline report`: write one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import catalog_of, exporter_of, lake_in
from fairlead.pipeline.commands.options import FolderTableOptions, PeriodOptions
from fairlead.pipeline.commands.output import failures, print_run, watching


class ReportOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline report`."""

    out: Annotated[Path, typer.Option(help="File to write.", dir_okay=False)] = Path("report.html")
    tables: FolderTableOptions
    period: PeriodOptions
    hash_keys: Annotated[
        bool, typer.Option("--hash-keys", help="Show digests instead of fairness keys.")
    ] = False
    url: Annotated[
        str | None,
        typer.Option(help="URL of the store, to show how many attempts are not exported yet."),
    ] = None
    json: Json = False


@with_options
def report(options: ReportOptions) -> None:
    """Write one self-contained HTML page: shares, waits, failures, costs, and the freshness of the
    data.

    Example: fairlead pipeline report --lake lake --out report.html --since 2026-11-01
    """
    with failures():
        lake, (since, until) = lake_in(options.tables.lake), options.period.instants()
        unexported = None if options.url is None else exporter_of(options.url, lake).behind()
        with catalog_of(options.tables) as catalog, watching("reporting") as on_rows:
            from fairlead.pipeline.jobs.report import report as run_report
            from fairlead.pipeline.report.data import Selection

            selection = Selection(
                since=since, until=until, hash_keys=options.hash_keys, unexported=unexported
            )
            run = run_report(lake, SYSTEM_CLOCK, options.out, selection, on_rows, catalog)
    print_run(run, options.json, f"{options.out}: {options.out.stat().st_size / 1024:,.0f} KiB")
