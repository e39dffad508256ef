"""The gate for values: what names, keys, numbers and times may be. Everything that a person or a
program gives to Fairlead is checked here, where it enters, on every path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from fairlead.errors import LONGEST_DELAY, ConfigurationError, FairleadError
from fairlead.errors import brief as brief

MOST_NAME_BYTES = 200
MOST_KEY_BYTES = 1024
"""Maximum number of UTF-8 bytes of a fairness, ordering or unique key; keys are index entries."""
MOST_ROWS = 1_000_000
"""Greatest number of rows that one call returns."""
MOST_COUNT = (1 << 31) - 1
MOST_BYTES = (1 << 63) - 1
MOST_SECONDS = LONGEST_DELAY

Error = type[FairleadError]
_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)
_encode = msgspec.json.Encoder().encode


def text(
    what: str,
    value: object,
    most: int = MOST_KEY_BYTES,
    *,
    may_be_empty: bool = False,
    error: Error = ConfigurationError,
) -> str:
    """Return `value` as a plain text if every store can keep it, in at most `most` bytes."""
    if not isinstance(value, str):
        raise error(f"{what} {brief(value)}: use a string")
    if not value and not may_be_empty:
        raise error(f"{what} is empty: leave it out, or give it a value")
    if "\0" in value:
        raise error(f"{what} {brief(value)}: must not hold a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as reason:
        raise error(f"{what} {brief(value)}: not valid Unicode ({reason.reason})") from reason
    if size > most:
        raise error(f"{what} has {size} bytes, more than {most}")
    found: str = plain(value)
    return found


def plain(value: Any) -> Any:
    """Return a text of another class, such as an Enum or a safe string, as a plain text, which
    every store takes; other values as they are."""
    return value if type(value) is str or not isinstance(value, str) else str.__str__(value)


def name(what: str, value: object, error: Error = ConfigurationError) -> str:
    """Return `value` if it can name a queue or a task."""
    found = text(what, value, MOST_NAME_BYTES, error=error)
    if not found.strip():
        raise error(f"{what} {brief(value)}: use more than blanks")
    return found


def whole(
    what: str, value: object, low: int, high: int = MOST_COUNT, error: Error = ConfigurationError
) -> int:
    """Return `value` if it is a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise error(f"{what} {brief(value)}: use a whole number from {low} to {high}")
    return value


def number(
    what: str, value: object, low: float, high: float, error: Error = ConfigurationError
) -> float:
    """Return `value` as a float if it is a number from `low` to `high`."""
    # NaN compares false with every bound, and a whole number of any size compares exactly.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise error(f"{what} {brief(value)}: use a number from {low:g} to {high:g}")
    return float(value)


def seconds(what: str, value: object, error: Error = ConfigurationError) -> float:
    """Return `value` as seconds if it is above 0 and at most a hundred years."""
    found = number(f"{what} (seconds)", value, 0, MOST_SECONDS, error)
    if not found:
        raise error(f"{what} {brief(value)}: use a number of seconds above 0")
    return found


def instant(what: str, value: str, error: Error = ConfigurationError) -> datetime:
    """Return the instant, in UTC, that an ISO 8601 text names if tables can have it; a text without
    an offset is in UTC."""
    try:
        found = datetime.fromisoformat(value)
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        if 1970 <= found.year < 9999:
            return found
    except (ValueError, OverflowError):
        pass
    raise error(
        f"{what} {brief(value)}: use an instant in the years 1970 to 9998, such as 2026-01-31 or"
        " 2026-01-31T09:00, in UTC"
    )


def one_of(what: str, value: Any, *choices: str, error: Error = ConfigurationError) -> str:
    """Return `value` if it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        known = " or ".join(repr(str(each)) for each in choices)
        raise error(f"{what} {brief(value)} is unknown; use {known}")
    return value


def member(what: str, value: object, kind: type[_E], error: Error = ConfigurationError) -> _E:
    """Return the member of an enumeration that `value` is or names."""
    return kind(one_of(what, value, *map(str, kind), error=error))


def methods(what: str, value: _T, *names: str, error: Error = ConfigurationError) -> _T:
    """Return `value` if it is an object with these methods, not a class."""
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in names):
        raise error(f"{what} {brief(value)}: use an object with the methods {', '.join(names)}")
    return value


def many(what: str, value: object, error: Error = ConfigurationError) -> Iterable[Any]:
    """Return `value` if it is an iterable of values, no text and no map."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | type):
        return value
    raise error(f"{what} {brief(value)}: use a list")


def to_json(value: Any) -> bytes:
    """Return a value as JSON. Raises ValueError for NaN and infinities, and the errors of msgspec
    for other values that JSON cannot express."""
    encoded = _encode(value)
    # NaN and infinities are written as null.
    if b"null" in encoded and not _is_finite(msgspec.to_builtins(value)):
        raise ValueError("JSON has no NaN or infinity; use a text, or None")
    return encoded


def _is_finite(value: Any) -> bool:
    """Return whether plain data (maps, lists, numbers, texts) holds neither NaN nor an infinity,
    which JSON cannot express."""
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_is_finite, value.values()))
        case list() | tuple() | set() | frozenset():
            return all(map(_is_finite, value))
        case _:
            return True
