"""Options of a submit, checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from fairlead.clock import to_micros
from fairlead.errors import InvalidTask
from fairlead.model import DEFAULT_PRIORITY, DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT, PRIORITIES

MOST_KEY_BYTES = 1024
"""Maximum number of UTF-8 bytes of a fairness, ordering or unique key; keys are index entries."""


class Options(msgspec.Struct, frozen=True):
    """Options of one submit. Instants are aware datetimes; `connection` joins the caller's
    transaction."""

    fairness_key: str = ""
    weight: float = DEFAULT_WEIGHT
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    context: Mapping[str, str] | None = None
    connection: Any = None

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Return a checked copy with some options replaced. Raises InvalidTask naming the option,
        its value and the allowed values."""
        try:
            options = msgspec.structs.replace(self, **changes)
        except TypeError as error:
            raise InvalidTask(
                f"unknown option: {error}; known: {', '.join(self.__struct_fields__)}"
            ) from error
        options.check()
        return options

    def check(self) -> None:
        """Raise InvalidTask unless every option is within its bounds."""
        if type(self.priority) is not int or self.priority not in PRIORITIES:
            raise InvalidTask(
                f"priority {self.priority!r}: use a whole number from 0 (first) to 9 (last)"
            )
        if (
            not isinstance(self.weight, int | float)
            or isinstance(self.weight, bool)
            or math.isnan(self.weight)
        ):
            raise InvalidTask(
                f"weight {self.weight!r}: use a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}"
            )
        if not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise InvalidTask(
                f"weight {self.weight!r}: use a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}"
            )
        _check_key("fairness_key", self.fairness_key, may_be_empty=True)
        _check_key("ordering_key", self.ordering_key)
        _check_key("unique_key", self.unique_key)
        self.run_at_micros(0)
        if self.context is not None and not all(
            isinstance(k, str) and isinstance(v, str) for k, v in self.context.items()
        ):
            raise InvalidTask("context: use a map of strings to strings")

    def run_at_micros(self, now: int) -> int:
        """Return the earliest start in microseconds since the epoch: `now` if no `run_at` is
        set. Raises InvalidTask if `run_at` is not an aware datetime."""
        if self.run_at is None:
            return now
        if not isinstance(self.run_at, datetime):
            raise InvalidTask(f"run_at {self.run_at!r}: use an aware datetime")
        try:
            return to_micros(self.run_at)
        except ValueError as error:
            raise InvalidTask(f"run_at: {error}") from error


def _check_key(option: str, key: Any, may_be_empty: bool = False) -> None:
    if key is None and not may_be_empty:
        return
    if not isinstance(key, str):
        raise InvalidTask(f"{option} {key!r}: use a string")
    if not key and not may_be_empty:
        raise InvalidTask(f"{option} is empty: leave it out, or give it a value")
    if "\x00" in key:
        raise InvalidTask(f"{option} {key!r}: must not hold a NUL character")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidTask(f"{option} {key!r}: not valid Unicode ({error.reason})") from error
    if size > MOST_KEY_BYTES:
        raise InvalidTask(f"{option} has {size} bytes, more than {MOST_KEY_BYTES}")
