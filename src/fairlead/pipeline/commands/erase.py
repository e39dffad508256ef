"""`fairlead pipeline erase`: remove every row of a key from the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import WORK_FAILED, as_json, as_table, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions
from fairlead.pipeline.commands.output import failures, watching

if TYPE_CHECKING:
    from fairlead.pipeline.jobs.erase import Erasure


class EraseOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline erase`."""

    key: Annotated[
        str,
        typer.Argument(help="The fairness key; - reads all of standard input.", metavar="KEY"),
    ]
    at: LakeOptions
    page: Annotated[
        list[Path] | None,
        typer.Option(help="Copy of a report, which is removed if it shows the key; repeatable."),
    ] = None
    readmit: Annotated[
        bool,
        typer.Option(
            "--readmit",
            help="Accept tasks of the key in later exports again.",
        ),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show where the key is, and change nothing.")
    ] = False
    json: Json = False


@with_options
def erase(options: EraseOptions) -> None:
    """Remove every row of a key from all tables and files of the lake, verify it by reading every
    file, and keep the key out of later exports.

    Exit code 1: some file still has the key. Examples: fairlead pipeline erase acme --dry-run;
    printf acme | fairlead pipeline erase -
    """
    with failures():
        from fairlead.pipeline.jobs import erase as job

        name = options.key
        if name == "-":
            given = typer.get_binary_stream("stdin").read()
            name = given.decode(errors="surrogateescape").removesuffix("\n")
        lake = existing_lake(options.at.lake, options.at.catalog)
        if options.readmit:
            if options.dry_run:
                raise ConfigurationError("--readmit cannot be tried: leave out --dry-run")
            if not job.readmit_key(lake, name):
                raise ConfigurationError(
                    "this key was not erased from this lake, so it cannot be readmitted"
                )
            if options.json:
                as_json({"is_readmitted": True})
            else:
                say("later exports may contain this key again")
            return
        with watching("erasing") as on_rows:
            done = job.erase(lake, name, SYSTEM_CLOCK, options.page or [], options.dry_run, on_rows)
        if options.json:
            as_json(done)
        else:
            _print(done)
        if not (options.dry_run or done.is_clean):
            raise typer.Exit(WORK_FAILED)


def _print(done: Erasure) -> None:
    as_table(
        ("table", "rows of the key", "rows that mention it", "partitions"),
        [
            (name, f"{each.rows:,}", f"{each.redacted:,}", each.files)
            for name, each in done.tables.items()
        ],
    )
    for page in done.pages:
        say(
            f"{page} shows the key"
            if done.dry_run
            else f"{page} showed the key and was removed; run report to create it again"
        )
    if done.dry_run:
        say("nothing was changed")
        return
    say(f"{done.verified.files:,} files read, {done.verified.bytes:,} bytes")
    for held in done.verified.held:
        say(f"  STILL THERE {held.file}: {held.where}, {held.count:,} times")
    for path in done.verified.unreadable:
        say(f"  not readable: {path}; run this again in ten minutes")
    for held in done.verified.elsewhere:
        say(f"  the same word, not as a key: {held.file}: {held.where}, {held.count:,} times")
    if done.days:
        say(
            f"the next build rebuilds {len(done.days):,} days; until then their sums include"
            " the erased rows"
        )
