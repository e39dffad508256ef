"""`fairlead pipeline alerts`: report problems within seconds; see docs/how-to/alerts.md."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.logs import configure
from fairlead.cli.options import Json
from fairlead.cli.output import duration
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.data_folder import check_folder
from fairlead.pipeline.commands.access import kafka_at, lake_of_options, session_of
from fairlead.pipeline.commands.options import SettingsFile, TableOptions
from fairlead.pipeline.commands.output import failures, print_result, stop_by_signals

if TYPE_CHECKING:
    from fairlead.pipeline.incidents.watch import Alert


class AlertsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline alerts`."""

    kafka: Annotated[str, typer.Option(help="The URL of `relay`: kafka://host:9092/?prefix=shop.")]
    checkpoint: Annotated[
        Path,
        typer.Option(help="Folder for Spark's state, not shared with other jobs."),
    ]
    webhook: Annotated[
        str | None,
        typer.Option(
            help="URL to which each alert is posted as JSON.",
            envvar="FAIRLEAD_WEBHOOK",
            show_envvar=True,
        ),
    ] = None
    give_up: Annotated[
        str,
        typer.Option(help="Time after which an alert that the webhook does not take is given up."),
    ] = "24h"
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two checks.")] = 10.0
    settings: SettingsFile = None
    tables: TableOptions
    json: Json = False


@with_options
def alerts(options: AlertsOptions) -> None:
    """Report stalled queues, floods, bursts of errors, stuck tasks, lost nodes and a silent relay,
    and their ends.

    Run until Ctrl-C or SIGTERM; a restart continues from the checkpoint. Each alert is a line, a
    row of gold.incidents and, with --webhook, a request signed with the secret in
    FAIRLEAD_WEBHOOK_SECRET. `fairlead pipeline relay` must run.

    Example: fairlead pipeline alerts --kafka kafka://broker:9092/?prefix=shop. --checkpoint alerts
    --webhook https://hook.example
    """
    with failures():
        endpoint = kafka_at(options.kafka)
        from fairlead.pipeline.alerts.topic import make_heartbeats_topic
        from fairlead.pipeline.alerts.webhook import Webhook
        from fairlead.pipeline.settings import load

        rules = load(options.settings).alerts
        give_up = duration(options.give_up)
        assert give_up is not None  # a default is set
        check_folder("--checkpoint", options.checkpoint / "webhook.json")
        make_heartbeats_topic(endpoint)  # report problems with Kafka before Spark starts
        hook = options.webhook and Webhook(
            options.webhook,
            options.checkpoint.absolute() / "webhook.json",
            os.environ.get("FAIRLEAD_WEBHOOK_SECRET"),
            give_up_seconds=give_up.total_seconds(),
        )
        configure("info", "text")
        logging.getLogger("py4j").setLevel(logging.WARNING)
        lake = lake_of_options(options.tables.lake, options.tables.catalog)
        with session_of(options.tables.spark) as spark:
            from fairlead.pipeline.in_memory import SmallTables
            from fairlead.pipeline.jobs import alerts as job
            from fairlead.pipeline.jobs.incidents import keep

            tables = SmallTables(lake)

            def on_alerts(raised: Sequence[Alert]) -> None:
                keep(tables, raised)
                notices = [job.notice_of(alert) for alert in raised]
                for notice in notices:
                    print_result(options.json, notice, notice.text)
                sys.stdout.flush()  # for programs that read the lines as they are printed
                if hook:
                    hook.send(notices)

            stops = threading.Event()
            stop_by_signals(stops.set)
            job.watch(
                lambda: job.alerts(
                    job.heartbeats_of(spark, options.kafka),
                    options.checkpoint.absolute(),
                    rules,
                    on_alerts,
                    options.every,
                ),
                stops,
            )
