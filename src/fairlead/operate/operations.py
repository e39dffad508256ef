"""Operations: each thing that people read or change, declared once. The JSON API, its OpenAPI
document, the tools of MCP, the forms of the console and the command line are made from them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from fairlead.core import values
from fairlead.errors import InvalidTask, NotAllowed
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, State
from fairlead.operate.caller import Caller, NoRight
from fairlead.operate.filters import TaskFilters
from fairlead.operate.results import Done

MOST_ID = (1 << 63) - 1
MOST_ROWS = 200
"""Greatest number of rows of one page of a list."""
DEFAULT_ROWS = 50

Text = Annotated[str, Meta(max_length=values.MOST_KEY_BYTES)]
Id = Annotated[int, Meta(ge=0, le=MOST_ID, extra_json_schema={"type": "string"})]
RowNumber = Annotated[int, Meta(ge=1, le=MOST_ROWS, description="Rows of a page.")]
Cursor = Annotated[
    Text, Meta(description="`next` of the page before, for the same other parameters.")
]
Instant = Annotated[datetime, Meta(tz=True, description="An instant with its offset (ISO 8601).")]
Age = Annotated[int, Meta(ge=0, le=10 * 365 * 86_400, description="Seconds.")]
Version = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]
Why = Annotated[str, Meta(min_length=1, max_length=500, description="Reason, which is kept.")]
Weight = Annotated[float, Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT, description="0.001 to 1000.")]
Slots = Annotated[int, Meta(ge=1, le=values.MOST_COUNT, description="Tasks at once on each node.")]

_WHOLE = re.compile(r"-?[0-9]{1,20}")
_OF_ANOTHER_TYPE = re.compile(r"Expected `(?P<types>[^`]+)`, got `[^`]*` - at `\$\.(?P<name>\w+)`")
_SAID = {"float": "a number", "int": "a whole number", "bool": "true or false", "null": "none"}
"""Words for the types of parameters."""
Function = TypeVar("Function", bound=Callable[..., Any])


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the arguments of operations, by name. Another name is refused."""


class Filter(Arguments, frozen=True, kw_only=True):
    """Conditions on tasks; all must hold. One that is absent selects any task."""

    state: Annotated[State, Meta(description="Only tasks in this state.")] | None = None
    queue: Annotated[Text, Meta(description="Only tasks of this queue.")] | None = None
    name: Annotated[Text, Meta(description="Only tasks of this name.")] | None = None
    fairness_key: Annotated[Text, Meta(description="Only tasks of this fairness key.")] | None = (
        None
    )
    tenant: Annotated[Text, Meta(description="Only tasks of keys whose path begins so.")] | None = (
        None
    )
    ordering_key: Annotated[Text, Meta(description="Only tasks of this ordering key.")] | None = (
        None
    )
    unique_key: Annotated[Text, Meta(description="Only the task with this unique key.")] | None = (
        None
    )
    tags: Annotated[Text, Meta(description="Only tasks with these tags.")] | None = None
    id: Annotated[Text, Meta(description="Only ids that begin so.")] | None = None
    argument: (
        Annotated[Text, Meta(description="Only with this argument, as customer.id=7.")] | None
    ) = None
    error: (
        Annotated[Text, Meta(description="Only tasks whose last error has this text.")] | None
    ) = None
    older_than: Annotated[Age, Meta(description="Only tasks older than this (seconds).")] | None = (
        None
    )
    submitted_from: (
        Annotated[Instant, Meta(description="Only tasks submitted at this time or later.")] | None
    ) = None
    submitted_before: (
        Annotated[Instant, Meta(description="Only tasks submitted before this time.")] | None
    ) = None


