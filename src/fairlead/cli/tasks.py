"""`fairlead tasks` and `fairlead submit`: what operators do to tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from fairlead.app import App
from fairlead.cli.application import load
from fairlead.cli.output import (
    WORK_FAILED,
    as_json,
    as_table,
    duration,
    one_line_errors,
    readable,
    time_of,
)
from fairlead.declare.options import Options
from fairlead.declare.task import Draft
from fairlead.errors import FairleadError, InvalidTask
from fairlead.model import State, TaskRecord
from fairlead.operate.tasks import Management

tasks = typer.Typer(no_args_is_help=True, help="Look at tasks and change them.")

Url = Annotated[
    str | None, typer.Option(help="Where tasks live; else FAIRLEAD_URL or the configuration file.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters, at most --limit.")]
StateFilter = Annotated[State | None, typer.Option(help="Only tasks in this state.")]
QueueFilter = Annotated[str | None, typer.Option(help="Only tasks of this queue.")]
NameFilter = Annotated[str | None, typer.Option(help="Only tasks of this name.")]
KeyFilter = Annotated[str | None, typer.Option(help="Only tasks of this fairness key.")]
OlderThan = Annotated[str | None, typer.Option(help="Only tasks submitted longer ago, as in 2h.")]
Version = Annotated[int | None, typer.Option(help="Only if the task is still at this version.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]


@tasks.command("list")
def list_tasks(
    state: StateFilter = None,
    queue: QueueFilter = None,
    name: NameFilter = None,
    fairness_key: KeyFilter = None,
    older_than: OlderThan = None,
    limit: Limit = 100,
    url: Url = None,
    json: Json = False,
) -> None:
    """Unfinished tasks, oldest first.

    Example: fairlead tasks list --state ERROR --name payout --older-than 1h
    """
    with one_line_errors():
        found = App(url).management.find(
            state=state,
            queue=queue,
            name=name,
            fairness_key=fairness_key,
            older_than=duration(older_than),
            limit=limit,
        )
        if json:
            as_json([readable(task) for task in found])
            return
        as_table(
            ("id", "state", "queue", "name", "key", "tries", "run at", "error"),
            [
                (
                    t.id,
                    t.state,
                    t.queue,
                    t.name,
                    t.fairness_key,
                    t.tries,
                    time_of(t.run_at),
                    (t.error_text or "").split("\n")[0][:60],
                )
                for t in found
            ],
        )


@tasks.command("show")
def show(
    id: str,
    url: Url = None,
    json: Json = False,
    payload: Annotated[bool, typer.Option("--payload")] = False,
) -> None:
    """One task with all its attempts; its arguments only with --payload.

    Example: fairlead tasks show 01938d2c-... --json
    """
    with one_line_errors():
        management = App(url).management
        task, attempts = management.show(id), management.attempts(id)
        arguments = management.payload(id) if payload else None
        if json:
            document: dict[str, Any] = {
                **readable(task),
                "attempts": [readable(attempt) for attempt in attempts],
            }
            if payload:
                document["payload"] = None if arguments is None else msgspec.Raw(arguments)
            as_json(document)
            return
        as_table(
            ("", ""), [(key, value) for key, value in readable(task).items() if value is not None]
        )
        if arguments is not None:
            print(f"payload {arguments.decode('utf-8', 'backslashreplace')}")
        as_table(
            ("attempt", "outcome", "next state", "started", "finished", "node", "error"),
            [
                (
                    a.attempt,
                    a.outcome,
                    a.next_state,
                    time_of(a.started_at),
                    time_of(a.finished_at),
                    a.node,
                    (a.error_text or "").split("\n")[0][:80],
                )
                for a in attempts
            ],
        )


def _change(
    what: str,
    by: Callable[[Management, TaskRecord], None],
    url: str | None,
    json: bool,
    ids: Sequence[str] | None,
    every: bool,
    filters: dict[str, Any],
) -> None:
    with one_line_errors():
        if bool(ids) == every:
            raise InvalidTask("give the ids of tasks, or --all with filters")
        management = App(url).management
        if every:
            result = management.bulk(lambda task: by(management, task), **filters)
            changed, refused = (
                result.changed,
                [f"{result.refused} tasks had moved on"] if result.refused else [],
            )
        else:
            changed, refused = 0, []
            for task_id in ids or ():
                try:
                    by(management, management.show(task_id))
                    changed += 1
                except FairleadError as error:
                    refused.append(str(error))
        if json:
            as_json({"changed": changed, "refused": refused})
        else:
            print(f"{what}: {changed}")
            for reason in refused:
                print(f"refused: {reason}", file=sys.stderr)
        if refused:
            raise typer.Exit(WORK_FAILED)


def _filters(
    state: State | None,
    queue: str | None,
    name: str | None,
    key: str | None,
    older: str | None,
    limit: int,
) -> dict[str, Any]:
    return {
        "state": state,
        "queue": queue,
        "name": name,
        "fairness_key": key,
        "older_than": duration(older),
        "limit": limit,
    }


@tasks.command("retry")
def retry(
    ids: Ids = None,
    every: All = False,
    state: StateFilter = State.ERROR,
    queue: QueueFilter = None,
    name: NameFilter = None,
    fairness_key: KeyFilter = None,
    older_than: OlderThan = None,
    limit: Limit = 1000,
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Try tasks in ERROR, or waiting for a retry, again now, with all their tries.

    Example: fairlead tasks retry --all --name payout --limit 500
    """
    filters = _filters(state, queue, name, fairness_key, older_than, limit)
    _change(
        "retried",
        lambda m, t: m.retry(t.id, version=version or t.version),
        url,
        json,
        ids,
        every,
        filters,
    )


