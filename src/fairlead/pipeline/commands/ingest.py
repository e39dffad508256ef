"""`fairlead pipeline ingest`: export history from the store into the lake."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import duration, print_result
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import exporter_of
from fairlead.pipeline.commands.options import LakeOptions, Url
from fairlead.pipeline.commands.output import failures, watching

if TYPE_CHECKING:
    from fairlead.pipeline.export import Exported, Exporter
    from fairlead.pipeline.export_runs import RunExporter
    from fairlead.pipeline.warehouse.warehouse import Warehouse


class IngestOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline ingest`."""

    url: Url = None
    at: LakeOptions
    every: Annotated[
        str | None,
        typer.Option(help="Repeat at this interval until interrupted, for example 60s."),
    ] = None
    json: Json = False


@with_options
def ingest(options: IngestOptions) -> None:
    """Export finished attempts and events of tasks from the store into the lake, each exactly once.

    Workers of an App with lake= do this themselves. Example: fairlead pipeline ingest --url
    sqlite:///tasks.db --lake lake
    """
    with failures():
        pause = duration(options.every)
        exporter, lake = exporter_of(options.url, options.at.lake, options.at.catalog)
        while True:
            with watching("exporting"):
                done = export(exporter, lake)
            text = f"{done.attempts:,} attempts and {done.events:,} events in {done.seconds:,.1f} s"
            print_result(options.json, done, text)
            if pause is None:
                return
            time.sleep(pause.total_seconds())


def export(exporter: Exporter | RunExporter, lake: Warehouse) -> Exported:
    """Do one round of the exporter, recorded as a run if it moved rows or failed."""
    from fairlead.pipeline.runs import NOTHING_TO_DO, recorded

    with recorded(lake, SYSTEM_CLOCK, "ingest", {}, keep_idle=False) as run:
        done = exporter.round()
        run.rows_in = run.rows_out = done.attempts + done.events
        if not run.rows_out:
            run.state = NOTHING_TO_DO
    return done
