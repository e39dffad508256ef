"""`fairlead worker`: one node in one process, until a signal or until no task is left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.app import App
from fairlead.cli.application import load
from fairlead.cli.logs import configure
from fairlead.cli.output import one_line_errors
from fairlead.cli.parameters import CommandOptions, with_options

if TYPE_CHECKING:
    from fairlead.engine.node import Node  # loaded by the worker only: no other command needs it

log = logging.getLogger("fairlead.worker")

_LOOK_EVERY = 0.25  # seconds between two counts of unfinished tasks, with --until-empty


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level of printed log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class WorkerOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `worker`."""

    application: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="The App, for example shop:app."),
    ]
    queues: Annotated[
        str | None,
        typer.Option(help="Queues to serve, separated by commas."),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="Name kept over restarts, so that a quick restart moves no partition."),
    ] = None
    restart: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --name: seconds for which its partitions wait after a stop.",
        ),
    ] = 30.0
    concurrency: Annotated[
        int, typer.Option(min=1, help="Most tasks at once, of all executors.")
    ] = 500
    threads: Annotated[int, typer.Option(min=1, help="Most synchronous handlers at once.")] = 16
    processes: Annotated[
        int, typer.Option(min=1, help="Most handlers with executor='process' at once.")
    ] = 2
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds for running tasks to end after a stop.")
    ] = 20.0
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when no task is left to run or retry.")
    ] = False
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this port.")
    ] = None
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1"
    log_level: Annotated[LogLevel, typer.Option()] = LogLevel.INFO
    log_format: Annotated[LogFormat, typer.Option()] = LogFormat.TEXT

    def names_of_queues(self) -> list[str] | None:
        """Return the queues to work on; None for all."""
        if self.queues is None:
            return None
        return [name.strip() for name in self.queues.split(",") if name.strip()]


@with_options
def worker(options: WorkerOptions) -> None:
    """Run tasks. The first SIGTERM or Ctrl-C drains the worker and hands back the rest; a second
    one ends it at once.

    Example: fairlead worker shop:app --queues payouts,mail --concurrency 200
    """
    configure(options.log_level, options.log_format)
    with one_line_errors():
        app = load(options.application)
        if options.metrics_port is not None:
            from fairlead.contrib.prometheus import observe

            observe(app, options.metrics_host, options.metrics_port)
        node = app.node(
            queues=options.names_of_queues(),
            identity=options.name,
            restart_seconds=0.0 if options.name is None else options.restart,
            concurrency=options.concurrency,
            threads=options.threads,
            processes=options.processes,
            drain=options.drain,
            application=options.application,
        )
        log.info(
            "worker starts",
            extra={
                "node": node.settings.name,
                "store": app.store.database.location,
                "tasks": len(app.handlers),
                "concurrency": options.concurrency,
            },
        )
        asyncio.run(_run(app, node, options.until_empty))
        app.close()


async def _run(app: App, node: Node, until_empty: bool) -> None:
    loop = asyncio.get_running_loop()
    asked = False

    def stop(number: signal.Signals) -> None:
        nonlocal asked
        if asked:
            logging.shutdown()
            os._exit(128 + number)  # at once: whatever is held is resumed by others
        asked = True
        log.info(
            "stopping: running tasks may end; once more ends at once",
            extra={"in_flight": node.in_flight},
        )
        node.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    watch = loop.create_task(_stop_when_empty(app, node)) if until_empty else None
    try:
        await node.run()
    finally:
        if watch is not None:
            watch.cancel()
    if node.unstoppable:
        logging.shutdown()
        os._exit(0)  # the event loop would wait for them for ever


async def _stop_when_empty(app: App, node: Node) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        await node.ready.wait()
        if node.in_flight:
            continue
        unfinished, in_error = await node.unfinished()
        if not unfinished:
            log.info("nothing is left to run", extra={"tasks_in_error": in_error})
            node.stop()
            return
