"""Commands made from the operations of `fairlead.operate`: arguments, options, help and output."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import inspect
from rich.console import Console

from fairlead.app import App
from fairlead.cli.options import OutputOptions, PersonOptions, actor_of
from fairlead.cli.output import (
    INTERRUPTED,
    WORK_FAILED,
    as_json,
    as_json_line,
    ask,
    duration,
    print_result,
    say_error,
)
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import wait_and_close
from fairlead.cli.tables import show
from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.operate.actions import Preview
from fairlead.operate.caller import Caller
from fairlead.operate.change_operations import CHANGING
from fairlead.operate.documents import document
from fairlead.operate.operations import MOST_ROWS, Field, Operation, converted, fields_of
from fairlead.operate.read_operations import READS
from fairlead.operate.results import ChangedTasks, Done
from fairlead.operate.store.actions import ActionState, BulkAction

T = TypeVar("T")

ASKED_FROM = 100
"""Greatest number of tasks or tenants that a command changes without asking."""
_STATES = {"retry_matching": "ERROR", "fail_matching": "ERROR"}
"""State of the tasks that a command changes with --all, unless an option names another."""
_NONE = "none"

_OPERATIONS = {operation.name: operation for operation in (*READS, *CHANGING)}
_YES: Any = (
    "yes",
    Annotated[bool, typer.Option("--yes", help="Do not ask before the change.")],
    False,
)
_DRY_RUN: Any = (
    "dry_run",
    Annotated[bool, typer.Option("--dry-run", help="Count what would change, and change nothing.")],
    False,
)


# options ------------------------------------------------------------------------------------------


def _declared(field: Field, *, with_ids: bool) -> tuple[Any, ...]:
    """Return the field of CommandOptions: name, type, and default if it is not needed. What is
    needed and what may be repeated is an argument of the command, the rest are options.
    `with_ids`: any number of ids are its only arguments."""
    flag, help = f"--{field.name.replace('_', '-')}", field.help
    if isinstance(field.kind, inspect.BoolType):
        return field.name, Annotated[bool, typer.Option(flag, help=help)], False
    metavar = field.name.upper().removesuffix("S")
    match field.kind:
        case inspect.LiteralType():
            metavar = "|".join(map(str, field.kind.values))
        case inspect.EnumType():
            help = f"{help} {', '.join(field.kind.cls)}."
        case inspect.DateTimeType():
            metavar = "TIME"
        case inspect.IntType() if field.name == "older_than":
            metavar, help = "DURATION", help.replace("(seconds)", "(as in 30s, 10m, 2h, 7d)")
        case inspect.IntType() if not field.is_needed:
            metavar = "N"
    if isinstance(field.kind, inspect.ListType):
        argument = typer.Argument(metavar=metavar, help=help)
        return field.name, Annotated[list[str] | None, argument], None
    if field.is_needed:
        if field.is_nullable:
            help = f"{help} {_NONE}: remove it.".strip()
        place = typer.Option(flag, metavar=metavar, help=help)
        if not with_ids:
            place = typer.Argument(metavar=metavar, help=help)
        return field.name, Annotated[str, place]
    if field.default is not None:
        help = f"{help} Default: {field.default}.".strip()
    option = typer.Option(flag, metavar=metavar, help=help)
    return field.name, Annotated[str | None, option], None


def _value(field: Field, given: Any) -> Any:
    """Return what a person gives as the operation takes it. Raise InvalidTask."""
    if field.is_needed and field.is_nullable and given == _NONE:
        return None
    if field.name == "older_than":
        found = duration(given)
        return None if found is None else round(found.total_seconds())
    return given


def _fields_of(operation: Operation) -> Iterator[Field]:
    """Yield the arguments of an operation; those of a struct, such as a filter, one by one."""
    own = operation.arguments.__struct_fields__
    for field in fields_of(operation.arguments):
        if isinstance(field.kind, inspect.StructType):
            yield from (each for each in fields_of(field.kind.cls) if each.name not in own)
        else:
            yield field


def _arguments(operation: Operation, given: Mapping[str, Any]) -> msgspec.Struct:
    """Return the arguments of an operation; a struct is made of what belongs to it. Raise
    InvalidTask."""
    found: dict[str, Any] = {}
    for field in fields_of(operation.arguments):
        if not isinstance(field.kind, inspect.StructType):
            found |= {field.name: given[field.name]} if field.name in given else {}
            continue
        inner = {each.name for each in fields_of(field.kind.cls)}
        inner -= {*operation.arguments.__struct_fields__}
        if part := {name: value for name, value in given.items() if name in inner}:
            found[field.name] = converted(part, field.kind.cls)
    return converted(found, operation.arguments)


# commands -----------------------------------------------------------------------------------------


def command_of(operation: Operation, *, is_group: bool = False) -> Callable[..., None]:
    """Return the command of an operation for Typer. `is_group`: the command is that of a noun alone
    and does nothing before another command of the noun."""
    fields = [*_fields_of(operation)]
    if operation.named is not None:
        named = [*_fields_of(_OPERATIONS[operation.named])]
        known = {field.name for field in fields}
        fields = [each for each in named if each.name not in known] + fields
    extra = [_DRY_RUN, _YES] if operation.preview else [_YES] if operation.is_final else []
    output = OutputOptions if operation.is_read else PersonOptions
    with_ids = operation.named is not None
    declared = [
        *(_declared(each, with_ids=with_ids) for each in fields),
        *extra,
        ("output", output),
    ]
    kind = msgspec.defstruct(
        f"{operation.name}_options", declared, bases=(CommandOptions,), frozen=True, kw_only=True
    )

    def run(options: Any) -> None:
        given = {
            each.name: _value(each, value)
            for each in fields
            if (value := getattr(options, each.name)) not in (None, False)
        }
        with options.output.opened() as app:
            if operation.is_read:
                _read(operation, _caller(app, None), given, options.output.json)
            else:
                _change(operation, _caller(app, options.output.actor), given, options)

    def run_group(context: typer.Context, options: Any) -> None:
        if context.invoked_subcommand is None:
            run(options)
        elif options != kind(output=output()):
            raise InvalidTask(f"give the options after {context.invoked_subcommand}")

    made: Any = run_group if is_group else run
    made.__name__, made.__doc__ = operation.name, _help(operation)
    made.__annotations__["options"] = kind
    return with_options(made)


def _help(operation: Operation) -> str:
    example = f"fairlead {operation.command} {operation.example}".strip()
    return f"{operation.summary}\n\nExample: {example}"


def _nouns() -> SimpleNamespace:
    """Return the command of each noun: a function, or a Typer if it has other commands too."""
    of_noun: dict[str, list[Operation]] = {}
    for operation in _OPERATIONS.values():
        if operation.command is not None:
            of_noun.setdefault(operation.command.split()[0], []).append(operation)
    made: dict[str, Any] = {}
    for noun, operations in of_noun.items():
        if len(operations) == 1:
            made[noun] = command_of(operations[0])
            continue
        made[noun] = group = typer.Typer(invoke_without_command=True)
        for operation in operations:
            if operation.command == noun:
                group.callback()(command_of(operation, is_group=True))
            else:
                group.command(str(operation.command).split()[1])(command_of(operation))
    return SimpleNamespace(**made)


NOUNS = _nouns()
"""Commands of all nouns."""


# running ------------------------------------------------------------------------------------------


def _caller(app: App, actor: str | None) -> Caller:
    def wait(reading: Coroutine[Any, Any, T], /) -> T:
        return wait_and_close(app, reading)

    return Caller(context=app.operate_context, wait=wait, name=actor_of(actor), is_command=True)


def _read(operation: Operation, caller: Caller, given: dict[str, Any], json: bool) -> None:
    """Print what an operation reads, all pages of the rows that are asked for."""
    result = rows = None
    if "after" in operation.arguments.__struct_fields__ and "rows" in given:
        rows = values.whole("rows", _whole(given["rows"]), 1, values.MOST_ROWS, InvalidTask)
    while rows is None or rows > 0:
        if rows is not None:
            given = given | {"rows": str(min(rows, MOST_ROWS))}
        page = operation.call(caller, _arguments(operation, given))
        if rows is None:
            result = page
            break
        field = next(name for name in page.__struct_fields__ if name != "next")
        found = getattr(page, field)
        if result is not None:
            page = msgspec.structs.replace(page, **{field: [*getattr(result, field), *found]})
        result, rows, given = page, rows - len(found), given | {"after": str(page.next)}
        if page.next is None:
            break
    shown = document(result, operation.result)
    if json:
        as_json(shown)
        return
    show(shown)
    if (following := getattr(result, "next", None)) is not None:
        say_error(f"there are more: add --rows N, or --after {following}")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidTask("rows: use a whole number") from None


def _change(operation: Operation, caller: Caller, given: dict[str, Any], options: Any) -> None:
    """Change something, and print the result. Raise InvalidTask."""
    chosen, json = _chosen(operation, given), options.output.json
    if operation.preview is not None:
        if options.dry_run:
            _print_preview(_previewed(operation, caller, given), json)
            return
        if chosen is operation and not options.yes:
            _ask_before_many(operation, caller, given)
    elif operation.is_final and not options.yes:
        what = f"fairlead {operation.command} {' '.join(map(str, given.values()))}"
        ask(f"`{what}` cannot be undone", "add --yes")
    result = chosen.call(caller, _arguments(chosen, given))
    if chosen.is_queued:
        result = _performed(caller, result, json)
    _print_change(chosen, result, json)


def _chosen(operation: Operation, given: dict[str, Any]) -> Operation:
    """Return the operation on named tasks if some are named. Raise InvalidTask."""
    if operation.named is None:
        return operation
    if ("ids" in given) is ("all" in given):
        raise InvalidTask("give the ids of tasks, or --all with filters")
    chosen = operation if "all" in given else _OPERATIONS[operation.named]
    known = {field.name for field in _fields_of(chosen)}
    if unknown := sorted(given.keys() - known):
        what = ", ".join(f"--{name.replace('_', '-')}" for name in unknown)
        raise InvalidTask(f"{what}: is for {'named tasks' if 'all' in given else '--all'} only")
    if "all" in given and operation.name in _STATES:
        given.setdefault("state", _STATES[operation.name])
    return chosen


def _previewed(operation: Operation, caller: Caller, given: Mapping[str, Any]) -> Any:
    preview = _OPERATIONS[str(operation.preview)]
    known = {field.name for field in _fields_of(preview)}
    known -= {*operation.arguments.__struct_fields__} - {*preview.arguments.__struct_fields__}
    return preview.call(
        caller, _arguments(preview, {each: given[each] for each in given if each in known})
    )


def _ask_before_many(operation: Operation, caller: Caller, given: Mapping[str, Any]) -> None:
    """Ask a person before many tasks or tenants are changed. Raise InvalidTask where nobody can
    confirm."""
    found = _previewed(operation, replace(caller, is_command=False), given)
    if (found.changed if isinstance(found, Preview) else found.number) > ASKED_FROM:
        what = f"more than {ASKED_FROM} match: {operation.summary}"
        ask(what, "count them with --dry-run, then add --yes")


def _performed(caller: Caller, action: BulkAction, json: bool) -> BulkAction:
    """Perform an action that this process has claimed, with its progress on stderr; return the
    action as it was left, INTERRUPTED after Ctrl-C. With `json`, each batch that others follow is a
    line of JSON."""
    actions = caller.management.actions
    with Console(stderr=True).status("") as shown:

        def on_batch(now: BulkAction) -> None:
            if now.state != ActionState.RUNNING:
                return
            if json:
                counts = {"looked": now.looked, "changed": now.changed, "refused": now.refused}
                as_json_line({"action": now.id, **counts})
            else:
                shown.update(f"{now.verb}: {now.changed:,} of {now.looked:,} changed")

        try:
            return actions.perform(action, on_batch=on_batch)
        except KeyboardInterrupt:
            return actions.show(action.id)


def _print_preview(found: Any, json: bool) -> None:
    if isinstance(found, Preview):
        text = f"would be changed: {found.changed:,}"
    else:
        text = f"would be changed: {found.number:,}, the first: {', '.join(found.first) or 'none'}"
    print_result(json, document(found, type(found)), text)
    if getattr(found, "is_sample", False):
        say_error("the table is big, so that a sample was searched: some tenants may be missing")
    if getattr(found, "refused", 0):
        _refuse(found.refused, [], json)


def _print_change(operation: Operation, result: Any, json: bool) -> None:
    """Print the result of a change. Exit with 1 if some of it was refused, and with 130 if it was
    interrupted."""
    if json:
        as_json(document(result, operation.result))
    elif isinstance(result, BulkAction | ChangedTasks):
        verb = getattr(result, "verb", operation.right)
        print_result(False, None, f"{verb}: {result.changed:,} changed, {result.refused:,} refused")
    elif isinstance(result, Done):
        print_result(False, None, "done")
    else:
        show(document(result, operation.result))
    if isinstance(result, BulkAction) and result.state == ActionState.INTERRUPTED:
        if operation.is_queued:
            say_error(f"stopped; `fairlead actions resume {result.id}` goes on")
            raise typer.Exit(INTERRUPTED)
    elif isinstance(result, BulkAction | ChangedTasks) and result.refused:
        outcomes = result.outcomes if isinstance(result, ChangedTasks) else []
        _refuse(result.refused, [each.error for each in outcomes if each.error is not None], json)


def _refuse(number: int, errors: Sequence[str], json: bool) -> None:
    """Say why something was refused, unless the document has it, and exit with 1."""
    unnamed = f"{number:,}: their state does not allow it, or they had changed"
    for error in () if json else errors or [unnamed]:
        say_error(f"refused: {error}")
    raise typer.Exit(WORK_FAILED)
