"""A condition on one argument of a task: its value at a path in the payload."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core import values
from fairlead.errors import InvalidTask
from fairlead.model import ArgumentFilter

MOST_PARTS = 20
"""Greatest number of parts of a path."""


def matches(where: ArgumentFilter, payload: bytes) -> bool:
    """Return whether a payload (JSON) has the value at the path; False for broken JSON."""
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    for part in where.path:
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and _is_position(part) and int(part) < len(found):
            found = found[int(part)]
        else:
            return False
    if isinstance(found, str):
        return found == where.value
    try:
        wanted = msgspec.json.decode(where.value.encode())
    except (msgspec.DecodeError, RecursionError):
        return False
    return _same(found, wanted)


def argument_filter(text: object) -> ArgumentFilter:
    """Return the filter that `path=value` describes, such as `customer.id=7` or `items.0.sku=x`.
    Raise InvalidTask."""
    given = values.text("argument", text, error=InvalidTask)
    path, equals, value = given.partition("=")
    parts = tuple(path.split("."))
    if not equals or not all(parts):
        raise InvalidTask(
            f"argument {values.brief(given)}: use path=value, for example customer.id=7"
        )
    if len(parts) > MOST_PARTS:
        raise InvalidTask(f"argument: a path has at most {MOST_PARTS} parts, not {len(parts)}")
    return ArgumentFilter(parts, value)


def _is_position(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10


def _same(found: Any, wanted: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true is not 1."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)
