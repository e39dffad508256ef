"""Search of arguments where some are masked: who may not see a value may not search for it either,
because a search says whether a guess is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.core.arguments import argument_filter, matches
from fairlead.operate.filters import TaskFilters
from fairlead.web.inputs import BadInput
from fairlead.web.parts import Mask


def check_search(mask: Mask | None, filters: TaskFilters) -> TaskFilters:
    """Return the filter if it searches only for what the mask leaves as it is. Raise BadInput."""
    argument, name = filters.get("argument"), filters.get("name")
    if mask is None or argument is None:
        return filters
    if name is None:
        raise BadInput("argument: some arguments are masked; give the name of the tasks too")
    where = argument_filter(argument)
    path = tuple("0" if part.isdigit() else part for part in where.path)
    where = msgspec.structs.replace(where, path=path)
    for value in _values(where.value):
        try:
            shown = mask(name, _arguments(path, value))
            is_shown = matches(where, msgspec.json.encode(shown, enc_hook=repr))
        except Exception:  # a mask that needs more than this one argument may hide it
            is_shown = False
        if not is_shown:
            raise BadInput("argument: this argument is masked, and so cannot be searched")
    return filters


def _arguments(path: Sequence[str], value: Any) -> Any:
    """Return arguments with this value alone."""
    for part in reversed(path):
        value = [value] if part == "0" else {part: value}
    return value


def _values(text: str) -> list[Any]:
    """Return the values that a search for a text finds: the text, and what it is as JSON."""
    try:
        return [text, msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError):
        return [text]
