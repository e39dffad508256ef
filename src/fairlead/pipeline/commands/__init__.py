"""`fairlead pipeline`: export history into tables and reports, and submit millions of tasks. Needs
the extra `pipeline`."""

from __future__ import annotations

import typer

from fairlead.pipeline.commands import (
    alerts,
    backfill,
    build,
    capacity,
    erase,
    gc,
    incidents,
    ingest,
    policies,
    relay,
    replay,
    report,
    status,
    submit,
    tune,
)

pipeline = typer.Typer(
    no_args_is_help=True,
    help=(
        "History into tables and reports, on Spark; and millions of tasks in. Every job may be run"
        " again after any crash."
    ),
)
for command in (
    build.build,
    report.report,
    build.compact,
    status.reconcile,
    build.check,
    status.status,
    submit.submit,
    replay.replay,
    status.tables,
    ingest.ingest,
    relay.relay,
    alerts.alerts,
    capacity.capacity,
    incidents.incidents,
    backfill.backfill,
    gc.gc,
    erase.erase,
):
    pipeline.command()(command)
pipeline.add_typer(tune.tune, name="tune")
pipeline.add_typer(policies.policies, name="policies")
