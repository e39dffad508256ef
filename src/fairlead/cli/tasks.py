"""`fairlead tasks`: show tasks and change them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from fairlead.app import App
from fairlead.cli.actions import hint, perform
from fairlead.cli.options import OutputOptions, PersonOptions, actor_of
from fairlead.cli.output import (
    INTERRUPTED,
    WORK_FAILED,
    WRONG_USE,
    as_json,
    as_list,
    as_table,
    duration,
    first_line,
    readable,
    say,
    say_error,
    time_of,
)
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import app_on, wait_and_close
from fairlead.clock import to_datetime, to_micros
from fairlead.errors import FairleadError, InvalidTask, UnknownTask
from fairlead.model import RunNotes, State
from fairlead.operate.changes import (
    Cancel,
    Change,
    Fail,
    NewValues,
    Reschedule,
    Resume,
    Retry,
    check_state,
)
from fairlead.operate.store.actions import ActionState
from fairlead.operate.tasks import Management

ASKED_FROM = 100
"""Greatest number of tasks that a command changes without asking."""

tasks = typer.Typer(no_args_is_help=True, help="Show tasks and change them.")

StateFilter = Annotated[State | None, typer.Option(help="Only tasks in this state.")]
_TIME_FORMATS = ["%Y-%m-%dT%H:%M:%S%z"]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="The first so many only.")]


class _Filters(CommandOptions, frozen=True, kw_only=True):
    queue: Annotated[str | None, typer.Option(help="Only tasks of this queue.")] = None
    name: Annotated[str | None, typer.Option(help="Only tasks of this name.")] = None
    fairness_key: Annotated[str | None, typer.Option(help="Only tasks of this fairness key.")] = (
        None
    )
    tenant: Annotated[
        str | None,
        typer.Option(help="Only tasks of this tenant: of all keys whose path begins with it."),
    ] = None
    ordering_key: Annotated[str | None, typer.Option(help="Only tasks of this ordering key.")] = (
        None
    )
    unique_key: Annotated[str | None, typer.Option(help="Only the task with this unique key.")] = (
        None
    )
    tags: Annotated[str | None, typer.Option(help="Only tasks with these tags.")] = None
    id_prefix: Annotated[str | None, typer.Option("--id", help="Only ids that begin so.")] = None
    argument: Annotated[
        str | None,
        typer.Option(
            metavar="PATH=VALUE", help="Only tasks with this argument, for example customer.id=7."
        ),
    ] = None
    older_than: Annotated[
        str | None, typer.Option(help="Only tasks older than this, for example 2h.")
    ] = None
    submitted_from: Annotated[
        datetime | None,
        typer.Option(formats=_TIME_FORMATS, help="Only tasks submitted at this time or later."),
    ] = None
    submitted_before: Annotated[
        datetime | None,
        typer.Option(formats=_TIME_FORMATS, help="Only tasks submitted before this time."),
    ] = None
    error: Annotated[
        str | None,
        typer.Option("--error", help="Only tasks whose last error has this in type or text."),
    ] = None

    def query(self) -> dict[str, Any]:
        """Return the arguments of `Management.find`. Raise InvalidTask."""
        given = msgspec.structs.asdict(self) | {"older_than": duration(self.older_than)}
        return {"id" if what == "id_prefix" else what: value for what, value in given.items()}


class Filters(_Filters, frozen=True, kw_only=True):
    """Filters of the tasks that a command shows."""

    state: StateFilter = None
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of tasks.")] = 100


class BulkFilters(_Filters, frozen=True, kw_only=True):
    """Filters of the tasks that a command changes with --all."""

    state: StateFilter = None
    limit: Most = None


class RetryFilters(BulkFilters, frozen=True, kw_only=True):
    """Filters of `tasks retry --all`."""

    state: StateFilter = State.ERROR


class ResumeFilters(BulkFilters, frozen=True, kw_only=True):
    """Filters of `tasks resume --all`."""

    state: StateFilter = State.WAITING


class ErrorFilters(_Filters, frozen=True, kw_only=True):
    """Filters of the tasks in ERROR that a command changes with --all."""

    limit: Most = None

    def query(self) -> dict[str, Any]:
        """Return the arguments of `Management.find`. Raise InvalidTask."""
        return super().query() | {"state": State.ERROR}


class TaskSelection(CommandOptions, frozen=True, kw_only=True):
    """Tasks by id, or all that match the filters."""

    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None
    every: Annotated[bool, typer.Option("--all", help="All that match the filters.")] = False


class ChangeOptions(PersonOptions, frozen=True, kw_only=True):
    """The store in which a command changes tasks, and how."""

    version: Annotated[
        int | None, typer.Option(min=1, help="Only if the task is still at this version.")
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes", help=f"Do not ask before more than {ASKED_FROM} tasks.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the tasks and change nothing.")
    ] = False


@tasks.command("list")
@with_options
def list_tasks(filters: Filters, options: OutputOptions) -> None:
    """List unfinished tasks, oldest first. With --state DONE, FAILED or CANCELLED, list finished
    ones from the latest 100,000 attempts, those that ended last first.

    A search for an argument reads the payloads of all tasks that match otherwise.

    Example: fairlead tasks list --state ERROR --name payout --older-than 1h

    Example: fairlead tasks list --tenant acme --argument customer.id=7

    Example: fairlead tasks list --submitted-from 2026-12-24T18:00:00+0200 --id 0193
    """
    found = app_on(options.url).management.find(**filters.query())
    as_list(
        found,
        options.json,
        {
            "id": "id",
            "state": "state",
            "queue": "queue",
            "name": "name",
            "key": "fairness_key",
            "tries": "tries",
            "run at": "run_at",
            "error": lambda task: first_line(task.error_text),
        },
    )


class ShowTaskOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `tasks show`."""

    payload: Annotated[bool, typer.Option("--payload")] = False