def filters_of(given: msgspec.Struct) -> TaskFilters:
    """Return the filter that arguments with the fields of Filter have."""
    found: dict[str, Any] = {
        name: value
        for name in Filter.__struct_fields__
        if (value := getattr(given, name)) is not None
    }
    if "older_than" in found:
        found["older_than"] = timedelta(seconds=found["older_than"])
    filters: TaskFilters = found  # type: ignore[assignment]
    return filters


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that a person reads or changes."""

    name: str
    """Name in the OpenAPI document and of the tool."""
    summary: str
    function: Callable[..., Any]
    """Function of a Caller and the arguments by name, which returns the result."""
    arguments: type[msgspec.Struct]
    result: Any
    path: str | None
    """Path in the JSON API, below its prefix; None if the API does not have the operation. What
    has braces in it is an argument."""
    command: str | None = None
    """Words of its command after `fairlead`; None without a command."""
    example: str = ""
    """Arguments of an example of the command, as a person writes them."""
    is_tool: bool = False
    """Whether MCP has it as a tool."""
    right: str | frozenset[str] | None = None
    """Right that a caller needs, or several of which any one will do; None for a read."""
    scoped: bool = False
    """Whether it keeps to the tenants of the caller; others refuse a caller who is limited to
    tenants."""
    has_filter: bool = False
    """Whether the function gets a filter of tasks too; `arguments` then has its fields."""
    is_shared: bool = True
    """Whether callers of a read share its result for a second."""
    is_queued: bool = False
    """Whether it asks for a bulk action, which a worker performs next, or a command itself."""
    named: str | None = None
    """Operation that makes the same change to named tasks; this one is of all that match."""
    preview: str | None = None
    """Operation that counts what this one would change."""
    is_final: bool = False
    """Whether nothing undoes it, so that a person is asked before."""
    is_idempotent: bool = True
    """Whether a second call, as after a lost response, changes nothing more."""
    needs_page: bool = False
    """Whether the function gets the request of a console in place of a Caller."""

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing and needs no right."""
        return self.right is None

    @property
    def in_path(self) -> tuple[str, ...]:
        """Return the names of the arguments in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path or ""))

    @property
    def not_in_path(self) -> tuple[str, ...]:
        """Return the names of the other arguments."""
        names = self.arguments.__struct_fields__
        return tuple(each for each in names if each not in self.in_path)

    def call(self, caller: Any, given: msgspec.Struct) -> Any:
        """Return what the function returns. Raise what it raises, NoRight without the right,
        NotAllowed for a caller who is limited to tenants where others would show."""
        if isinstance(caller, Caller):
            self._check(caller)
        own = {
            name: getattr(given, name)
            for name in self.arguments.__struct_fields__
            if not (self.has_filter and name in Filter.__struct_fields__)
        }
        if self.has_filter:
            own["filters"] = caller.searchable(filters_of(given))
        found = self.function(caller, **own)
        return Done() if found is None else found

    def _check(self, caller: Caller) -> None:
        rights = {self.right} if isinstance(self.right, str) else self.right
        if rights is not None and not any(map(caller.may, rights)):
            needed = " or ".join(sorted(rights))
            raise NoRight(f"your access does not include the action {needed}")
        if caller.tenants is not None and not self.scoped:
            raise NotAllowed(
                f"{self.name} is about all tenants, and this access is limited to some"
            )


def declare(
    operations: list[Operation],
    path: str | None,
    *,
    name: str | None = None,
    base: type[Arguments] = Arguments,
    **given: Any,
) -> Callable[[Function], Function]:
    """Declare a function as an operation, and add it to `operations`; `given` has other fields of
    Operation.

    The first line of its docstring is its summary, what it returns its result, and its parameters
    by keyword are its arguments, with the fields of `base`. For the base Filter, the function gets
    the filter of tasks as `filters`.
    """

    def add(function: Function) -> Function:
        found = name or function.__name__
        result = get_type_hints(function, include_extras=True)["return"]
        operations.append(
            Operation(
                name=found,
                path=path,
                summary=(inspect.getdoc(function) or "").split("\n")[0],
                function=function,
                arguments=_arguments_of(function, found, base),
                has_filter=base is Filter,
                result=Done if result is type(None) else result,
                **given,
            )
        )
        return function

    return add


class Field(NamedTuple):
    """One argument of an operation, for what asks a person for it."""

    name: str
    kind: msgspec.inspect.Type
    help: str
    is_needed: bool
    is_nullable: bool
    default: Any


@cache
def fields_of(arguments: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the arguments of an operation, or the fields of a struct in them."""
    described = msgspec.inspect.type_info(arguments)
    assert isinstance(described, msgspec.inspect.StructType)
    return tuple(map(_field_of, described.fields))


