"""`fairlead pipeline erase`: remove every row of a key from the lake."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import WORK_FAILED, as_json, as_table, ask, say, say_error
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, watching


class EraseOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline erase`."""

    key: Annotated[str, typer.Argument(help="Fairness key.", metavar="KEY")]
    at: LakeOptions
    readmit: Annotated[
        bool, typer.Option("--readmit", help="Accept tasks of the key in later exports again.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the rows of the key, and change nothing.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before rows are removed.")] = False
    json: Json = False


@with_options
def erase(options: EraseOptions) -> None:
    """Remove every row of a key from all tables of the lake with the files that had them, and keep
    the key out of later exports.

    Exit code 1: a query still finds the key. Example: fairlead pipeline erase acme --dry-run
    """
    with failures():
        from fairlead.pipeline.jobs import erase as job

        lake = existing_lake(options.at.lake, options.at.catalog)
        if options.readmit:
            if options.dry_run:
                raise ConfigurationError("--readmit cannot be tried: leave out --dry-run")
            if not job.readmit_key(lake, options.key):
                raise ConfigurationError(
                    "this key was not erased from this lake, so it cannot be readmitted"
                )
            say("later exports may contain this key again")
            return
        if not (options.dry_run or options.yes):
            what = f"all rows of the key {options.key!r} would be removed for good"
            ask(what, "count them with --dry-run, then add --yes")
        with watching("erasing"):
            done = job.erase(lake, options.key, SYSTEM_CLOCK, options.dry_run)
    if options.json:
        as_json(done)
    else:
        as_table(("table", "rows"), [(name, f"{rows:,}") for name, rows in done.rows.items()])
        if options.dry_run:
            say("nothing was changed")
        elif done.days:
            say(f"until the next build, the sums of {len(done.days):,} days include these rows")
    if done.left and not options.dry_run:
        say_error(f"{', '.join(done.left)} still have rows of the key: run the command again")
        raise typer.Exit(WORK_FAILED)
