"""`fairlead actions` and `fairlead audit`: show bulk actions, interrupt and resume them; show what
people did."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from fairlead.app import App
from fairlead.cli.options import OutputOptions, PersonOptions, actor_of
from fairlead.cli.output import (
    INTERRUPTED,
    WORK_FAILED,
    as_json,
    as_json_line,
    as_list,
    as_table,
    print_result,
    readable,
    say_error,
    time_of,
)
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import app_on
from fairlead.errors import InvalidTask
from fairlead.operate.changes import SetLimits, SetWeights, shown_text
from fairlead.operate.store.actions import ActionState, BulkAction
from fairlead.operate.tasks import Management
from fairlead.operate.tenants import matching_tenants

actions = typer.Typer(
    no_args_is_help=True,
    help=(
        "Show bulk actions, such as those of `tasks retry --all`; interrupt and resume them.\n\n"
        "Example: fairlead actions list"
    ),
)

Id = Annotated[int, typer.Argument(min=1, help="Id of the bulk action, as `list` shows it.")]
Queue = Annotated[str, typer.Argument(help="Name of the queue.")]
Before = Annotated[int | None, typer.Option(min=1, help="Only ids below this one.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of rows.")]


class ListOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of a list by cursor."""

    before: Before = None
    limit: Limit = 50


class ResumeOptions(PersonOptions, frozen=True, kw_only=True):
    """Options of `actions resume`."""

    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Also if a process performs it; that process then stops."),
    ] = False


class TenantOptions(PersonOptions, frozen=True, kw_only=True):
    """Options of changes of tenants."""

    tenant: Annotated[
        list[str] | None, typer.Option(help="This tenant; repeat the option for more.")
    ] = None
    matching: Annotated[
        str | None,
        typer.Option(help='All tenants with this text in their names; "" for every tenant.'),
    ] = None
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is set.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how many tenants, and the first five.")
    ] = False


class AuditFilters(CommandOptions, frozen=True, kw_only=True):
    """Filters of `audit`."""

    actor: Annotated[str | None, typer.Option(help="Only actions of this person.")] = None
    verb: Annotated[str | None, typer.Option(help="Only actions of this kind, as `retry`.")] = None
    task_id: Annotated[str | None, typer.Option("--task", help="Only on this task.")] = None
    queue: Annotated[str | None, typer.Option(help="Only on this queue.")] = None
    fairness_key: Annotated[str | None, typer.Option(help="Only on this fairness key.")] = None
    action: Annotated[int | None, typer.Option(help="Only of this bulk action.")] = None
    before: Before = None
    limit: Limit = 50


@actions.command("list")
@with_options
def list_actions(options: ListOptions) -> None:
    """List bulk actions, newest first.

    Example: fairlead actions list --limit 10 --json
    """
    found = app_on(options.url).management.actions.list(before=options.before, limit=options.limit)
    as_list(
        found,
        options.json,
        {
            "id": "id",
            "action": "verb",
            "by": "actor",
            "asked": lambda action: time_of(action.asked_at)[:19],
            "state": _state,
            "looked at": lambda action: f"{action.looked:,}",
            "changed": lambda action: f"{action.changed:,}",
            "refused": lambda action: f"{action.refused:,}",
            "filter": _filter,
        },
        document,
    )


@actions.command("show")
@with_options
def show(id: Id, options: OutputOptions) -> None:
    """Show one bulk action with its filter, counts and performer.

    Example: fairlead actions show 12
    """
    action = app_on(options.url).management.actions.show(id)
    if options.json:
        as_json(document(action))
        return
    shown: dict[str, Any] = {
        **readable(action),
        "change": shown_text(action.change),
        "where": _filter(action),
    }
    as_table(("", ""), [(name, value) for name, value in shown.items() if value not in (None, "")])


@actions.command("weight")
@with_options
def weight(
    queue: Queue,
    value: Annotated[
        float | None,
        typer.Argument(metavar="[WEIGHT]", help="Weight of each tenant: 0.001 to 1000."),
    ] = None,
    *,
    options: TenantOptions,
) -> None:
    """Set the weight of several tenants in a queue, in batches, or clear it.

    Example: fairlead actions weight payouts 2.5 --tenant acme --tenant globex
    """
    _set(SetWeights, queue, options, weight=value)


@actions.command("limit")
@with_options
def limit(
    queue: Queue,
    value: Annotated[
        int | None,
        typer.Argument(metavar="[SLOTS]", help="Tasks of each tenant at once on each node."),
    ] = None,
    *,
    options: TenantOptions,
) -> None:
    """Limit how many tasks with exactly the key of a tenant run at once, for several tenants.

    Example: fairlead actions limit payouts 5 --matching corp- --dry-run
    """
    _set(SetLimits, queue, options, limit=value)


@actions.command("interrupt")
@with_options
def interrupt(id: Id, options: PersonOptions) -> None:
    """Stop a bulk action after its running batch. `actions resume` goes on with it.

    Example: fairlead actions interrupt 12
    """
    management = app_on(options.url).management
    action = management.actions.interrupt(id, actor=actor_of(options.actor))
    what = "stops after its running batch" if action.is_stopping else "is interrupted"
    print_result(options.json, document(action), f"bulk action {id} {what}")


