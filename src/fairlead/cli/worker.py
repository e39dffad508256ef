"""`fairlead worker`: one node in one process, or several under a supervisor."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from fairlead.cli.logs import configure
from fairlead.cli.output import one_line_errors
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.errors import ConfigurationError
from fairlead.supervisor.processes import usable_cores


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
        typer.Option(
            help="Name kept over restarts, so that a quick restart moves no partition; with"
            " --workers: NAME-1, NAME-2, ..."
        ),
    ] = None
    restart: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --name: seconds for which its partitions wait after a stop.",
        ),
    ] = 30.0
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Run N worker processes under a supervisor; auto: one for each usable core. The"
            " options below are for each of them.",
        ),
    ] = None
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
        int | None,
        typer.Option(help="Serve Prometheus metrics, /live and /ready on this port."),
    ] = None
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1"
    log_level: Annotated[LogLevel, typer.Option()] = LogLevel.INFO
    log_format: Annotated[LogFormat, typer.Option()] = LogFormat.TEXT

    def names_of_queues(self) -> list[str] | None:
        """Return the queues to work on; None for all."""
        if self.queues is None:
            return None
        return [name.strip() for name in self.queues.split(",") if name.strip()]

    def number_of_workers(self) -> int | None:
        """Return how many processes a supervisor shall run; None for one process without
        supervisor. Raise ConfigurationError."""
        if self.workers is None:
            return None
        if self.workers == "auto":
            return usable_cores()
        if not self.workers.isdecimal() or not int(self.workers):
            raise ConfigurationError(f"--workers {self.workers}: use a number from 1 on, or auto")
        return int(self.workers)


@with_options
def worker(options: WorkerOptions) -> None:
    """Run tasks. The first SIGTERM or Ctrl-C drains the worker and hands back the rest; a second
    one ends it at once.

    With --workers, a supervisor runs several worker processes, starts again those that end, and
    replaces all of them one by one on SIGHUP.

    Example: fairlead worker shop:app --queues payouts,mail --concurrency 200

    Example: fairlead worker shop:app --workers auto --metrics-port 9100
    """
    configure(options.log_level, options.log_format)
    with one_line_errors():
        # Loaded by the worker only: no other command needs the engine.
        from fairlead.cli import serve

        raise typer.Exit(serve.serve(options))
