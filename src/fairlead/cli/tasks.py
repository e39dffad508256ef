"""`fairlead tasks` and `fairlead submit`: show, change and submit tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from fairlead.app import App
from fairlead.cli.application import load
from fairlead.cli.options import Json, OutputOptions, Url
from fairlead.cli.output import (
    WORK_FAILED,
    as_json,
    as_table,
    duration,
    one_line_errors,
    readable,
    say,
    say_error,
    time_of,
)
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.declare.options import Options as TaskOptions
from fairlead.declare.task import Draft
from fairlead.errors import FairleadError, InvalidTask
from fairlead.model import State, TaskRecord
from fairlead.operate.tasks import Management

tasks = typer.Typer(no_args_is_help=True, help="Show tasks and change them.")

StateFilter = Annotated[State | None, typer.Option(help="Only tasks in this state.")]
QueueFilter = Annotated[str | None, typer.Option(help="Only tasks of this queue.")]
NameFilter = Annotated[str | None, typer.Option(help="Only tasks of this name.")]
KeyFilter = Annotated[str | None, typer.Option(help="Only tasks of this fairness key.")]
OlderThan = Annotated[str | None, typer.Option(help="Only tasks older than this, for example 2h.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of tasks.")]


class Filters(CommandOptions, frozen=True, kw_only=True):
    """Filters of the tasks that a command shows."""

    state: StateFilter = None
    queue: QueueFilter = None
    name: NameFilter = None
    fairness_key: KeyFilter = None
    older_than: OlderThan = None
    limit: Limit = 100

    def query(self) -> dict[str, Any]:
        """Return the arguments of `Management.find` and `bulk`. Raise InvalidTask."""
        return msgspec.structs.asdict(self) | {"older_than": duration(self.older_than)}


class BulkFilters(Filters, frozen=True, kw_only=True):
    """Filters of the tasks that a command changes with --all."""

    limit: Limit = 1000


class RetryFilters(BulkFilters, frozen=True, kw_only=True):
    """Filters of `tasks retry --all`."""

    state: StateFilter = State.ERROR


class ResumeFilters(BulkFilters, frozen=True, kw_only=True):
    """Filters of `tasks resume --all`."""

    state: StateFilter = State.WAITING


class ErrorFilters(CommandOptions, frozen=True, kw_only=True):
    """Filters of the tasks in ERROR that a command changes with --all."""

    queue: QueueFilter = None
    name: NameFilter = None
    fairness_key: KeyFilter = None
    older_than: OlderThan = None
    limit: Limit = 1000

    def query(self) -> dict[str, Any]:
        """Return the arguments of `Management.bulk`. Raises InvalidTask."""
        return Filters(state=State.ERROR, **msgspec.structs.asdict(self)).query()


class TaskSelection(CommandOptions, frozen=True, kw_only=True):
    """Tasks by id, or all that match the filters."""

    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None
    every: Annotated[
        bool, typer.Option("--all", help="All that match the filters, at most --limit.")
    ] = False


class ChangeOptions(CommandOptions, frozen=True, kw_only=True):
    """The store in which a command changes tasks, and the version that the task must have."""

    version: Annotated[
        int | None, typer.Option(help="Only if the task is still at this version.")
    ] = None
    url: Url = None
    json: Json = False

    def version_of(self, task: TaskRecord) -> int:
        """Return the version that the task must still have."""
        return self.version or task.version


@tasks.command("list")
@with_options
def list_tasks(filters: Filters, options: OutputOptions) -> None:
    """List unfinished tasks, oldest first.

    Example: fairlead tasks list --state ERROR --name payout --older-than 1h
    """
    with one_line_errors():
        found = App(options.url).management.find(**filters.query())
        if options.json:
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


class ShowTaskOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `tasks show`."""

    payload: Annotated[bool, typer.Option("--payload")] = False


@tasks.command("show")
@with_options
def show(id: str, options: ShowTaskOptions) -> None:
    """Show one task with its attempts, and its arguments with --payload.

    Example: fairlead tasks show 01938d2c-... --json
    """
    with one_line_errors():
        management = App(options.url).management
        task, attempts = management.show(id), management.attempts(id)
        arguments = management.payload(id) if options.payload else None
        if options.json:
            document: dict[str, Any] = {
                **readable(task),
                "attempts": [readable(attempt) for attempt in attempts],
            }
            if options.payload:
                document["payload"] = None if arguments is None else msgspec.Raw(arguments)
            as_json(document)
            return
        as_table(
            ("", ""), [(key, value) for key, value in readable(task).items() if value is not None]
        )
        if arguments is not None:
            say(f"payload {arguments.decode('utf-8', 'backslashreplace')}")
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
    done: str,
    change: Callable[[Management, TaskRecord], None],
    selection: TaskSelection,
    filters: Filters | ErrorFilters,
    options: ChangeOptions,
) -> None:
    """Change the named tasks, or all that match; print how many changed, and which did not."""
    with one_line_errors():
        if bool(selection.ids) == selection.every:
            raise InvalidTask("give the ids of tasks, or --all with filters")
        management = App(options.url).management
        if selection.every:
            result = management.bulk(lambda task: change(management, task), **filters.query())
            changed, refused = (
                result.changed,
                [f"{result.refused} tasks had changed"] if result.refused else [],
            )
        else:
            changed, refused = 0, []
            for task_id in selection.ids or ():
                try:
                    change(management, management.show(task_id))
                    changed += 1
                except FairleadError as error:
                    refused.append(str(error))
        if options.json:
            as_json({"changed": changed, "refused": refused})
        else:
            say(f"{done}: {changed}")
            for reason in refused:
                say_error(f"refused: {reason}")
        if refused:
            raise typer.Exit(WORK_FAILED)


