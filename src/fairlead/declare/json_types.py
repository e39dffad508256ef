"""Annotated types: those that JSON cannot carry, and the values that it would change."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from itertools import starmap
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import inspect as types

from fairlead.core import values
from fairlead.model.reading import json_reader

_LISTS = types.ListType | types.SetType | types.FrozenSetType | types.VarTupleType
_OBJECTS = types.StructType | types.DataclassType | types.NamedTupleType
_PLAIN = frozenset({str, int, float, bool, type(None), msgspec.UnsetType})
"""Types of values that JSON never changes."""
_OPEN: dict[type, types.Type] = {dict: types.type_info(dict), list: types.type_info(list)}
"""Types of a map and of a list of which nothing more is known."""


def hints(function: Callable[..., Any], *names: str) -> dict[str, Any]:
    """Return the annotations of a function under these names, its parameters or `return`, with Any
    for `object`. Raises TypeError, also for one that is not known at run time."""
    try:
        given = function.__annotations__
        asked = {name: given[name] for name in names if name in given}
        part = SimpleNamespace(__annotations__=asked, __wrapped__=function)
        found = typing.get_type_hints(part, include_extras=True)
    except NameError as error:
        raise TypeError(f"{error}; import it at run time too, not only for types") from error
    except Exception as error:  # an annotation that is a text runs as code
        raise TypeError(str(error)) from error
    return {name: Any if hint is object else hint for name, hint in found.items()}


def _is_any(info: Any) -> bool:
    """Return whether a type is Any or `object`."""
    return isinstance(info, types.AnyType) or getattr(info, "cls", None) is object


class JsonType:
    """The annotated type of a value that is sent as JSON."""

    def __init__(self, name: str, annotation: Any) -> None:
        """`name`: that of the annotation in errors; empty for none. Raises TypeError for a type
        that JSON cannot carry, also deep inside."""
        self.name = name
        self._info = types.type_info(annotation)
        parts = _parts(self._info)
        for part in parts:
            if isinstance(part, types.CustomType) and not _is_any(part):
                raise TypeError(
                    f"`{name}` is a {part.cls.__module__}.{part.cls.__qualname__}; use JSON's"
                    " types, dataclasses or Structs"
                )
        self.has_objects = any(isinstance(each, _OBJECTS | types.TypedDictType) for each in parts)
        """Whether the type is an object with fields, or has one inside."""
        self.is_open = any(map(_is_any, parts))
        """Whether the annotation leaves the type open, or that of a part: Any, nothing, or a map or
        a list of anything."""
        self.decode = json_reader(annotation)
        """Function that returns the value in JSON. Raises msgspec.DecodeError for another type."""

    def encode(self, value: Any) -> bytes:
        """Return the value as JSON. Raises TypeError as `check` does, ValueError for NaN, and the
        errors of msgspec for a value of another type or without JSON."""
        if type(value) is msgspec.Raw:  # JSON already: encoded by a child process
            return bytes(value)
        self.check(value)
        encoded = values.to_json(value)
        if not _is_any(self._info):
            self.decode(encoded)
        return encoded

    def check(self, value: Any) -> None:
        """Raise TypeError for a value that would come back from JSON as another one, because its
        annotation leaves open what it is."""
        if self.is_open and (change := _change(self._info, value)):
            place = f" in `{self.name}`: annotate `{self.name}` with its whole type, or"
            raise TypeError(
                f"JSON would change {change}{place if self.name else ':'} use None, booleans,"
                " numbers, texts, and lists and dicts of these"
            )


def _parts(info: Any) -> list[Any]:
    """Return a type and all types inside it, each once."""
    found: dict[int, Any] = {}
    left = [info]
    while left:
        part = left.pop()
        if id(part) not in found:
            found[id(part)] = part
            names = ("item_type", "key_type", "value_type")
            left += [getattr(part, name) for name in names if hasattr(part, name)]
            left += getattr(part, "types", getattr(part, "item_types", ()))
            left += [field.type for field in getattr(part, "fields", ())]
    return list(found.values())


def _is_plain(value: Any) -> bool:
    """Return whether JSON leaves a value as it is, whatever its annotation."""
    if type(value) is dict:
        if not {str}.issuperset(map(type, value)):
            return False
        value = value.values()
    elif type(value) is not list:
        return type(value) in _PLAIN
    return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))


def _change(info: Any, value: Any) -> str | None:
    """Return what JSON would change in a value, with its type; None if it changes nothing."""
    if _is_plain(value):
        return None
    if _is_any(info):
        if type(value) not in _OPEN:
            return f"a value of type {type(value).__qualname__}"
        info = _OPEN[type(value)]
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(info, types.UnionType):
        inside = ((each, value) for each in info.types)
    elif isinstance(info, types.DictType) and isinstance(value, dict):
        if _is_any(info.key_type) and (kinds := {*map(type, value)} - {str}):
            return f"a key of type {kinds.pop().__qualname__}"
        inside = ((info.value_type, each) for each in value.values())
    elif isinstance(info, types.TypedDictType) and isinstance(value, dict):
        inside = ((field.type, value.get(field.name)) for field in info.fields)
    elif isinstance(info, types.TupleType) and isinstance(value, tuple):
        inside = zip(info.item_types, value, strict=False)
    elif isinstance(info, _LISTS) and isinstance(value, list | tuple | set | frozenset):
        inside = ((info.item_type, each) for each in value)
    elif isinstance(info, _OBJECTS) and isinstance(value, info.cls):
        inside = ((field.type, getattr(value, field.name)) for field in info.fields)
    return next(filter(None, starmap(_change, inside)), None)