def _field_of(field: msgspec.inspect.Field) -> Field:
    kind, help, is_nullable = field.type, "", False
    while isinstance(kind, msgspec.inspect.Metadata | msgspec.inspect.UnionType):
        if isinstance(kind, msgspec.inspect.Metadata):
            help = (kind.extra_json_schema or {}).get("description", help)
            kind = kind.type
        else:
            is_nullable = True
            kind = next(
                each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)
            )
    default = None if field.default is msgspec.NODEFAULT else field.default
    return Field(field.name, kind, help, field.required, is_nullable, default)


def converted(given: Any, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return arguments of this kind, some of which are texts. Raise InvalidTask."""
    if isinstance(given, dict):
        texts = {
            field.name: _value(field, text)
            for field in fields_of(kind)
            if isinstance(text := given.get(field.name), str)
        }
        given = given | texts
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        found = _OF_ANOTHER_TYPE.fullmatch(str(error))
        if found is None:
            raise InvalidTask(f"these parameters cannot be used: {error}") from None
        types = [_SAID.get(each, each) for each in found["types"].split(" | ")]
        raise InvalidTask(f"{found['name']}: use {' or '.join(types)}") from None


def _value(field: Field, text: str) -> Any:
    """Return what a person wrote as an argument takes it. Raise InvalidTask."""
    match field.kind:
        case msgspec.inspect.DateTimeType():
            return values.instant(field.name, text, InvalidTask)
        case msgspec.inspect.EnumType():
            return values.one_of(field.name, text, *field.kind.cls, error=InvalidTask)
        case msgspec.inspect.LiteralType():
            return values.one_of(field.name, text, *map(str, field.kind.values), error=InvalidTask)
        # The library also takes 1e3 as a whole number, and null for none, by which a wrong value
        # would select everything.
        case msgspec.inspect.IntType() if not _WHOLE.fullmatch(text):
            raise InvalidTask(f"{field.name}: use a whole number")
        case msgspec.inspect.FloatType() if text.lower() == "null":
            raise InvalidTask(f"{field.name}: use a number")
        case _:
            return text


@cache
def part_of(arguments: type[msgspec.Struct], names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return a struct of some of the arguments."""
    fields = msgspec.structs.fields(arguments)
    kept = [
        (each.name, each.type, *([] if each.required else [each.default]))
        for each in fields
        if each.name in names
    ]
    if len(kept) == len(fields):
        return arguments
    return arguments_of(arguments.__name__, kept, doc=arguments.__doc__)


def arguments_of(
    name: str, fields: list[Any], base: type[msgspec.Struct] = Arguments, doc: str | None = None
) -> type[msgspec.Struct]:
    """Return a struct of arguments: (name, type), with a default if there is one."""
    made = msgspec.defstruct(
        name, fields, bases=(base,), frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    made.__doc__ = doc
    return made


def _arguments_of(
    function: Callable[..., Any], name: str, base: type[msgspec.Struct]
) -> type[msgspec.Struct]:
    """Return a struct of the parameters by keyword, with the fields of `base`."""
    hints = get_type_hints(function, include_extras=True)
    fields = [
        (each.name, hints[each.name], *([] if each.default is each.empty else [each.default]))
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name != "filters"
    ]
    return arguments_of(f"{name}_arguments", fields, base)
