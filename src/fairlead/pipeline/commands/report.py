"""`fairlead pipeline report`: write one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions, PeriodOptions
from fairlead.pipeline.commands.output import failures, print_run, watching


class ReportOptions(LakeOptions, frozen=True, kw_only=True):
    """Options of `pipeline report`."""

    out: Annotated[Path, typer.Option(help="File to write.", dir_okay=False)] = Path("report.html")
    period: PeriodOptions
    hash_keys: Annotated[
        bool, typer.Option("--hash-keys", help="Show digests instead of fairness keys.")
    ] = False
    json: Json = False


@with_options
def report(options: ReportOptions) -> None:
    """Write one self-contained HTML page: shares, waits, failures, costs, and the freshness of the
    data.

    Example: fairlead pipeline report --lake lake --out report.html --since 2026-11-01
    """
    with failures():
        warehouse = existing_lake(options.lake, options.catalog)
        since, until = options.period.instants()
        with watching("reporting"):
            from fairlead.pipeline.jobs.report import report as run_report
            from fairlead.pipeline.report.data import Selection

            selection = Selection(since=since, until=until, hash_keys=options.hash_keys)
            run = run_report(warehouse, SYSTEM_CLOCK, options.out, selection)
    print_run(run, options.json, f"{options.out}: {options.out.stat().st_size / 1024:,.0f} KiB")
