"""`fairlead queues` and `fairlead migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.app import App
from fairlead.cli.output import as_json, as_table, one_line_errors, readable, time_of
from fairlead.stores.migrate import print_sql

queues = typer.Typer(invoke_without_command=True, help="Look at queues; pause and resume them in the whole cluster.")

Url = Annotated[str | None, typer.Option(help="Where tasks live; else FAIRLEAD_URL or the configuration file.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@queues.callback()
def list_queues(context: typer.Context, url: Url = None, json: Json = False) -> None:
    """Every queue with its counts by state.

    Example: fairlead queues --json
    """
    if context.invoked_subcommand is not None:
        return
    with one_line_errors():
        found = App(url).management.queues()
        if json:
            as_json([readable(queue) for queue in found])
            return
        as_table(
            ("queue", "partitions", "waiting", "submitted", "processing", "error", "oldest ready", ""),
            [
                (
                    q.queue, q.partitions, q.waiting, q.submitted, q.processing, q.error, time_of(q.oldest_ready_at),
                    "paused" if q.paused else "",
                )
                for q in found
            ],
        )  # fmt: skip


@queues.command("pause")
def pause(queue: str, url: Url = None) -> None:
    """Start no more of its tasks, anywhere; running ones end.

    Example: fairlead queues pause payouts
    """
    with one_line_errors():
        App(url).management.pause(queue)
        print(f"paused: {queue}")


@queues.command("resume")
def resume(queue: str, url: Url = None) -> None:
    """Start its tasks again.

    Example: fairlead queues resume payouts
    """
    with one_line_errors():
        App(url).management.unpause(queue)
        print(f"resumed: {queue}")


def migrate(
    url: Url = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the SQL, change nothing.")] = False,
    json: Json = False,
) -> None:
    """Bring the tables up to date. Safe twice, and by two processes at once.

    Example: fairlead migrate --url postgresql://app@db/shop
    """
    with one_line_errors():
        app = App(url)
        if print_only:
            print(print_sql(app.connections.store.database.dialect))
            return
        applied = app.migrate()
        if json:
            as_json({"applied": applied})
        else:
            print("\n".join(applied) if applied else "up to date")
