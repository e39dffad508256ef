"""Messages of tasks: arguments and results as JSON by the rules of Celery, and the request."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from fairlead.contrib.celery import missing
from fairlead.core import values
from fairlead.declare.task import new_ids
from fairlead.errors import InvalidTask

if TYPE_CHECKING:
    from fairlead.contrib.celery.task import Task

_TYPE, _VALUE = "__type__", "__value__"
_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # which is a date too
    "date": (date, date.isoformat, lambda text: datetime.fromisoformat(text).date()),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, lambda value: {"hex": value.hex}, lambda value: UUID(**value)),
    "base64": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}
"""Types that JSON lacks, each with a function that writes a value and one that reads it."""
Ids = str | list["Ids"]
"""Ids of tasks whose results another task gets: one id, or a list as deep as its groups."""


def uuid() -> str:
    """Return a new id for a task that is submitted at once."""
    return new_ids(1)[0]


class Extras(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Fields of a message besides the arguments of the task."""

    after: Any = None
    """Ids of the tasks before this one, as `Ids`; None for a task that waits for none."""
    passes: bool = False
    """Whether the results of the tasks before come first in the arguments."""
    wakes: list[str] = []
    """Ids of the tasks that wait for this one."""
    ignore_result: bool | None = None
    """Whether the result is dropped; None if its task says so."""
    eta: datetime | None = None


@dataclass(kw_only=True)
class Context(missing.Names):
    """Fields of `self.request`. Outside a run, `called_directly` is True and the id is None."""

    id: str | None = None
    task: str | None = None
    args: Any = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    retries: int = 0
    eta: datetime | None = None
    is_eager: bool = False
    called_directly: bool = True


running: ContextVar[tuple[Task, Context] | None] = ContextVar("fairlead_celery", default=None)
"""The task that runs here, and its request."""


class ExceptionInfo:
    """An exception and its traceback as text, as hooks get them."""

    def __init__(self, error: BaseException) -> None:
        self.exception = error
        self.traceback = "".join(traceback.format_exception(error))

    def __str__(self) -> str:
        return self.traceback


def _plain(value: Any) -> Any:
    """Return a value of no type of JSON as one. Raise TypeError for other values."""
    if type(value).__module__ == "django.utils.functional" and hasattr(value, "_delegate_text"):
        return str(value)  # a lazy translation
    for name, (kind, write, _) in _TYPES.items():
        if isinstance(value, kind):
            return {_TYPE: name, _VALUE: write(value)}
    raise TypeError(f"{values.brief(value)} of type {type(value).__qualname__}")


def to_json(what: str, value: Any) -> Any:
    """Return the value as plain data of JSON. Raise InvalidTask for a value that is not JSON."""
    try:
        return json.loads(json.dumps(value, default=_plain, allow_nan=False))
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
        if value[_TYPE] not in _TYPES:
            raise InvalidTask(f"a value has the unknown type {values.brief(value[_TYPE])}")
        return _TYPES[value[_TYPE]][2](value[_VALUE])
    return {name: from_json(each) for name, each in value.items()}
