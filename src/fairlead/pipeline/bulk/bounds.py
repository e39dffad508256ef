"""Reasons why a value of a known column is refused, in the words of the errors of a single
submit."""

from __future__ import annotations

from typing import Any

from fairlead.core import values
from fairlead.declare.options import Options
from fairlead.declare.queue import Queue
from fairlead.errors import ConfigurationError, InvalidTask


def reason_against(column: str, value: Any) -> str | None:
    """Return why a submit would refuse the value; None if it would not."""
    try:
        if column == "queue":
            Queue(value)
        elif column == "name":
            values.name("task name", value)
        else:
            Options().changed({column: value})
    except (InvalidTask, ConfigurationError) as error:
        return str(error)
    return None