@actions.command("resume")
@with_options
def resume(id: Id, options: ResumeOptions) -> None:
    """Go on here with a bulk action that was interrupted, failed, or lost its process.

    Example: fairlead actions resume 12
    """
    management = app_on(options.url).management
    action = management.actions.resume(
        id, actor=actor_of(options.actor), take_over=options.take_over
    )
    _end(management, action, options.json)


@with_options
def audit(filters: AuditFilters, options: OutputOptions) -> None:
    """List the actions of people, newest first: who, when, what, and on what.

    Example: fairlead audit --actor ada --verb cancel
    """
    found = app_on(options.url).management.audit.list(**msgspec.structs.asdict(filters))
    as_list(
        found,
        options.json,
        {
            "id": "id",
            "at": lambda entry: time_of(entry.at)[:19],
            "by": "actor",
            "action": "verb",
            "outcome": "outcome",
            "on": lambda entry: (
                entry.task_id or entry.subject or (entry.action and f"bulk action {entry.action}")
            ),
            "queue": "queue",
            "key": "fairness_key",
            "details": "details",
        },
        lambda entry: readable(entry) | {"at": time_of(entry.at)},
    )


def perform(management: Management, action: BulkAction, json: bool) -> BulkAction:
    """Perform an action that this process has claimed, with its progress on stderr; return the
    action as it was left, INTERRUPTED after Ctrl-C. With `json`, each batch that others follow is a
    line of JSON."""
    with Console(stderr=True).status("") as shown:

        def on_batch(now: BulkAction) -> None:
            if now.state != ActionState.RUNNING:
                return
            if json:
                as_json_line({"action": now.id, **sums(now)})
            else:
                shown.update(f"{now.verb}: {now.changed:,} of {now.looked:,} changed")

        try:
            return management.actions.perform(action, on_batch=on_batch)
        except KeyboardInterrupt:
            return management.actions.show(action.id)


def _set(
    kind: type[SetWeights | SetLimits], queue: str, options: TenantOptions, **given: float | None
) -> None:
    """Set the weight or the limit of the tenants that a command is about, or clear it."""
    [(what, value)] = given.items()
    if (value is None) is not options.clear:
        raise InvalidTask(f"give a {what}, or --clear")
    app = app_on(options.url)
    names = _tenants(app, options)
    if names is not None:
        given_by: Any = {"actor": actor_of(options.actor), what: value}
        change = kind(queue=queue, keys=names, **given_by)
        management = app.management
        _end(management, management.actions.ask(change, is_here=True), options.json)


def _end(management: Management, action: BulkAction, json: bool) -> None:
    """Perform an action that this process has claimed, and print its end."""
    action = perform(management, action, json)
    text = f"{action.verb}: {action.changed:,} changed, {action.refused:,} refused"
    print_result(json, document(action), text)
    if action.state == ActionState.INTERRUPTED:
        say_error(hint(action.id))
        raise typer.Exit(INTERRUPTED)
    if action.refused:
        raise typer.Exit(WORK_FAILED)


def _tenants(app: App, options: TenantOptions) -> tuple[str, ...] | None:
    """Return the tenants that a command is about; with `--dry-run`, print how many, and return
    None. Raise InvalidTask."""
    named = options.tenant or []
    if bool(named) is (options.matching is not None):
        raise InvalidTask("give --tenant, or --matching")
    names, is_sample = list(dict.fromkeys(named)), False
    if options.matching is not None:
        found = matching_tenants(app.operate_context, search=options.matching)
        names, is_sample = found.names, found.is_sample
    if is_sample:
        say_error("the table is big, so that a sample was searched: some tenants may be missing")
    if not options.dry_run:
        return tuple(names)
    text = f"{len(names):,} tenants, the first: {', '.join(names[:5])}"
    print_result(options.json, {"number": len(names), "first": names[:5]}, text)
    return None


def sums(action: BulkAction) -> dict[str, int]:
    """Return the counts of an action by name."""
    return {"looked": action.looked, "changed": action.changed, "refused": action.refused}


def hint(id: int | None) -> str:
    """Return how a person goes on with an interrupted action."""
    if id is None:
        return "stopped; the same command goes on"
    return f"stopped; `fairlead actions resume {id}` goes on"


def document(action: BulkAction) -> dict[str, Any]:
    """Return the action for JSON."""
    return {**readable(action), "change": msgspec.Raw(shown_text(action.change).encode())}


def _filter(action: BulkAction) -> str:
    given = msgspec.structs.asdict(action.where)
    del given["older_than"]
    if action.tenants is not None:
        given["tenants"] = ", ".join(action.tenants) or "none"
    return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def _state(action: BulkAction) -> str:
    return (
        "stopping" if action.is_stopping and action.state == ActionState.RUNNING else action.state
    )
