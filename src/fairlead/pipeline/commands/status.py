"""`fairlead pipeline status`, `reconcile` and `tables`: how fresh the lake is, whether it agrees
with the store, and what is in it."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, time_of
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.access import history_of, lake_in
from fairlead.pipeline.commands.options import LakeFolder, Url
from fairlead.pipeline.commands.output import failures, print_run, watching


class ReconcileOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline reconcile`."""

    url: Url = None
    lake: LakeFolder = None
    json: Json = False


@with_options
def reconcile(options: ReconcileOptions) -> None:
    """Compare the lake with the store, row by row count and sum; what agrees may be cleaned from
    the store.

    Exit code 1: they differ; then nothing more is cleaned. Example: fairlead pipeline reconcile
    --url sqlite:///tasks.db
    """
    with failures():
        from fairlead.pipeline.jobs.reconcile import reconcile as run_reconcile

        with watching("comparing") as tell:
            run = run_reconcile(history_of(options.url), lake_in(options.lake), SYSTEM_CLOCK, tell)
        print_run(run, options.json)


class StatusOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline status`."""

    lake: LakeFolder = None
    url: Url = None
    forget: Annotated[
        str | None,
        typer.Option(
            help="Let go of a reader of the history, so that it keeps nothing from being cleaned."
        ),
    ] = None
    json: Json = False


@with_options
def status(options: StatusOptions) -> None:
    """How fresh each table is, what each job did last, and how far behind the readers of the
    history are.

    Example: fairlead pipeline status --lake lake --json
    """
    with failures():
        from fairlead.pipeline.jobs.status import drop_reader, look

        try:
            history = history_of(options.url)
        except ConfigurationError:
            if options.forget is not None or options.url is not None:
                raise
            history = None
        if options.forget is not None and history is not None:
            drop_reader(history, options.forget)
        found = look(lake_in(options.lake), history)
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

    json: Json = False


@with_options
def tables(options: TablesOptions) -> None:
    """The data dictionary: every table, its key and its columns.

    Example: fairlead pipeline tables --json
    """
    with failures():
        from fairlead.pipeline.dictionary import TABLES, as_markdown

        if options.json:
            as_json(
                [
                    table._asdict() | {"columns": [c._asdict() for c in table.columns]}
                    for table in TABLES
                ]
            )
        else:
            print(as_markdown())