@tasks.command("show")
@with_options
def show(
    id: Annotated[str, typer.Argument(help="The id of the task, or its beginning.")],
    options: ShowTaskOptions,
) -> None:
    """Show one task with its progress, attempts and kept log lines, and its arguments with
    --payload.

    Example: fairlead tasks show 01938d2c-... --json
    """
    app = app_on(options.url)
    management = app.management
    try:
        task = management.named(id)
    except UnknownTask as error:
        raise UnknownTask(f"{error}{_unread(app)}") from None
    attempts = management.attempts(task.id)
    notes = {each.attempt: each for each in management.notes(task.id)}
    arguments = management.payload(task.id) if options.payload else None
    if options.json:
        document: dict[str, Any] = {
            **readable(task),
            "progress": _progress(notes.values()),
            "attempts": [readable(each) | _log(notes.get(each.attempt)) for each in attempts],
        }
        if options.payload:
            document["payload"] = None if arguments is None else msgspec.Raw(arguments)
        as_json(document)
        return
    fields = {key: value for key, value in readable(task).items() if value is not None}
    error_text = fields.pop("error_text", None)
    as_table(("", ""), [*fields.items()])
    for each in [*notes.values()][::-1]:
        if each.progress is not None:
            progress = each.progress
            say(f"progress {progress.text} (attempt {each.attempt}, {time_of(progress.at)})")
            break
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
                first_line(a.error_text, 80),
            )
            for a in attempts
        ],
    )
    if error_text is not None:
        say(": ".join(filter(None, (task.error_type, error_text))))
    for each in notes.values():
        if each.lines:
            say(f"log of attempt {each.attempt}" + _dropped(each))
        for line in each.lines:
            say(f"{time_of(line.at)} {line.level} {line.logger}: {line.text}")


def _progress(notes: Iterable[RunNotes]) -> dict[str, Any] | None:
    """Return the latest progress for JSON."""
    found = [each.progress for each in notes if each.progress is not None]
    if not found:
        return None
    fields = msgspec.structs.asdict(found[-1])
    return fields | {"at": to_datetime(found[-1].at)}


def _log(notes: RunNotes | None) -> dict[str, Any]:
    """Return the log of an attempt for JSON; nothing without lines."""
    if notes is None or not notes.lines:
        return {}
    lines = [
        {"at": to_datetime(each.at), "level": each.level, "logger": each.logger, "text": each.text}
        for each in notes.lines
    ]
    return {"log": lines, "log_dropped": notes.dropped}


def _dropped(notes: RunNotes) -> str:
    return f", without {notes.dropped:,} earlier lines:" if notes.dropped else ":"


def _unread(app: App) -> str:
    """Return where a task may be that no table has: in the logs of ordered queues."""
    if app.connections.log is None:
        return ""
    found = wait_and_close(app, app.management.ordered.unread())
    return "".join(
        f"; {count:,} entries of the log of {queue!r} are not read yet, and the task may be one of"
        " them"
        for queue, count in found.items()
    )


def _change(
    change: Change,
    selection: TaskSelection,
    filters: _Filters,
    options: ChangeOptions,
) -> None:
    """Change the named tasks, or all that match; print how many changed, and which did not."""
    if bool(selection.ids) == selection.every:
        raise InvalidTask("give the ids of tasks, or --all with filters")
    management = app_on(options.url).management
    if selection.every:
        if options.version is not None:
            raise InvalidTask("--version is of one task: give its id")
        done = _change_all(change, management, filters.query(), options)
    else:
        done = _change_named(change, management, selection.ids or [], options)
    if options.json:
        as_json(done)
    else:
        say(f"{'would be ' if options.dry_run else ''}{change.done}: {done.changed:,}")
        for reason in done.refused:
            say_error(f"refused: {reason}")
        if done.is_interrupted:
            say_error(hint(done.action))
    if done.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if done.refused:
        raise typer.Exit(WORK_FAILED)


