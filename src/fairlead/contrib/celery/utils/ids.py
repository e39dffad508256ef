"""Ids of tasks, made before the tasks are submitted."""

from __future__ import annotations

from fairlead.declare.task import new_ids


def uuid() -> str:
    """Return a new id for a task that is submitted at once."""
    return new_ids(1)[0]


gen_unique_id = uuid
