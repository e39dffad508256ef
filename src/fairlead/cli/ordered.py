"""`fairlead ordered`: show ordered queues, and end a stuck task."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console

from fairlead.cli.application import load
from fairlead.cli.options import Json, OutputOptions, actor_of
from fairlead.cli.output import (
    WRONG_USE,
    as_json,
    as_list,
    as_table,
    first_line,
    print_result,
    say,
    say_error,
    time_of,
)
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import app_on, wait_and_close
from fairlead.clock import to_datetime, to_micros
from fairlead.declare.queue import MOST_PARTITIONS
from fairlead.errors import InvalidTask, UnknownTask
from fairlead.model import ScheduledTask, TaskKey
from fairlead.operate.ordered import OrderedManagement, RepartitionPlan
from fairlead.ordered.repartition import Repartitioned

ordered = typer.Typer(
    no_args_is_help=True,
    help="Show ordered queues, their tasks and attempts; end a stuck task.",
)


class OrderedTasksOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `ordered tasks`."""

    ordering_key: Annotated[
        str | None, typer.Option("--key", help="Only tasks of this ordering key.")
    ] = None
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of tasks.")] = 100


class DropTaskOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `ordered drop`."""

    run_at: Annotated[
        str | None,
        typer.Option(help="Time of the task: ISO 8601 with a zone, or microseconds."),
    ] = None
    unique_key: Annotated[str | None, typer.Option(help="Unique key of the task.")] = None


class RepartitionOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `ordered repartition`."""

    to: Annotated[int, typer.Option(min=1, max=MOST_PARTITIONS, help="New number of partitions.")]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be moved.")] = (
        False
    )
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the move.")] = False
    json: Json = False


@ordered.command("tasks")
@with_options
def list_tasks(queue: str, options: OrderedTasksOptions) -> None:
    """List unfinished tasks in the order of their times.

    Example: fairlead ordered tasks reminders --key user-7 --json
    """
    app = app_on(options.url)
    management = app.management.ordered
    found = wait_and_close(
        app,
        management.tasks(
            queue,
            ordering_key=options.ordering_key,
            partition=options.partition,
            limit=options.limit,
        ),
    )
    as_list(
        found,
        options.json,
        {
            "id": lambda each: each.task.id,
            "ordering key": lambda each: each.key.ordering_key,
            "run at": lambda each: time_of(each.key.run_at),
            "unique key": lambda each: each.key.unique_key,
            "name": lambda each: each.task.name,
            "partition": lambda each: each.task.partition,
            "runs": "attempt",
            "retry at": "retry_at",
        },
        _readable,
    )


@ordered.command("attempts")
@with_options
def attempts(id: str, options: OutputOptions) -> None:
    """List all attempts of a task, first to last.

    Example: fairlead ordered attempts 0197c2a4-...
    """
    found = app_on(options.url).management.attempts(id)
    if not found:
        raise UnknownTask(
            f"no attempt of task {id!r}: it has not run yet, or its history was cleaned"
        )
    as_list(
        found,
        options.json,
        {
            "attempt": "attempt",
            "outcome": "outcome",
            "next": "next_state",
            "started": "started_at",
            "finished": "finished_at",
            "node": "node",
            "error": lambda attempt: first_line(attempt.error_text),
        },
    )


@ordered.command("drop")
@with_options
def drop(queue: str, ordering_key: str, options: DropTaskOptions) -> None:
    """End a task, whatever its state, so that the next task of its ordering key can run. Without
    --run-at, end the first task of the key.

    Example: fairlead ordered drop reminders user-7
    """
    app = app_on(options.url)
    management = app.management.ordered
    run_at, unique_key = options.run_at, options.unique_key
    if (run_at is None) != (unique_key is None):
        raise InvalidTask(
            "name a task by both --run-at and --unique-key, or take the first one of its"
            " ordering key"
        )
    if run_at is not None and unique_key is not None:
        key = TaskKey(_micros(run_at), ordering_key, unique_key)
    else:
        first = wait_and_close(app, management.tasks(queue, ordering_key=ordering_key, limit=1))
        if not first:
            raise UnknownTask(
                f"no task of ordering key {ordering_key!r} waits in the schedule of {queue!r}"
            )
        key = first[0].key
    management.drop(queue, key, actor=actor_of(None))
    print_result(
        options.json,
        {"dropped": key._asdict()},
        f"asked the owner of the partition to drop: {ordering_key} at {time_of(key.run_at)},"
        f" {key.unique_key}",
    )


