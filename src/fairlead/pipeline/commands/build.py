"""`fairlead pipeline build` and `check`: the tables of the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import existing_lake, job_on
from fairlead.pipeline.commands.options import DryRun, LakeOptions, SettingsFile, TableOptions
from fairlead.pipeline.commands.output import (
    failures,
    instant_of,
    print_result,
    print_run,
    watching,
)

if TYPE_CHECKING:
    from fairlead.pipeline.settings import PipelineSettings


class BuildOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline build`."""

    tables: TableOptions
    settings: SettingsFile = None
    full: Annotated[
        bool, typer.Option("--full", help="Rebuild everything, not only what changed.")
    ] = False
    since: Annotated[
        str | None,
        typer.Option(help="First day to build again with the present code: 2026-11-01."),
    ] = None
    until: Annotated[str | None, typer.Option(help="Day after the last one to build again.")] = None
    yes: Annotated[bool, typer.Option("--yes", help="Publish the days of --since and --until.")] = (
        False
    )
    dry_run: DryRun = False
    json: Json = False

    @property
    def is_range(self) -> bool:
        """Whether given days are built again. Raise ConfigurationError for options that contradict
        each other."""
        if (self.since is None) != (self.until is None):
            raise ConfigurationError("give both --since and --until, the day after the last one")
        if self.since is not None and self.full:
            raise ConfigurationError("give either --full or --since and --until")
        if self.since is None and self.yes:
            raise ConfigurationError(
                "--yes publishes the days of --since and --until; without them, a build publishes"
                " when its checks have passed"
            )
        if self.yes and self.dry_run:
            raise ConfigurationError("give either --yes or --dry-run")
        return self.since is not None


@with_options
def build(options: BuildOptions) -> None:
    """Update the silver and gold tables with the history exported since the last build, check them,
    and publish them.

    With --since and --until, build these days again with the present code, and show how the new
    tables differ from the present ones; with --yes, publish them all in one commit.

    Exit code 1: a check failed, and the tables are unchanged. Examples: fairlead pipeline build
    --lake lake; fairlead pipeline build --since 2026-11-01 --until 2026-11-08; the same with --yes
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        is_range, settings = options.is_range, pipeline_settings.load(options.settings)
        if is_range:
            _build_again(options, settings)
            return
        if options.dry_run:
            from fairlead.pipeline.jobs.build import next_plan

            lake = existing_lake(options.tables.lake, options.tables.catalog)
            todo = next_plan(lake, settings, options.full)
            hours = sorted(todo.changed_attempts | todo.changed_events)
            text = f"{len(hours)} hours changed{'; every table is rebuilt' if todo.full else ''}"
            print_result(options.json, {"full": todo.full, "changed_hours": hours}, text)
            return
        with job_on(options.tables) as job, watching("building") as on_rows:
            from fairlead.pipeline.jobs.build import build as run_build

            run = run_build(job, settings, options.full, on_rows)
        print_run(run, options.json)


def _build_again(options: BuildOptions, settings: PipelineSettings) -> None:
    """Build the days from --since to --until again, and print the differences."""
    first, last = instant_of(options.since), instant_of(options.until)
    assert first is not None and last is not None
    with job_on(options.tables) as job, watching("building again") as on_rows:
        from fairlead.pipeline.jobs.build import build_again

        done = build_again(job, settings, first, last, options.yes, on_rows)
    if options.json:
        as_json(done)
        return
    as_table(
        ("table", "rows", "only old", "only new"),
        [(d.table, f"{d.rows:,}", f"{d.only_old:,}", f"{d.only_new:,}") for d in done.differences],
    )
    result = "published" if options.yes else "compared; run with --yes to publish them"
    say(f"{len(done.days):,} days {result}")
    for note in done.notes:
        say(note)


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
        with watching("checking") as on_rows:
            from fairlead.pipeline.jobs.checks import check as run_check

            run = run_check(lake, SYSTEM_CLOCK, on_rows)
        print_run(run, options.json)