@tasks.command("resume")
def resume(
    ids: Ids = None,
    every: All = False,
    state: StateFilter = State.WAITING,
    queue: QueueFilter = None,
    name: NameFilter = None,
    fairness_key: KeyFilter = None,
    older_than: OlderThan = None,
    limit: Limit = 1000,
    version: Version = None,
    url: Url = None,
    json: Json = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also running tasks: a double run.")
    ] = False,
) -> None:
    """Run waiting tasks now, before their time.

    Example: fairlead tasks resume 01938d2c-...
    """
    filters = _filters(state, queue, name, fairness_key, older_than, limit)
    _change(
        "resumed",
        lambda m, t: m.resume(t.id, version=version or t.version, force=force),
        url,
        json,
        ids,
        every,
        filters,
    )


@tasks.command("reschedule")
def reschedule(
    id: str,
    run_at: Annotated[
        datetime,
        typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z"], help="As in 2026-12-24T18:00:00+0200."),
    ],
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Give a waiting task another time; one that has passed means now.

    Example: fairlead tasks reschedule 01938d2c-... --run-at 2026-12-24T18:00:00+0200
    """
    _change(
        "rescheduled",
        lambda m, t: m.reschedule(t.id, run_at, version=version or t.version),
        url,
        json,
        [id],
        False,
        {},
    )


@tasks.command("cancel")
def cancel(
    ids: Ids = None,
    every: All = False,
    state: StateFilter = None,
    queue: QueueFilter = None,
    name: NameFilter = None,
    fairness_key: KeyFilter = None,
    older_than: OlderThan = None,
    limit: Limit = 1000,
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """End tasks as CANCELLED; a run under way is stopped.

    Example: fairlead tasks cancel --all --queue mail --fairness-key acme
    """
    filters = _filters(state, queue, name, fairness_key, older_than, limit)
    _change(
        "cancelled",
        lambda m, t: m.cancel(t.id, version=version or t.version),
        url,
        json,
        ids,
        every,
        filters,
    )


@tasks.command("fail")
def fail(
    ids: Ids = None,
    every: All = False,
    queue: QueueFilter = None,
    name: NameFilter = None,
    fairness_key: KeyFilter = None,
    older_than: OlderThan = None,
    limit: Limit = 1000,
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Give up tasks in ERROR: FAILED, and their alarm goes quiet.

    Example: fairlead tasks fail 01938d2c-...
    """
    filters = _filters(State.ERROR, queue, name, fairness_key, older_than, limit)
    _change(
        "failed",
        lambda m, t: m.fail(t.id, version=version or t.version),
        url,
        json,
        ids,
        every,
        filters,
    )


def submit(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP")],
    task: Annotated[str, typer.Argument(help="The task's name.")],
    arguments: Annotated[
        str, typer.Argument(help="A JSON object of arguments; - reads it from standard input.")
    ] = "{}",
    fairness_key: str = "",
    weight: float = 1.0,
    priority: int = 5,
    ordering_key: str | None = None,
    unique_key: str | None = None,
    run_at: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z"])] = None,
    json: Json = False,
) -> None:
    """Submit one task and print its id.

    Example: fairlead submit shop:app pay '{"partner": "acme", "amount": 3}' --fairness-key acme
    """
    with one_line_errors():
        app = load(application)
        if task not in app.handlers:
            raise InvalidTask(
                f"no task named {task!r} in {application}; it has {', '.join(sorted(app.handlers))}"
            )
        try:
            kwargs = msgspec.json.decode(
                sys.stdin.buffer.read() if arguments == "-" else arguments.encode(),
                type=dict[str, Any],
            )
        except msgspec.DecodeError as error:
            raise InvalidTask(
                f"arguments: {error}; give a JSON object, as in '{{\"amount\": 3}}'"
            ) from error
        options = Options().changed(
            {
                "fairness_key": fairness_key,
                "weight": weight,
                "priority": priority,
                "ordering_key": ordering_key,
                "unique_key": unique_key,
                "run_at": run_at,
            }
        )
        handle = app.submit_many([Draft(app.handlers[task], (), kwargs, options)])[0]
        if json:
            as_json({"id": handle.id, "is_new": handle.is_new})
        else:
            print(handle.id)
        app.close()
