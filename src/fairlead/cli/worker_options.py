"""Options of `fairlead worker`."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from fairlead.cli.parameters import CommandOptions
from fairlead.errors import ConfigurationError
from fairlead.supervisor.fleet import START_SECONDS
from fairlead.supervisor.processes import usable_cores

MOST_WORKERS = 64
"""Maximum number of worker processes under one supervisor on a machine with few cores."""

MOST_PER_CORE = 16
"""Maximum number of worker processes for each usable core, on a machine with many."""


class LogFormat(StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level of log lines to print."""

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
            help="Name of the node, the same after each restart, so that a restarted worker keeps"
            " its partitions. With --workers, the nodes are NAME-1, NAME-2, ..."
        ),
    ] = None
    restart: Annotated[
        float,
        typer.Option(
            min=0,
            help="With --name: seconds after a stop in which no other worker takes its partitions.",
        ),
    ] = 30.0
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Run N worker processes under a supervisor, or with auto one for each usable core."
            " The options below apply to each process.",
        ),
    ] = None
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum number of tasks that run at once.")
    ] = 500
    threads: Annotated[
        int, typer.Option(min=1, help="Maximum number of synchronous handlers that run at once.")
    ] = 16
    processes: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of handlers with executor='process' that run at once."
        ),
    ] = 2
    look_ahead_mb: Annotated[
        int,
        typer.Option(
            min=1,
            help="Memory for waiting tasks, in MB. All queues share it by need; the other waiting"
            " tasks stay in the store.",
        ),
    ] = 64
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that running tasks may still take after a stop.")
    ] = 20.0
    start_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds after which a worker that is not ready is not live; with --workers, it is"
            " killed and started again.",
        ),
    ] = START_SECONDS
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when no task is left to run or retry.")
    ] = False
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: start again when Python code changes below this folder or"
            " another one of sys.path, such as that of manage.py.",
        ),
    ] = False
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Port on which to serve Prometheus metrics, /live and /ready."),
    ] = None
    metrics_host: Annotated[str, typer.Option(help="Address for --metrics-port.")] = "127.0.0.1"
    log_runs: Annotated[
        bool, typer.Option("--log-runs", help="Log each run at INFO, also one that does not fail.")
    ] = False
    log_level: Annotated[LogLevel, typer.Option()] = LogLevel.INFO
    log_format: Annotated[LogFormat, typer.Option()] = LogFormat.TEXT

    def names_of_queues(self) -> list[str] | None:
        """Return the names of the queues to serve, or None for all queues."""
        if self.queues is None:
            return None
        return [name.strip() for name in self.queues.split(",") if name.strip()]

    def number_of_workers(self) -> int | None:
        """Return the number of worker processes under a supervisor, or None for one process without
        a supervisor. Raise ConfigurationError for an invalid number."""
        if self.workers is None:
            return None
        cores = usable_cores()
        if self.workers == "auto":
            return cores
        most = max(MOST_WORKERS, MOST_PER_CORE * cores)
        if re.fullmatch("[0-9]{1,9}", self.workers) and 1 <= int(self.workers) <= most:
            return int(self.workers)
        raise ConfigurationError(
            f"--workers {self.workers[:20]}: use a whole number from 1 to {most}, or auto for one"
            f" worker a core ({cores} usable here); each worker is a process with memory and"
            " connections of its own, and runs up to --concurrency tasks at once"
        )
