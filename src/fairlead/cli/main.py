"""The `fairlead` command and its subcommands."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from fairlead.cli import demo, replay, simulate
from fairlead.cli.doctor import doctor
from fairlead.cli.ordered import ordered
from fairlead.cli.periodic import periodic
from fairlead.cli.queues import migrate, queues
from fairlead.cli.tasks import submit, tasks
from fairlead.cli.worker import worker

app = typer.Typer(
    name="fairlead",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Durable, fair task queues. Exit codes: 0 done, 1 the work failed, 2 wrong use.",
)
app.command()(migrate)
app.command()(worker)
app.command()(submit)
app.add_typer(tasks, name="tasks")
app.add_typer(queues, name="queues")
app.add_typer(periodic, name="periodic")
app.add_typer(ordered, name="ordered")
app.command()(doctor)
for group in entry_points(group="fairlead.commands"):
    app.add_typer(group.load(), name=group.name)
replay.register(app)
simulate.register(app)
demo.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from fairlead import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable, fair task queues for services with many tenants."""


def main() -> None:
    """Run the command line."""
    app()
