"""Reasons why a value of a known column is refused, in the words of the errors of a single
submit."""

from __future__ import annotations

from typing import Any

from fairlead.declare.options import Options
from fairlead.declare.queue import Queue
from fairlead.errors import ConfigurationError, InvalidTask

MOST_NAME_BYTES = 200
"""Maximum length of the name of a task or a queue, in UTF-8 bytes."""


def reason_against(column: str, value: Any) -> str | None:
    """Return why a submit would refuse the value; None if it would not."""
    try:
        if column == "queue":
            Queue(value)
        elif column == "name":
            if (
                value is None
                or not value.strip()
                or len(value.encode()) > MOST_NAME_BYTES
                or "\x00" in value
            ):
                return f"task name {value!r}: use 1 to {MOST_NAME_BYTES} bytes of text"
        else:
            Options().changed({column: value})
    except (InvalidTask, ConfigurationError) as error:
        return str(error)
    return None
