"""Search of arguments where some are masked: who may not see a value may not search for it either,
because a search says whether a guess is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.core.arguments import argument_filter, matches
from fairlead.errors import InvalidTask
from fairlead.operate.filters import TaskFilters

Mask = Callable[[str, Any], Any]
"""Function that gets the name of a task and its arguments, and returns them without secrets."""

MOST_NUMBERS = 4
"""Maximum number of parts of a path that may be positions or keys."""


def check_search(mask: Mask | None, filters: TaskFilters) -> TaskFilters:
    """Return the filter if it searches only for what the mask leaves as it is. Raise
    InvalidTask."""
    argument, name = filters.get("argument"), filters.get("name")
    if mask is None or argument is None:
        return filters
    if name is None:
        raise InvalidTask("argument: some arguments are masked; give the name of the tasks too")
    where = argument_filter(argument)
    numbers = sum(part.isdigit() for part in where.path)
    if numbers > MOST_NUMBERS:
        raise InvalidTask(f"argument: use at most {MOST_NUMBERS} numbers, because some are masked")
    for value in _values(where.value):
        # A number in the path is a position in a list, or a key.
        for in_lists in itertools.product((True, False), repeat=numbers):
            given, path = _alone(where.path, value, in_lists)
            shows = msgspec.structs.replace(where, path=path)
            try:
                is_shown = matches(shows, msgspec.json.encode(mask(name, given), enc_hook=repr))
            except Exception:  # a mask that needs more than this one argument may hide it
                is_shown = False
            if not is_shown:
                raise InvalidTask("argument: this argument is masked, and so cannot be searched")
    return filters


def _alone(path: Sequence[str], value: Any, in_lists: Sequence[bool]) -> tuple[Any, Sequence[str]]:
    """Return arguments with this value alone, and its path in them. `in_lists`: whether each number
    of the path, from the last one on, is a position."""
    kinds, parts = iter(in_lists), list[str]()
    for part in reversed(path):
        is_position = part.isdigit() and next(kinds)
        value = [value] if is_position else {part: value}
        parts.append("0" if is_position else part)
    return value, tuple(reversed(parts))


def _values(text: str) -> list[Any]:
    """Return the values that a search for a text finds: the text, and what it is as JSON."""
    try:
        return [text, msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        return [text]