@tasks.command("retry")
@with_options
def retry(selection: TaskSelection, filters: RetryFilters, options: ChangeOptions) -> None:
    """Retry now the tasks that are in ERROR or wait for a retry; count tries from zero.

    Example: fairlead tasks retry --all --name payout --limit 500
    """

    def change(management: Management, task: TaskRecord) -> None:
        management.retry(task.id, version=options.version_of(task))

    _change("retried", change, selection, filters, options)


class ResumeOptions(ChangeOptions, frozen=True, kw_only=True):
    """Options of `tasks resume`."""

    force: Annotated[
        bool, typer.Option("--force", help="Also resume running tasks, which then run twice.")
    ] = False


@tasks.command("resume")
@with_options
def resume(selection: TaskSelection, filters: ResumeFilters, options: ResumeOptions) -> None:
    """Run waiting tasks now, before their time.

    Example: fairlead tasks resume 01938d2c-...
    """

    def change(management: Management, task: TaskRecord) -> None:
        version = options.version_of(task)
        management.resume(task.id, version=version, force=options.force)

    _change("resumed", change, selection, filters, options)


@tasks.command("reschedule")
@with_options
def reschedule(
    id: str,
    run_at: Annotated[
        datetime,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z"],
            help="For example 2026-12-24T18:00:00+0200.",
        ),
    ],
    options: ChangeOptions,
) -> None:
    """Give a waiting task another time; a past time means now.

    Example: fairlead tasks reschedule 01938d2c-... --run-at 2026-12-24T18:00:00+0200
    """

    def change(management: Management, task: TaskRecord) -> None:
        management.reschedule(task.id, run_at, version=options.version_of(task))

    _change("rescheduled", change, TaskSelection(ids=[id]), Filters(), options)


class NewValues(CommandOptions, frozen=True, kw_only=True):
    """New values of `tasks change`."""

    to_priority: Annotated[
        int | None, typer.Option(min=0, max=9, help="The new priority, 0 (first) to 9 (last).")
    ] = None
    to_fairness_key: Annotated[str | None, typer.Option(help="The new fairness key.")] = None


@tasks.command("change")
@with_options
def change(
    selection: TaskSelection, filters: BulkFilters, values: NewValues, options: ChangeOptions
) -> None:
    """Give tasks that have not started another priority or fairness key.

    A task that may run now then comes after all others of that priority and key.

    Example: fairlead tasks change 01938d2c-... --to-priority 0

    Example: fairlead tasks change --all --fairness-key acme --to-fairness-key acme-bulk
    """
    with one_line_errors():
        if values.to_priority is None and values.to_fairness_key is None:
            raise InvalidTask("give --to-priority, --to-fairness-key, or both")

    def change(management: Management, task: TaskRecord) -> None:
        management.change(
            task.id,
            priority=values.to_priority,
            fairness_key=values.to_fairness_key,
            version=options.version_of(task),
        )

    _change("changed", change, selection, filters, options)


@tasks.command("cancel")
@with_options
def cancel(selection: TaskSelection, filters: BulkFilters, options: ChangeOptions) -> None:
    """End tasks as CANCELLED, and stop the running ones.

    Example: fairlead tasks cancel --all --queue mail --fairness-key acme
    """

    def change(management: Management, task: TaskRecord) -> None:
        management.cancel(task.id, version=options.version_of(task))

    _change("cancelled", change, selection, filters, options)


@tasks.command("fail")
@with_options
def fail(selection: TaskSelection, filters: ErrorFilters, options: ChangeOptions) -> None:
    """End tasks in ERROR as FAILED, which ends their incidents.

    Example: fairlead tasks fail 01938d2c-...
    """

    def change(management: Management, task: TaskRecord) -> None:
        management.fail(task.id, version=options.version_of(task))

    _change("failed", change, selection, filters, options)


class SubmitTaskOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `submit`."""

    fairness_key: str = ""
    weight: float = 1.0
    priority: int = 5
    ordering_key: str | None = None
    unique_key: str | None = None
    run_at: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z"])] = None
    json: Json = False

    def of_task(self) -> TaskOptions:
        """Return the options of the task. Raise InvalidTask."""
        given = msgspec.structs.asdict(self)
        del given["json"]
        return TaskOptions().changed(given)


@with_options
def submit(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP")],
    task: Annotated[str, typer.Argument(help="The task's name.")],
    arguments: Annotated[
        str, typer.Argument(help="A JSON object of arguments; - reads it from standard input.")
    ] = "{}",
    *,
    options: SubmitTaskOptions,
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
        handle = app.submit_many([Draft(app.handlers[task], (), kwargs, options.of_task())])[0]
        if options.json:
            as_json({"id": handle.id, "is_new": handle.is_new})
        else:
            say(handle.id)
        app.close()
