"""Conversion of what the operators' functions return into the documents of the API: each field of a
document is taken from the attribute of the same name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from fairlead.clock import MICROS, to_datetime

T = TypeVar("T", bound=msgspec.Struct)
Maker = Callable[[Any], Any]

FROM_WHOLE = {"from": "whole"}
"""Marks a text that is made of a whole number."""
FROM_MICROS = {"from": "micros"}
"""Marks an instant, or seconds, that are made of microseconds."""
FROM_US = {"from": "micros", "suffix": "_us"}
"""Marks seconds that are made of the microseconds of an attribute whose name ends with `_us`."""

_FIRST, _LAST = (each.replace(tzinfo=UTC) for each in (datetime.min, datetime.max))


def document(kind: type[T], source: object, /, **given: Any) -> T:
    """Return a document of this kind from the attributes of `source`. `given` are fields that are
    ready."""
    for name, (attribute, make) in _makers(kind).items():
        if name not in given:
            value = getattr(source, attribute)
            given[name] = value if make is None or value is None else make(value)
    return kind(**given)


def instant_of(micros: int) -> datetime:
    """Return the instant; the first or last one that a document can hold for others."""
    try:
        return to_datetime(micros)
    except OverflowError:
        return _LAST if micros > 0 else _FIRST


def optional_instant(micros: int | None) -> datetime | None:
    """Return the instant, or None without one."""
    return None if micros is None else instant_of(micros)


@cache
def _makers(kind: type[msgspec.Struct]) -> dict[str, tuple[str, Maker | None]]:
    """Return the attribute that each field is taken from, and what makes its value."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {
        field.name: (field.name + _suffix(field.type), _maker(field.type)) for field in found.fields
    }


def _suffix(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(extra={"suffix": str(suffix)}):
            return suffix
        case inspect.UnionType(types=members):
            return next((found for member in members if (found := _suffix(member))), "")
        case _:
            return ""


def _maker(kind: inspect.Type) -> Maker | None:
    """Return the function that makes a value of this type; None if it stays as it is."""
    match kind:
        case inspect.Metadata(type=inner, extra={"from": origin}):
            if origin == "whole":
                return str
            return instant_of if isinstance(inner, inspect.DateTimeType) else _seconds
        case inspect.Metadata(type=inner):
            return _maker(inner)
        case inspect.UnionType(types=members):
            makers = [_maker(member) for member in members]
            return next((make for make in makers if make is not None), None)
        case inspect.StructType(cls=cls):
            return lambda value: document(cls, value)
        case inspect.ListType(item_type=item):
            return _each(_maker(item) or _same)
        case inspect.DictType(value_type=item):
            return _each_value(_maker(item) or _same)
        case _:
            return None


def _each(make: Maker) -> Maker:
    return lambda values: [make(value) for value in values]


def _each_value(make: Maker) -> Maker:
    return lambda values: {name: make(value) for name, value in values.items()}


def _same(value: Any) -> Any:
    return value


def _seconds(micros: int) -> float:
    return micros / MICROS
