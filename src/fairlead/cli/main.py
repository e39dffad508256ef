"""The `fairlead` command and its subcommands."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from fairlead.cli.lazy import entry_points_of, lazy_group
from fairlead.cli.output import WORK_FAILED, say, say_error

_COMMANDS = {
    "migrate": "fairlead.cli.migrate:migrate",
    "worker": "fairlead.cli.worker:worker",
    "submit": "fairlead.cli.submit:submit",
    "overview": "fairlead.cli.commands:NOUNS.overview",
    "tasks": "fairlead.cli.commands:NOUNS.tasks",
    "tenants": "fairlead.cli.commands:NOUNS.tenants",
    "queues": "fairlead.cli.commands:NOUNS.queues",
    "nodes": "fairlead.cli.commands:NOUNS.nodes",
    "incidents": "fairlead.cli.commands:NOUNS.incidents",
    "periodic": "fairlead.cli.commands:NOUNS.periodic",
    "ordered": "fairlead.cli.ordered:ordered",
    "actions": "fairlead.cli.commands:NOUNS.actions",
    "audit": "fairlead.cli.commands:NOUNS.audit",
    "doctor": "fairlead.cli.doctor:doctor",
    "simulate": "fairlead.cli.simulate:simulate_command",
    "web": "fairlead.cli.web:web",
    "mcp": "fairlead.cli.mcp:mcp",
    "demo": "fairlead.cli.demo:demo_command",
}

app = typer.Typer(
    name="fairlead",
    cls=lazy_group([*entry_points_of(_COMMANDS), *entry_points(group="fairlead.commands")]),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Durable, fair task queues. Exit codes: 0 done, 1 the work failed, 2 wrong use.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from fairlead import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable, fair task queues for services with many tenants."""


def main() -> None:
    """Run the command line. Escape what the encoding of the output lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        say_error(f"cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python has buffered
        sys.exit(WORK_FAILED)
