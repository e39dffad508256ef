"""Options shared by the commands of `fairlead pipeline`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions
from fairlead.pipeline.commands.output import instant_of

Url = Annotated[str | None, typer.Option(help="URL of the store; default: the configured one.")]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Folder of the lake, or its URL on an object store, s3://bucket/prefix; default:"
        " FAIRLEAD_LAKE, then ./lake.",
        envvar="FAIRLEAD_LAKE",
    ),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        help="URL of the lake's catalog, postgresql://host/database or another; default:"
        " FAIRLEAD_CATALOG, then the file catalog.db in the lake's folder.",
        envvar="FAIRLEAD_CATALOG",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="Objectives, prices, bills and rules of incidents (TOML).",
        exists=True,
        dir_okay=False,
    ),
]
Why = Annotated[str, typer.Option(help="Reason, stored with the version.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
]


class SparkOptions(CommandOptions, frozen=True, kw_only=True):
    """The Spark session of a job."""

    master: Annotated[
        str | None,
        typer.Option(help="Spark's master: local[4], spark://host:7077; default: local[*]."),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", help="Setting of Spark, KEY=VALUE; repeatable.", metavar="KEY=VALUE"
        ),
    ] = None


class LakeOptions(CommandOptions, frozen=True, kw_only=True):
    """The lake of a command."""

    lake: Lake = None
    catalog: Catalog = None


class TableOptions(CommandOptions, frozen=True, kw_only=True):
    """The lake of a job, and the Spark session that reads and writes its tables."""

    lake: Lake = None
    spark: SparkOptions
    catalog: Catalog = None


class PeriodOptions(CommandOptions, frozen=True, kw_only=True):
    """The period of a command."""

    since: Annotated[
        str | None,
        typer.Option(help="Start: 2026-11-01 or 2026-11-01T12:00 (UTC)."),
    ] = None
    until: Annotated[str | None, typer.Option(help="End (not included).")] = None

    def instants(self) -> tuple[datetime | None, datetime | None]:
        """Return both ends, in UTC if they have no offset. Raise ConfigurationError."""
        return instant_of(self.since), instant_of(self.until)
