"""`fairlead periodic`: show periodic tasks, and change them."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.application import load
from fairlead.cli.options import Actor, Json, OutputOptions, PersonOptions, actor_of
from fairlead.cli.output import as_list, print_result, readable, time_of
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import app_on
from fairlead.clock import to_datetime
from fairlead.operate.periodic import PeriodicStatus

periodic = typer.Typer(
    no_args_is_help=True,
    help=(
        "Show periodic tasks; run one now, pause, resume and remove them.\n\n"
        "Example: fairlead periodic list --json"
    ),
)

Name = Annotated[str, typer.Argument(help="Name of the periodic task, as `list` shows it.")]


@periodic.command("list")
@with_options
def list_periodics(options: OutputOptions) -> None:
    """Print every periodic task with its cron expression, its last and its next slot.

    Times are in UTC. A periodic task that no worker declares any more is shown as such, and stays
    until a person removes it.

    Example: fairlead periodic list --json
    """
    found = app_on(options.url).management.periodic.list()
    as_list(
        found,
        options.json,
        {
            "name": lambda status: status.record.name,
            "queue": lambda status: status.record.queue,
            "cron": lambda status: status.record.cron,
            "timezone": lambda status: status.record.timezone,
            "catch up": lambda status: status.record.catch_up,
            "last slot": lambda status: time_of(status.record.last_slot_at),
            "next slot": "next_slot_at",
            "": _remarks,
        },
        _document,
    )


@periodic.command("run")
@with_options
def run(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App.")],
    name: Name,
    actor: Actor = None,
    json: Json = False,
) -> None:
    """Submit a periodic task once, now, and print the task's id; its slots stay as they are.

    Example: fairlead periodic run shop:app nightly_report
    """
    app = load(application)
    handle = app.management.periodic.run(name, actor=actor_of(actor))
    print_result(json, {"id": handle.id}, handle.id)
    app.close()


@periodic.command("pause")
@with_options
def pause(name: Name, store: PersonOptions) -> None:
    """Submit no slot of a periodic task until it is resumed.

    Example: fairlead periodic pause nightly_report
    """
    app_on(store.url).management.periodic.pause(name, actor=actor_of(store.actor))
    print_result(store.json, {"paused": name}, f"paused: {name}")


@periodic.command("resume")
@with_options
def resume(name: Name, store: PersonOptions) -> None:
    """Submit the slots of a paused periodic task again, from now on. Slots of the pause do not run.

    Example: fairlead periodic resume nightly_report
    """
    app_on(store.url).management.periodic.resume(name, actor=actor_of(store.actor))
    print_result(store.json, {"resumed": name}, f"resumed: {name}")


@periodic.command("remove")
@with_options
def remove(name: Name, store: PersonOptions) -> None:
    """Remove a periodic task that no worker has declared for three minutes.

    Example: fairlead periodic remove nightly_report
    """
    app_on(store.url).management.periodic.remove(name, actor=actor_of(store.actor))
    print_result(store.json, {"removed": name}, f"removed: {name}")


def _document(status: PeriodicStatus) -> dict[str, object]:
    following = status.next_slot_at
    return {
        **readable(status.record),
        "is_declared": status.is_declared,
        "next_slot_at": None if following is None else to_datetime(following),
    }


def _remarks(status: PeriodicStatus) -> str:
    remarks = ["paused"] if status.record.paused else []
    if not status.is_declared:
        remarks.append(f"declared by nobody since {time_of(status.record.declared_at)[:19]}")
    return ", ".join(remarks)