class _Done(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command: the number of tasks changed, and why the others were not."""

    changed: int
    refused: list[str]
    is_interrupted: bool = False
    dry_run: bool = False
    action: int | None = None
    """Id of the bulk action."""


def _change_named(
    change: Change, management: Management, ids: list[str], options: ChangeOptions
) -> _Done:
    changed, refused = 0, []
    for given in ids:
        try:
            task = management.named(given)
            if options.dry_run:
                check_state(task, change)
            else:
                management.apply(change, task.id, options.version)
            changed += 1
        except FairleadError as error:
            refused.append(str(error))
    return _Done(changed=changed, refused=refused, dry_run=options.dry_run)


def _change_all(
    change: Change, management: Management, query: dict[str, Any], options: ChangeOptions
) -> _Done:
    where = management.where(**{what: value for what, value in query.items() if what != "limit"})
    limit, actions = query["limit"], management.actions
    if options.dry_run:
        found = actions.preview(change, where, limit=limit, counted=None, first=0)
        return _Done(changed=found.changed, refused=_refused(found.refused), dry_run=True)
    if not options.yes:
        _ask(change, management, query)
    action = perform(
        management, actions.ask(change, where, limit=limit, is_here=True), options.json
    )
    return _Done(
        changed=action.changed,
        refused=_refused(action.refused),
        is_interrupted=action.state == ActionState.INTERRUPTED,
        action=action.id,
    )


def _refused(number: int) -> list[str]:
    if not number:
        return []
    return [f"{number:,} tasks: their state does not allow it, or they had changed"]


def _ask(change: Change, management: Management, query: dict[str, Any]) -> None:
    """Ask a person before many tasks are changed. Raise InvalidTask where nobody can confirm."""
    most = query["limit"]
    if most is not None and most <= ASKED_FROM:
        return
    if len(management.find(**query | {"limit": ASKED_FROM + 1})) <= ASKED_FROM:
        return
    what = f"more than {ASKED_FROM} tasks match"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidTask(f"{what}: count them with --dry-run, then add --yes")
    if not typer.confirm(f"{what}; all will be {change.done}. Go on?", err=True):
        raise typer.Exit(WRONG_USE)


@tasks.command("retry")
@with_options
def retry(selection: TaskSelection, filters: RetryFilters, options: ChangeOptions) -> None:
    """Retry now the tasks that are in ERROR or wait for a retry; count tries from zero.

    Example: fairlead tasks retry --all --name payout --limit 500
    """
    _change(Retry(actor=actor_of(options.actor)), selection, filters, options)


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
    _change(Resume(force=options.force, actor=actor_of(options.actor)), selection, filters, options)


@tasks.command("reschedule")
@with_options
def reschedule(
    id: str,
    run_at: Annotated[
        datetime,
        typer.Option(
            formats=_TIME_FORMATS,
            help="For example 2026-12-24T18:00:00+0200.",
        ),
    ],
    options: ChangeOptions,
) -> None:
    """Give a waiting task another time; a past time means now.

    Example: fairlead tasks reschedule 01938d2c-... --run-at 2026-12-24T18:00:00+0200
    """
    change = Reschedule(run_at=to_micros(run_at), actor=actor_of(options.actor))
    _change(change, TaskSelection(ids=[id]), BulkFilters(), options)


class ChangeValues(CommandOptions, frozen=True, kw_only=True):
    """New values of `tasks change`."""

    to_priority: Annotated[
        int | None, typer.Option(min=0, max=9, help="The new priority, 0 (first) to 9 (last).")
    ] = None
    to_fairness_key: Annotated[str | None, typer.Option(help="The new fairness key.")] = None


@tasks.command("change")
@with_options
def change(
    selection: TaskSelection, filters: BulkFilters, values: ChangeValues, options: ChangeOptions
) -> None:
    """Give tasks that have not started another priority or fairness key.

    A task that may run now then comes after all others of that priority and key.

    Example: fairlead tasks change 01938d2c-... --to-priority 0

    Example: fairlead tasks change --all --fairness-key acme --to-fairness-key acme-bulk
    """
    if values.to_priority is None and values.to_fairness_key is None:
        raise InvalidTask("give --to-priority, --to-fairness-key, or both")
    new = NewValues(
        priority=values.to_priority,
        fairness_key=values.to_fairness_key,
        actor=actor_of(options.actor),
    )
    _change(new, selection, filters, options)


@tasks.command("cancel")
@with_options
def cancel(selection: TaskSelection, filters: BulkFilters, options: ChangeOptions) -> None:
    """End tasks as CANCELLED, and stop the running ones.

    Example: fairlead tasks cancel --all --queue mail --fairness-key acme
    """
    _change(Cancel(actor=actor_of(options.actor)), selection, filters, options)


@tasks.command("fail")
@with_options
def fail(selection: TaskSelection, filters: ErrorFilters, options: ChangeOptions) -> None:
    """End tasks in ERROR as FAILED, which ends their incidents.

    Example: fairlead tasks fail 01938d2c-...
    """
    _change(Fail(actor=actor_of(options.actor)), selection, filters, options)
