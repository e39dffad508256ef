"""`fairlead queues` and `fairlead migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.backends.sql.migrate import print_sql
from fairlead.cli.options import ActorOptions, OutputOptions, actor_of
from fairlead.cli.output import as_json, as_list, as_table, print_result, readable, say
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import app_on, wait_and_close
from fairlead.errors import InvalidTask
from fairlead.operate.overview import overview

queues = typer.Typer(
    invoke_without_command=True,
    help=(
        "Show queues; pause and resume them, and set weights, in the whole cluster.\n\n"
        "Example: fairlead queues --json"
    ),
)


@queues.callback()
@with_options
def list_queues(context: typer.Context, options: OutputOptions) -> None:
    """Print every queue with its counts by state."""
    if context.invoked_subcommand is not None:
        return
    found = app_on(options.url).management.queues()
    as_list(
        found,
        options.json,
        {
            "queue": "queue",
            "partitions": "partitions",
            "waiting": "waiting",
            "submitted": "submitted",
            "processing": "processing",
            "error": "error",
            "oldest ready": "oldest_ready_at",
            "": lambda queue: "paused" if queue.paused else "",
        },
    )


@queues.command("pause")
@with_options
def pause(queue: str, store: ActorOptions) -> None:
    """Start no more tasks of a queue on any worker; running ones end.

    Example: fairlead queues pause payouts
    """
    app_on(store.url).management.pause(queue, actor=actor_of(store.actor))
    say(f"paused: {queue}")


@queues.command("resume")
@with_options
def resume(queue: str, store: ActorOptions) -> None:
    """Start tasks of a paused queue again.

    Example: fairlead queues resume payouts
    """
    app_on(store.url).management.unpause(queue, actor=actor_of(store.actor))
    say(f"resumed: {queue}")


class ShowQueueOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `queues show`."""

    keys: Annotated[int, typer.Option(min=1, help="Number of fairness keys to show.")] = 10


@queues.command("show")
@with_options
def show(queue: str, options: ShowQueueOptions) -> None:
    """Show the partitions of a queue with their owners and backlogs, the fairness keys with most
    tasks, and limits set at run time.

    A, R and M are the ack, read and max levels (pass, id). Buffer counts the triggers in the
    owner's memory.

    Example: fairlead queues show payouts --json
    """
    app, keys = app_on(options.url), options.keys
    found = wait_and_close(app, overview(app.operate_context, queue, keys))
    if options.json:
        as_json(
            {
                **readable(found.status),
                "partitions": found.partitions,
                "heaviest": found.heaviest,
                "keys": found.keys,
                "limits": found.limits,
            }
        )
        return
    rows = []
    for partition in found.partitions:
        owner = (partition.partition, partition.owner or "nobody", partition.range_id)
        rows += [
            (
                *owner,
                lane.priority,
                *map(tuple, (lane.ack_level, lane.read_level, lane.max_level)),
                lane.buffered,
                lane.stored,
            )
            for lane in partition.lanes
        ] or [(*owner, *[None] * 6)]
    as_table(
        ("partition", "owner", "range id", "priority", "A", "R", "M", "buffer", "stored"), rows
    )
    say(f"\n{found.status.submitted} tasks may run, of {found.keys} fairness keys")
    as_table(
        ("fairness key", "tasks", "weight", "share"),
        [
            (load.fairness_key, load.tasks, f"{load.weight:g}", f"{load.share:.1%}")
            for load in found.heaviest
        ],
    )
    if found.limits:
        say(
            "\nmaximum number of tasks of a key that run at once on each node, set by a person"
            " or by a policy (`fairlead pipeline policies` shows the reasons)"
        )
        as_table(("fairness key", "slots"), list(found.limits.items())[:keys])


@queues.command("weight")
@with_options
def weight(
    queue: str,
    key: Annotated[str, typer.Argument(help="The fairness key, or the tenant.")],
    value: Annotated[
        float | None, typer.Argument(metavar="[WEIGHT]", help="Weight of the key: 0.001 to 1000.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Return to the tasks' own weights.")
    ] = False,
    *,
    store: ActorOptions,
) -> None:
    """Override the weight of a fairness key among tenants, or inside its tenant if it is a path.

    Example: fairlead queues weight payouts acme 2.5; fairlead queues weight payouts acme --clear
    """
    if (value is None) is not clear:
        raise InvalidTask("give a weight, or --clear")
    app_on(store.url).management.set_weight(queue, key, value, actor=actor_of(store.actor))
    say(
        f"{queue} {key}: "
        + ("the tasks' own weights are used again" if value is None else f"weight {value:g}")
    )


@queues.command("limit")
@with_options
def limit(
    queue: str,
    key: Annotated[str, typer.Argument(help="The fairness key, whole.")],
    value: Annotated[
        int | None,
        typer.Argument(metavar="[SLOTS]", help="Tasks of the key at once on each node."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Lift the limit.")] = False,
    *,
    store: ActorOptions,
) -> None:
    """Limit how many tasks of a fairness key run at once on each node; those of the code apply too.

    Example: fairlead queues limit payouts acme 5; fairlead queues limit payouts acme --clear
    """
    if (value is None) is not clear:
        raise InvalidTask("give a limit, or --clear")
    app_on(store.url).management.set_limit(queue, key, value, actor=actor_of(store.actor))
    say(
        f"{queue} {key}: "
        + ("no limit set at run time" if value is None else f"at most {value} on each node")
    )


class MigrateOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `migrate`."""

    print_only: Annotated[bool, typer.Option("--print", help="Only print the SQL.")] = False


@with_options
def migrate(options: MigrateOptions) -> None:
    """Create or update the tables. Running this twice, or in two processes at once, is safe.

    Example: fairlead migrate --url postgresql://app@db/shop
    """
    app = app_on(options.url, may_be_new=True)
    if options.print_only:
        store = app.connections.sql_store
        say(print_sql(store.database, levels=store.keeps_levels))
        return
    applied = app.migrate()
    print_result(options.json, {"applied": applied}, "\n".join(applied) or "up to date")
