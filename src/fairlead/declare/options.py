"""Options of a submit, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from fairlead.clock import to_datetime, to_micros
from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import DEFAULT_PRIORITY, DEFAULT_WEIGHT, MAX_WEIGHT, MIN_WEIGHT, PRIORITIES

MOST_CONTEXT_BYTES = 16_384
"""Maximum number of UTF-8 bytes of the names and values of a context."""

MOST_TAGS = 100
"""Maximum number of characters of the tags."""

UniqueWhile = Literal["unfinished"]
"""How long a unique key stays taken: until its task is DONE, FAILED or CANCELLED."""

LONGEST_UNIQUE = timedelta(days=3650)


class Options(msgspec.Struct, frozen=True):
    """Options of one submit. Instants are aware datetimes; `connection` joins the caller's
    transaction. `unique_for`: time after the submit for which the unique key stays taken although
    the task has ended. `tags`: at most 100 characters by which people find the task."""

    fairness_key: str = ""
    weight: float = DEFAULT_WEIGHT
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    unique_while: UniqueWhile = "unfinished"
    unique_for: timedelta | None = None
    context: Mapping[str, str] | None = None
    tags: str = ""
    connection: Any = None

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Return a checked copy with some options replaced. Raises InvalidTask naming the option,
        its value and the allowed values."""
        try:
            plain = {option: values.plain(value) for option, value in changes.items()}
            options = msgspec.structs.replace(self, **plain)
        except TypeError as error:
            raise InvalidTask(
                f"unknown option: {error}; known: {', '.join(self.__struct_fields__)}"
            ) from error
        options.check()
        return msgspec.structs.replace(options, weight=float(options.weight))

    def check(self) -> None:
        """Raise InvalidTask unless every option is within its bounds."""
        values.whole("priority", self.priority, 0, PRIORITIES[-1], InvalidTask)
        values.number("weight", self.weight, MIN_WEIGHT, MAX_WEIGHT, InvalidTask)
        values.text("fairness_key", self.fairness_key, may_be_empty=True, error=InvalidTask)
        for option, key in (("ordering_key", self.ordering_key), ("unique_key", self.unique_key)):
            if key is not None:
                values.text(option, key, error=InvalidTask)
        values.text("tags", self.tags, may_be_empty=True, error=InvalidTask)
        if len(self.tags) > MOST_TAGS:
            raise InvalidTask(f"tags have {len(self.tags)} characters, more than {MOST_TAGS}")
        self._check_unique()
        self.run_at_micros(0)
        if self.context is not None:
            _check_context(self.context)

    def _check_unique(self) -> None:
        if self.unique_while != "unfinished":
            raise InvalidTask(
                f"unique_while {values.brief(self.unique_while)}: use 'unfinished', and unique_for"
                " for a longer time"
            )
        if self.unique_for is None:
            return
        if not isinstance(self.unique_for, timedelta) or not (
            timedelta() < self.unique_for <= LONGEST_UNIQUE
        ):
            raise InvalidTask(
                f"unique_for {values.brief(self.unique_for)}: use a timedelta above 0, of at most"
                f" {LONGEST_UNIQUE.days:,} days"
            )
        if self.unique_key is None:
            raise InvalidTask("unique_for needs a unique_key: give both in one call")

    def unique_until(self, now: int) -> int | None:
        """Return the instant up to which the key stays taken although the task has ended, in
        microseconds since the epoch, or None."""
        window = self.unique_for
        return None if window is None else now + window // timedelta(microseconds=1)

    def run_at_micros(self, now: int) -> int:
        """Return the earliest start in microseconds since the epoch: `now` if no `run_at` is
        set. Raises InvalidTask if `run_at` is not an aware datetime, or in UTC not in the years 1
        to 9999."""
        if self.run_at is None:
            return now
        if not isinstance(self.run_at, datetime):
            raise InvalidTask(f"run_at {values.brief(self.run_at)}: use an aware datetime")
        try:
            micros = to_micros(self.run_at)
            to_datetime(micros)  # the offset may lead out of the years that a datetime can hold
        except ValueError as error:
            raise InvalidTask(f"run_at: {error}") from error
        except OverflowError:
            raise InvalidTask(
                f"run_at {self.run_at.isoformat()}: use an instant in the years 1 to 9999, in UTC"
            ) from None
        return micros


def _check_context(context: object) -> None:
    if not isinstance(context, Mapping):
        raise InvalidTask(f"context {values.brief(context)}: use a map of strings to strings")
    size = 0
    for name, value in context.items():
        values.text("a name in context", name, MOST_CONTEXT_BYTES, error=InvalidTask)
        values.text(
            f"context[{name!r}]", value, MOST_CONTEXT_BYTES, may_be_empty=True, error=InvalidTask
        )
        size += len(name.encode()) + len(value.encode())
    if size > MOST_CONTEXT_BYTES:
        raise InvalidTask(
            f"context has {size:,} bytes, more than {MOST_CONTEXT_BYTES:,}: put data into the"
            " arguments, or store it elsewhere"
        )