@ordered.command("status")
@with_options
def status(queue: str, options: OutputOptions) -> None:
    """Show the partitions of a queue: owner, entries in log and schedule, stale tasks, tasks in
    memory and in flight.

    Example: fairlead ordered status reminders --json
    """
    app = app_on(options.url)
    found = wait_and_close(app, app.management.ordered.status(queue))
    if options.json:
        as_json(found)
        return
    as_table(
        (
            "partition",
            "owner",
            "log",
            "unfinished",
            "stale",
            "oldest",
            "loaded",
            "in flight",
            "look-ahead s",
            "trouble",
        ),
        [
            (
                p.partition,
                p.owner or "nobody",
                p.lag,
                p.unfinished,
                p.stale,
                time_of(None if p.oldest is None else p.oldest.run_at),
                p.loaded,
                p.in_flight,
                round(p.look_ahead),
                (p.trouble and f"reloaded {p.reloads} times: {p.trouble}")
                or (f"{p.unreadable} tasks cannot be read" if p.unreadable else None),
            )
            for p in found
            if p.owner is not None or p.unfinished or p.lag
        ],
    )


@ordered.command("repartition")
@with_options
def repartition(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The App.")],
    queue: str,
    options: RepartitionOptions,
) -> None:
    """Move the tasks of an ordered queue to another number of partitions.

    Stop the workers of the queue before. Submitters go on, and use the new number within seconds.
    Then declare the queue with the new number, and start the workers. Run a command that was cut
    off again, to the same number or to another one.

    Example: fairlead ordered repartition shop:app reminders --to 240 --dry-run

    Example: fairlead ordered repartition shop:app reminders --to 240 --yes --json
    """
    app = load(application)
    moved = wait_and_close(app, _repartition(app.management.ordered, queue, options))
    if moved is None:
        return
    if options.json:
        as_json(moved)
    else:
        say(
            f"{queue} has {moved.partitions} partitions: moved {moved.tasks:,} tasks and"
            f" {moved.completed:,} completed keys, wrote {moved.entries:,} entries of the log"
            " to the schedule"
        )
        say(f"now declare it with partitions={moved.partitions}, and start its workers")
    if moved.left_out:
        say_error(f"left out {moved.left_out:,} entries of the log that no schedule can hold")


async def _repartition(
    management: OrderedManagement, queue: str, options: RepartitionOptions
) -> Repartitioned | None:
    """Print or ask what is to be moved, then move it; return None after a dry run."""
    if options.dry_run or not options.yes:
        plan = await management.repartition_plan(queue, options.to)
        if options.dry_run and options.json:
            as_json(plan)
        elif options.dry_run:
            say(_text_of(plan))
        else:
            _ask(plan)
        if options.dry_run:
            return None
    with Console(stderr=True).status("") as shown:
        return await management.repartition(queue, options.to, shown.update)


def _text_of(plan: RepartitionPlan) -> str:
    text = (
        f"{plan.queue}: {plan.before} partitions to {plan.partitions}; {plan.tasks:,} of"
        f" {plan.unfinished:,} tasks in the schedule would move, {plan.entries:,} entries of the"
        " log would be written to it"
    )
    if plan.workers:
        text += f"; stop first: {', '.join(plan.workers)}"
    return text


def _ask(plan: RepartitionPlan) -> None:
    """Ask a person before the move. Raise InvalidTask where nobody can confirm."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidTask(f"{_text_of(plan)}: see it with --dry-run, then add --yes")
    if not typer.confirm(f"{_text_of(plan)}. Go on?", err=True):
        raise typer.Exit(WRONG_USE)


def _micros(text: str) -> int:
    try:
        return (
            int(text) if text.lstrip("-").isdecimal() else to_micros(datetime.fromisoformat(text))
        )
    except ValueError as error:
        raise InvalidTask(
            f"--run-at {text!r}: {error}; use 2026-01-31T09:00:00+00:00 or microseconds since 1970"
        ) from None


def _readable(scheduled: ScheduledTask) -> dict[str, object]:
    return {
        "id": scheduled.task.id,
        "name": scheduled.task.name,
        "partition": scheduled.task.partition,
        "ordering_key": scheduled.key.ordering_key,
        "run_at": to_datetime(scheduled.key.run_at),
        "unique_key": scheduled.key.unique_key,
        "attempts": scheduled.attempt,
        "unreadable": scheduled.unreadable,
        "retry_at": None if scheduled.retry_at is None else to_datetime(scheduled.retry_at),
    }
