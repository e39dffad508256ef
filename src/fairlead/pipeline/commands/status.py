"""`fairlead pipeline status` and `tables`: the freshness of the lake, and its tables."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say, time_of
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.errors import ConfigurationError, NotSupported
from fairlead.pipeline.commands.access import existing_lake, history_of
from fairlead.pipeline.commands.options import LakeOptions, Url
from fairlead.pipeline.commands.output import failures


class StatusOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline status`."""

    at: LakeOptions
    url: Url = None
    forget: Annotated[
        str | None,
        typer.Option(
            help="Drop this reader of the history, so that the store does not keep history for it."
        ),
    ] = None
    json: Json = False


@with_options
def status(options: StatusOptions) -> None:
    """Show the freshness of each table, the last run of each job, and the lag of each reader of the
    history.

    Example: fairlead pipeline status --lake lake --json
    """
    with failures():
        from fairlead.pipeline.jobs.status import drop_reader, read_status

        try:
            history = history_of(options.url)
        except (ConfigurationError, NotSupported):
            if options.forget is not None or options.url is not None:
                raise
            history = None
        if options.forget is not None and history is not None:
            drop_reader(history, options.forget)
        found = read_status(existing_lake(options.at.lake, options.at.catalog), history)
        if options.json:
            as_json(found)
            return
        as_table(
            ("table", "rows", "partitions", "newest", "written"),
            [
                (t.name, f"{t.rows:,}", t.parts, t.newest, time_of(t.written_at))
                for t in found.tables
            ],
        )
        as_table(
            ("job", "state", "when", "seconds", "rows", "error"),
            [
                (r.job, r.state, time_of(r.started_at), r.seconds, f"{r.rows_out:,}", r.error)
                for r in found.runs
            ],
        )
        if history is not None:
            as_table(
                ("reader", "kind", "read", "behind", "checked"),
                [
                    (r.name, r.kind, time_of(r.updated_at), f"{r.behind:,}", r.checked)
                    for r in found.readers
                ],
            )


class TablesOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline tables`."""

    dbt: Annotated[bool, typer.Option("--dbt", help="Print a file sources.yml of dbt.")] = False
    json: Json = False


@with_options
def tables(options: TablesOptions) -> None:
    """Print the data dictionary: every table with its key and columns.

    Example: fairlead pipeline tables --json
    """
    with failures():
        from fairlead.pipeline.dictionary import TABLES, as_dbt_sources, as_markdown

        if options.json:
            as_json(
                [
                    table._asdict() | {"columns": [c._asdict() for c in table.columns]}
                    for table in TABLES
                ]
            )
        else:
            say(as_dbt_sources() if options.dbt else as_markdown())
