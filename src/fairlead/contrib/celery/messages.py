"""Arguments and results as JSON, by the rules of Celery's JSON serializer."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from fairlead.core import values
from fairlead.errors import InvalidTask

_TYPE, _VALUE = "__type__", "__value__"

_WRITERS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", datetime.isoformat),  # before date, of which it is a subclass
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (Decimal, "decimal", str),
    (uuid.UUID, "uuid", lambda value: {"hex": value.hex}),
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: uuid.UUID(**value),
    "bytes": lambda text: text.encode(),
    "base64": base64.b64decode,
    "ignored": lambda found: from_json(found["meta"]),
}

Ids = str | list["Ids"]
"""Ids of tasks whose results another task gets: one id, or a list as deep as its groups."""


class Failed(msgspec.Struct, frozen=True):
    """A task that failed, for its errbacks: its id as the caller knows it and in the store, and its
    arguments."""

    id: str
    row_id: str
    args: list[Any]
    kwargs: dict[str, Any]


class Extras(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Fields of a message besides the arguments of the task."""

    id: str | None = None
    """Id that the caller gave, if it cannot be the id of a task row."""
    after: Any = None
    """Ids of the tasks before this one, as `Ids`; None for a task that waits for none."""
    passes: bool = False
    """Whether the results of the tasks before come first in the arguments."""
    wakes: list[str] = []
    """Ids of the tasks that wait for this one."""
    is_partial: bool = False
    """Whether many tasks wake one: each such wake then waits a second, so that one serves many."""
    link_error: list[dict[str, Any]] = []
    errback_of: Failed | str | None = None
    """The failed task for which this one runs; its id alone if an earlier development version
    stored this message."""
    ignore_result: bool | None = None
    """Whether the result is dropped; None if its task says so."""
    expires: datetime | None = None
    eta: datetime | None = None
    headers: dict[str, Any] = {}
    retries: int = 0
    """Retries of the tasks before this one of which it is a retry with other arguments."""
    root: str | None = None
    parent: str | None = None
    group: str | None = None


class Ignored(NamedTuple):
    """The end of a run that raised Ignore, with the last state that it reported."""

    state: str | None
    meta: Any


def ignored_result(found: Ignored) -> Any:
    """Return what the store keeps as the result of such a run, as plain data."""
    return {_TYPE: "ignored", _VALUE: found._asdict()}


def ignored(result: Any) -> Ignored | None:
    """Return the end of a run that raised Ignore by its kept result; None for another run."""
    if not isinstance(result, dict) or result.get(_TYPE) != "ignored":
        return None
    return Ignored(result[_VALUE]["state"], from_json(result[_VALUE]["meta"]))


class _Encoder(json.JSONEncoder):
    def default(self, o: Any) -> Any:
        reduce = getattr(o, "__json__", None)
        if reduce is not None:
            return reduce()
        if type(o).__module__ == "django.utils.functional" and hasattr(o, "_delegate_text"):
            return str(o)  # a lazy translation
        for kind, name, write in _WRITERS:
            if isinstance(o, kind):
                return {_TYPE: name, _VALUE: write(o)}
        if isinstance(o, bytes):
            try:
                return {_TYPE: "bytes", _VALUE: o.decode()}
            except UnicodeDecodeError:
                return {_TYPE: "base64", _VALUE: base64.b64encode(o).decode()}
        raise TypeError(f"{values.brief(o)} of type {type(o).__module__}.{type(o).__qualname__}")


def to_json(what: str, value: Any) -> Any:
    """Return the value as plain data of JSON. Raise InvalidTask for a value that is not JSON."""
    try:
        return json.loads(json.dumps(value, cls=_Encoder, allow_nan=False))
    except (TypeError, ValueError, RecursionError, UnicodeError) as error:
        raise InvalidTask(
            f"{what}: {error} is not JSON; Fairlead never pickles: pass an id and load the object"
            " in the task, or pass text, numbers, lists, maps, bytes, dates, Decimal or UUID"
        ) from error


def from_json(value: Any) -> Any:
    """Return the value that `to_json` made plain. Raise InvalidTask for a type that is unknown."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TYPE, _VALUE}:
        read = _READERS.get(value[_TYPE])
        if read is None:
            raise InvalidTask(f"a value has the unknown type {values.brief(value[_TYPE])}")
        return read(value[_VALUE])
    return {name: from_json(each) for name, each in value.items()}
