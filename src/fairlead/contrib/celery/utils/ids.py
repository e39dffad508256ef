"""Ids of tasks, made before the tasks are submitted."""

from __future__ import annotations

import re

from fairlead.declare.task import new_ids

_ROW_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def uuid() -> str:
    """Return a new id for a task that is submitted at once."""
    return new_ids(1)[0]


gen_unique_id = uuid


def is_row_id(task_id: str) -> bool:
    """Return whether a task in the store can have this id."""
    return _ROW_ID.fullmatch(str(task_id)) is not None
