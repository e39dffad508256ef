"""`fairlead pipeline backfill`: rebuild the tables of past days."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.pipeline.commands.access import job_on, lake_in
from fairlead.pipeline.commands.options import SettingsFile, TableOptions
from fairlead.pipeline.commands.output import failures, instant_of, watching


class BackfillOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline backfill`."""

    since: Annotated[str, typer.Option("--from", help="First day, for example 2026-11-01.")]
    until: Annotated[str, typer.Option("--to", help="Day after the last one.")]
    tables: TableOptions
    settings: SettingsFile = None
    quiet: Annotated[
        bool, typer.Option("--no-diff", help="Do not compare with the present tables.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the differences and change nothing.")
    ] = False
    json: Json = False


@with_options
def backfill(options: BackfillOptions) -> None:
    """Rebuild the tables of past days with the present code, day by day, and report differences. A
    repeated run continues where the last one ended.

    Exit code 1: a check failed; the days before that day are rebuilt. Examples: fairlead pipeline
    backfill --from 2026-11-01 --to 2026-11-08 --dry-run; the same without --dry-run
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        settings, lake = pipeline_settings.load(options.settings), lake_in(options.tables.lake)
        first, last = instant_of(options.since), instant_of(options.until)
        assert first is not None and last is not None
        with job_on(lake, options.tables) as job, watching("rebuilding") as on_rows:
            from fairlead.pipeline.jobs.backfill import backfill as run_backfill

            done = run_backfill(
                job, settings, first, last, options.dry_run, on_rows, not options.quiet
            )
        if options.json:
            as_json(done)
            return
        as_table(
            ("table", "day", "rows", "only old", "only new"),
            [
                (d.table, d.day, f"{d.rows:,}", f"{d.only_old:,}", f"{d.only_new:,}")
                for d in done.differences
            ],
        )
        skipped = f", {len(done.skipped):,} were done already" if done.skipped else ""
        say(f"{len(done.days):,} days {'compared' if options.dry_run else 'rebuilt'}{skipped}")
        for note in done.notes:
            say(note)
