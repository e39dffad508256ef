"""Options that the commands of `fairlead pipeline` share."""

from __future__ import annotations

import getpass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions
from fairlead.pipeline.commands.output import instant_of

Url = Annotated[str | None, typer.Option(help="Where tasks live; else the configured one.")]
LakeFolder = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Folder of the lake; else FAIRLEAD_LAKE, else ./lake.",
        envvar="FAIRLEAD_LAKE",
    ),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        help="Iceberg catalog of the Spark session, with a namespace: lake.fairlead; else Parquet."
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", help="Objectives, prices and bills (TOML).", exists=True, dir_okay=False
    ),
]
Author = Annotated[str | None, typer.Option(help="Who does this; else the user's name.")]
Why = Annotated[str, typer.Option(help="Why; it is kept with the version.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


class SparkOptions(CommandOptions, frozen=True, kw_only=True):
    """The Spark session of a job."""

    master: Annotated[
        str | None,
        typer.Option(help="Spark's master, such as local[4] or spark://host:7077; else local[*]."),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            help="A setting of Spark, KEY=VALUE; as often as you like.",
            metavar="KEY=VALUE",
        ),
    ] = None


class TableOptions(CommandOptions, frozen=True, kw_only=True):
    """The tables that a job reads and writes, and the Spark session by which it does."""

    lake: LakeFolder = None
    spark: SparkOptions
    catalog: Catalog = None


class Period(CommandOptions, frozen=True, kw_only=True):
    """The time to look at."""

    since: Annotated[
        str | None,
        typer.Option(help="From this instant on: 2026-11-01 or 2026-11-01T12:00 (UTC)."),
    ] = None
    until: Annotated[str | None, typer.Option(help="Before this instant.")] = None

    def instants(self) -> tuple[datetime | None, datetime | None]:
        """Return both ends, in UTC if they name no offset. Raises ConfigurationError."""
        return instant_of(self.since), instant_of(self.until)


def author_of(author: str | None) -> str:
    """Return who does this: as given, else the user; `nobody` is a user without a name, as in a
    container."""
    if author is not None:
        return author
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "nobody"
