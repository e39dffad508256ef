"""`fairlead pipeline build` and `check`: the tables of the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.commands.access import existing_lake, job_on
from fairlead.pipeline.commands.options import LakeOptions, SettingsFile, TableOptions
from fairlead.pipeline.commands.output import failures, print_run, watching


class BuildOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline build`."""

    tables: TableOptions
    settings: SettingsFile = None
    full: Annotated[
        bool, typer.Option("--full", help="Rebuild everything, not only what changed.")
    ] = False
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
        with job_on(options.tables) as job, watching("building"):
            from fairlead.pipeline.jobs.build import build as run_build

            run = run_build(job, settings, options.full)
        print_run(run, options.json)


class CheckOptions(LakeOptions, frozen=True, kw_only=True):
    """Options of `pipeline check`."""

    json: Json = False


@with_options
def check(options: CheckOptions) -> None:
    """Check all tables, without Spark: files, keys, and the counts and worker time that must agree
    between layers. `maintain` does so nightly; run this command alone when a figure looks wrong.

    Exit code 1: a check failed. Example: fairlead pipeline check --lake lake
    """
    with failures():
        lake = existing_lake(options.lake, options.catalog)
        with watching("checking"):
            from fairlead.pipeline.jobs.checks import check as run_check

            run = run_check(lake, SYSTEM_CLOCK)
        print_run(run, options.json)
