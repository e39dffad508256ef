"""`fairlead pipeline restore`: a lake that lost its catalog or files, or was moved or copied."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say
from fairlead.cli.parameters import with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import lake_of_options
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, watching


class RestoreOptions(LakeOptions, frozen=True, kw_only=True):
    """Options of `pipeline restore`."""

    drop_damaged: Annotated[
        bool,
        typer.Option(
            "--drop-damaged",
            help="Also give up missing or damaged files of tables that no build makes.",
        ),
    ] = False
    json: Json = False


@with_options
def restore(options: RestoreOptions) -> None:
    """Register the tables in the lake's folder after its catalog was lost, or its folder was lost
    in part, moved or copied. Stop the workers and jobs that write to the lake first.

    Example: fairlead pipeline restore --lake /backup/lake
    """
    with failures():
        from fairlead.pipeline.jobs import restore as job
        from fairlead.pipeline.warehouse.lease import lease

        lake = lake_of_options(options.lake, options.catalog)
        with watching("restoring"), lease(lake, SYSTEM_CLOCK, "restore"):
            found = job.restore(lake)
            dropped = job.drop_damaged(lake) if options.drop_damaged else {}
    if options.json:
        as_json({"tables": found, "dropped": dropped})
        return
    as_table(("table", "newest commit"), list(found.items()))
    for name, rows in dropped.items():
        say(f"{name}: {rows:,} rows of damaged files are lost")
    if not found and not dropped:
        say("nothing to restore: the catalog has all tables, and their metadata can be read")
