"""`fairlead pipeline build` and `check`: the tables of the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.pipeline.commands.access import job_on, lake_in
from fairlead.pipeline.commands.options import DryRun, SettingsFile, TableOptions
from fairlead.pipeline.commands.output import failures, print_result, print_run, watching


class BuildOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline build`."""

    tables: TableOptions
    settings: SettingsFile = None
    full: Annotated[
        bool, typer.Option("--full", help="Rebuild everything, not only what changed.")
    ] = False
    dry_run: DryRun = False
    json: Json = False


@with_options
def build(options: BuildOptions) -> None:
    """Update the silver and gold tables with the history exported since the last build, check them,
    and publish them.

    Exit code 1: a check failed, and the tables are unchanged. Example: fairlead pipeline build
    --lake lake
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        settings = pipeline_settings.load(options.settings)
        lake = lake_in(options.tables.lake)
        if options.dry_run:
            from fairlead.pipeline.jobs.build import next_plan

            todo = next_plan(lake, settings, options.full)
            hours = sorted(todo.changed_attempts | todo.changed_events)
            text = f"{len(hours)} hours changed{'; every table is rebuilt' if todo.full else ''}"
            print_result(options.json, {"full": todo.full, "changed_hours": hours}, text)
            return
        with job_on(lake, options.tables) as job, watching("building") as on_rows:
            from fairlead.pipeline.jobs.build import build as run_build

            run = run_build(job, settings, options.full, on_rows)
        print_run(run, options.json)


class CheckOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline check`."""

    tables: TableOptions
    json: Json = False


@with_options
def check(options: CheckOptions) -> None:
    """Check all tables: schema, keys, and the counts and worker time that must agree between
    layers. `maintain` does so nightly; run this command alone when a figure looks wrong.

    Exit code 1: a check failed. Example: fairlead pipeline check --lake lake
    """
    with failures():
        lake = lake_in(options.tables.lake)
        with job_on(lake, options.tables) as job, watching("checking") as on_rows:
            from fairlead.pipeline.jobs.check import check as run_check

            run = run_check(job, on_rows)
        print_run(run, options.json)
