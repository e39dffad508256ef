"""`fairlead pipeline`: history into tables and reports, and millions of tasks in. Needs the extra
`pipeline`."""

from __future__ import annotations

import typer

from fairlead.pipeline.commands import alerts, ingest, operate, tables, tune

pipeline = typer.Typer(
    no_args_is_help=True,
    help=(
        "History into tables and reports, on Spark; and millions of tasks in. Every job may be run"
        " again after any crash."
    ),
)
for group in (tables, ingest, alerts, tune, operate):
    group.register(pipeline)
