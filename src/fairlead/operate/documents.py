"""Documents of the JSON API, made of what the operators' functions return.

A document has the fields of its source. Ids and 64-bit numbers become texts, instants ISO 8601 in
UTC, and durations seconds; the name of a whole number says which of these it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from fairlead.clock import MICROS, to_datetime
from fairlead.model import (
    AttemptRecord,
    Incident,
    NewTask,
    RunNotes,
    ScheduledTask,
    TaskRecord,
    lake_history,
)
from fairlead.operate.store.actions import BulkAction
from fairlead.ports.task_records import TaskFilter

T = TypeVar("T", bound=msgspec.Struct)
Maker = Callable[[Any], Any]

Int64 = Annotated[str, Meta(pattern="^-?[0-9]{1,19}$", description="A 64-bit number.")]
Instant = Annotated[datetime, Meta(tz=True, description="An instant in UTC.")]
Seconds = Annotated[float, Meta(description="Seconds.")]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]

_NAMES: dict[type, str] = {
    lake_history.Waits: "WaitsRow",
    lake_history.Tenant: "TenantRow",
}
"""Names of documents whose source has the name of another one."""

_SHOWN: dict[type, str] = {
    TaskRecord: "id queue partition name state version attempt tries priority fairness_key weight"
    " ordering_key unique_key submitted_at run_at ready_at claimed_at node error_type error_text"
    " payload_bytes tags",
    AttemptRecord: "seq attempt tries queue partition priority fairness_key version run_at ready_at"
    " triggered_at claimed_at started_at finished_at outcome next_state error_type error_text node"
    " trigger_path tags",
    Incident: "id kind subject details since queue name version deliveries delivered_at",
    RunNotes: "attempt lines dropped",
    ScheduledTask: "key task attempt tries retry_at unreadable",
    NewTask: "id name fairness_key",
    BulkAction: "id verb change where tenants most actor asked_at state is_stopping performer"
    " looked changed refused error ended_at",
    TaskFilter: "state queue name fairness_key ordering_key unique_key tags id_prefix argument"
    " error submitted_from older_than",
}
"""Fields of sources that also have others, which the API does not show."""

_IDS = frozenset(
    {"id", "seq", "pass_", "range_id", "action", "supersedes", "Policy.version"}
    | {"PolicyEntry.version", "PublishedPolicy.version"}
)
"""Whole numbers that may be greater than a number of JSON."""
_INSTANTS = frozenset(
    {"at", "since", "until", "history_until", "submitted_from", "TaskFilter.older_than"}
    | {"input_from", "input_to"}
)
"""Instants in microseconds since the epoch, beside those whose names end with `_at`."""
_TIMES = frozenset({"last_read", "oldest"})
"""Instants in seconds since the epoch."""
_DURATIONS = frozenset({"p50", "p99", "run_time", "longest_wait"})
"""Durations in microseconds, beside those whose names end with `_us`, which documents drop."""

_FIRST, _LAST = (each.replace(tzinfo=UTC) for each in (datetime.min, datetime.max))


class _Shape(NamedTuple):
    """A kind of document, and how its fields are made: name, attribute of the source, function."""

    kind: type[msgspec.Struct]
    fields: list[tuple[str, str, Maker | None]]


def document(result: Any, kind: Any) -> Any:
    """Return the document of a value of this type: a struct, or a list of structs."""
    make = _translated(kind, "", "")[1]
    return result if make is None else make(result)


def document_kind(kind: Any) -> Any:
    """Return the type of the documents that are made of values of a type."""
    return _translated(kind, "", "")[0]


def taken(kind: type[T], source: object, /, **given: Any) -> T:
    """Return a value whose fields, other than those given, are the attributes of the same name."""
    names = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**given, **{name: getattr(source, name) for name in names})


def instant_of(micros: int) -> datetime:
    """Return the instant; the first or last one that a document can hold for others."""
    try:
        return to_datetime(micros)
    except OverflowError:
        return _LAST if micros > 0 else _FIRST


def _shape_of(kind: Any) -> _Shape:
    """Return what documents of this type of values are, and how they are made."""
    source, of = get_origin(kind) or kind, get_args(kind)
    hints = get_type_hints(source, include_extras=True)
    names = _SHOWN[source].split() if source in _SHOWN else _fields(source)
    fields, types = [], []
    for attribute in names:
        hint = hints[attribute]
        hint = hint[of] if of and getattr(hint, "__parameters__", ()) else hint
        hint, make = _translated(hint, source.__name__, attribute)
        name = attribute.removesuffix("_us")
        fields.append((name, attribute, make))
        types.append((name, hint))
    name = _NAMES.get(source, source.__name__)
    made = msgspec.defstruct(
        name + "".join(f"Of{each.__name__}" for each in of),
        types,
        frozen=True,
        kw_only=True,
        rename={"pass_": "pass"},
        module=__name__,
    )
    made.__doc__ = source.__doc__
    return _Shape(made, fields)


_shape: Callable[[Any], _Shape] = cache(_shape_of)


def _fields(source: Any) -> Sequence[str]:
    """Return the names of the fields of a Struct or a named tuple."""
    names: Sequence[str] = getattr(source, "__struct_fields__", ()) or source._fields
    return names


def _made(shape: _Shape, source: object) -> msgspec.Struct:
    given = {}
    for name, attribute, make in shape.fields:
        value = getattr(source, attribute)
        given[name] = value if make is None or value is None else make(value)
    return shape.kind(**given)


def _translated(hint: Any, owner: str, name: str) -> tuple[Any, Maker | None]:
    """Return the type of a field in a document, and what makes its value; None if it stays."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated and arguments[0] in (int, float):
        hint = arguments[0]
    if hint in (int, float):
        return _number(hint, owner, name)
    source = origin or hint
    if isinstance(source, type) and (
        issubclass(source, msgspec.Struct) or hasattr(source, "_fields")
    ):
        shape = _shape(hint)
        return shape.kind, lambda value: _made(shape, value)
    if origin in (Union, UnionType):
        found = [_translated(each, owner, name) for each in arguments]
        union = reduce(or_, (each for each, _ in found))
        return union, next((make for _, make in found if make), None)
    if origin in (list, tuple):
        item, make = _translated(arguments[0], owner, name)
        return list[item], _each(make)  # type: ignore[valid-type]
    return hint, None


def _number(hint: type, owner: str, name: str) -> tuple[Any, Maker | None]:
    if name in _IDS or f"{owner}.{name}" in _IDS:
        return Int64, str
    if name in _INSTANTS or f"{owner}.{name}" in _INSTANTS or name.endswith("_at"):
        return Instant, instant_of
    if name in _DURATIONS or name.endswith("_us"):
        return Seconds, _seconds
    if hint is float:
        return (Instant, _instant_of_seconds) if name in _TIMES else (float, None)
    return Count, None


def _each(make: Maker | None) -> Maker | None:
    return None if make is None else lambda values: [make(value) for value in values]


def _instant_of_seconds(seconds: float) -> datetime:
    return instant_of(round(seconds * MICROS))


def _seconds(micros: float) -> float:
    return micros / MICROS
