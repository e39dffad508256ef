"""The condition of a search on one argument of a task."""

from __future__ import annotations

import msgspec


class ArgumentFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects tasks whose payload has this value at this path."""

    path: tuple[str, ...]
    """Names of fields, and positions in lists, from the outside in."""
    value: str
    """A text, or the JSON of another value; `17` matches the number and the text."""
