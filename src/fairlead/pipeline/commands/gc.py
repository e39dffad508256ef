"""`fairlead pipeline gc`: remove files that no reader needs."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, duration, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import catalog_of, lake_in
from fairlead.pipeline.commands.options import TableOptions
from fairlead.pipeline.commands.output import failures, watching


class GcOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline gc`."""

    keep: Annotated[
        str | None,
        typer.Option(
            help="Delete runs of jobs, incidents and capacity plans older than this: 400d."
        ),
    ] = None
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove the files instead of only listing them.")
    ] = False
    tables: TableOptions
    json: Json = False


@with_options
def gc(options: GcOptions) -> None:
    """List or, with --apply, remove files that were replaced more than a day ago and files that
    crashed jobs left. Files that a reader may still use stay.

    Rows of bronze, silver and gold stay, except those that --keep names. With --apply and
    --catalog, also remove snapshots older than a day.
    Examples: fairlead pipeline gc; fairlead pipeline gc --apply --keep 400d
    """
    with failures():
        from fairlead.pipeline.jobs.gc import gc as run_gc

        lake = lake_in(options.tables.lake)
        opened = catalog_of(options.tables) if options.apply else nullcontext()
        with opened as where, watching("searching") as on_rows:
            done = run_gc(lake, SYSTEM_CLOCK, duration(options.keep), options.apply, where, on_rows)
        if options.json:
            as_json(done)
            return
        found = Counter((each.table, each.why) for each in done.files)
        as_table(
            ("table", "files", "why"),
            [(table, n, why) for (table, why), n in sorted(found.items())],
        )
        for table, days in done.parts.items():
            say(f"{table}: {len(days):,} days, {days[0]} to {days[-1]}")
        for name, files in done.catalog.items():
            say(f"{name} in the catalog: {files:,} files")
        for who in done.leases:
            say(f"{who} has a lease: replaced files stay")
        say(
            f"{len(done.files):,} files, {done.bytes:,} bytes"
            f" {'removed' if options.apply else 'can be removed: run with --apply'}"
        )
