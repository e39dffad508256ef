"""`fairlead pipeline migrate-lake`: move a lake of 0.1 into Iceberg tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.pipeline.commands.access import lake_of_options
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, print_result, watching


class MigrateLakeOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline migrate-lake`."""

    old: Annotated[
        Path,
        typer.Argument(help="Folder of the old lake.", metavar="OLD", exists=True, file_okay=False),
    ]
    at: LakeOptions
    json: Json = False


@with_options
def migrate_lake(options: MigrateLakeOptions) -> None:
    """Move a lake of Fairlead 0.1 into a new lake: its history with its cursors, and what no build
    makes. Run it again after a crash.

    Stop the workers and jobs that export into the old lake first. Then run `fairlead pipeline build
    --full`. Example: fairlead pipeline migrate-lake old --lake lake
    """
    with failures():
        from fairlead.pipeline.jobs.migrate_lake import migrate_lake as run_migration
        from fairlead.pipeline.jobs.migrate_lake import require_lake

        require_lake(options.old)  # before the new lake is created
        lake = lake_of_options(options.at.lake, options.at.catalog)
        with watching("moving") as on_rows:
            done = run_migration(options.old, lake, on_rows)
        print_result(
            options.json,
            done,
            f"{done.rows['bronze.attempts']:,} attempts and {done.rows['bronze.events']:,} events"
            f" are in lake {lake.shown}: run `fairlead pipeline build --full`, then remove the old"
            " folder, which later erasures do not reach",
        )
