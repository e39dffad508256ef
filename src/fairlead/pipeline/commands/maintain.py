"""`fairlead pipeline maintain`: the nightly work on a lake, in one command."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import WORK_FAILED, as_json, as_table, duration, say, say_error
from fairlead.cli.parameters import with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import existing_lake, history_of
from fairlead.pipeline.commands.options import LakeOptions, Url
from fairlead.pipeline.commands.output import failures, watching


class MaintainOptions(LakeOptions, frozen=True, kw_only=True):
    """Options of `pipeline maintain`."""

    url: Url = None
    keep_runs: Annotated[
        str | None,
        typer.Option(help="Remove records of jobs, incidents and plans older than this: 400d."),
    ] = None
    keep_days: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99_999,
            help="Days of bronze to keep: remove older rows that agree with the store. Default:"
            " all.",
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help="Step to leave out: compact, expire, reconcile, retain or check; repeatable.",
            metavar="STEP",
        ),
    ] = None
    json: Json = False


@with_options
def maintain(options: MaintainOptions) -> None:
    """Compact past hours of bronze, expire files that nobody needs, reconcile the lake with the
    store, and check all tables: the nightly work on a lake.

    A step that fails is named, and the others still run. Exit code 1: a step failed. No step needs
    Spark.
    Example: fairlead pipeline maintain --keep-days 365
    """
    with failures():
        from fairlead.pipeline.jobs.maintain import STEPS, Sources
        from fairlead.pipeline.jobs.maintain import maintain as run_maintain

        skip = [step for step in STEPS if step in (options.skip or [])]
        unknown = [step for step in options.skip or [] if step not in STEPS]
        if unknown:
            raise ConfigurationError(f"--skip {unknown[0]!r}: use {', '.join(STEPS)}")
        lake = existing_lake(options.lake, options.catalog)
        keep = duration(options.keep_runs)
        sources = Sources(lake, SYSTEM_CLOCK, partial(history_of, options.url))
        with watching("maintaining"):
            done = run_maintain(
                sources,
                keep,
                options.keep_days,
                skip,
            )
    if options.json:
        as_json(done)
    else:
        as_table(
            ("step", "state", "seconds", "result"),
            [(s.name, s.state, f"{s.seconds:,.1f}", s.what) for s in done.steps],
        )
        for step in done.steps:
            for note in step.notes:
                say(f"{step.name}: {note}")
    for step in done.failed:
        say_error(f"{step.name}: {step.error}")
    if done.failed:
        raise typer.Exit(WORK_FAILED)
