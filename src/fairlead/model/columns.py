"""The columns of tasks and of attempts, each listed once.

A column fills the field with its name in each noun that has one, so the fields of a noun say which
columns it is read from or written to. Statements, COPY rows and readers are made from these lists,
and a test compares the schemas with them.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, NamedTuple, get_args

import msgspec

from fairlead.model import fields
from fairlead.model.attempt import AttemptRecord
from fairlead.model.task import NewTask


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """Type of PostgreSQL."""
    values: Any
    """Values that it may have, as a type for msgspec."""

    @property
    def may_be_null(self) -> bool:
        """Whether the column may be NULL."""
        return NoneType in get_args(self.values)


TASKS = (
    Column("id", "uuid", fields.TaskId),
    Column("queue", "text", fields.Key),
    Column("partition", "smallint", fields.Partition),
    Column("name", "text", fields.Key),
    Column("state", "text", fields.Key),
    Column("version", "integer", fields.Version),
    Column("attempt", "integer", fields.Runs),
    Column("tries", "integer", fields.Runs),
    Column("priority", "smallint", fields.Priority),
    Column("fairness_key", "text", fields.Key),
    Column("weight", "double precision", fields.Weight),
    Column("ordering_key", "text", fields.Key | None),
    Column("unique_key", "text", fields.Key | None),
    Column("keep_result", "boolean", bool),
    Column("submitted_at", "bigint", fields.Time),
    Column("run_at", "bigint", int),
    Column("ready_at", "bigint", int | None),
    Column("triggered_at", "bigint", int | None),
    Column("claimed_at", "bigint", int | None),
    Column("stuck_at", "bigint", int | None),
    Column("policy", "smallint", int),
    Column("ready_seq", "bigint", int | None),
    Column("node", "text", fields.Key | None),
    Column("trigger_path", "text", fields.Key),
    Column("error_type", "text", fields.Key | None),
    Column("error_text", "text", fields.Key | None),
    Column("context", "text", fields.Key | None),
    Column("tags", "text", fields.Key),
    Column("payload_format", "text", fields.Key),
    Column("payload", "bytea", bytes),
    Column("checkpoint", "bytea", bytes | None),
    Column("order_at", "bigint", int | None),
)
"""Columns of `fairlead_tasks`, without those that one dialect alone has for its indexes."""

ENDED = (
    Column("outcome", "text", fields.Key),
    Column("next_state", "text", fields.Key),
    Column("started_at", "bigint", int | None),
    Column("finished_at", "bigint", int),
    Column("error_type", "text", fields.Key | None),
    Column("error_text", "text", fields.Key | None),
)
"""Columns of an attempt that the end of a run fills."""

_ATTEMPTS = {column.name: column for column in (*TASKS, *ENDED)} | {
    "task_id": Column("task_id", "uuid", fields.TaskId),
    "payload_bytes": Column("payload_bytes", "integer", fields.Count),
}

ATTEMPTS = tuple(_ATTEMPTS[name] for name in AttemptRecord.__struct_fields__[1:])
"""Columns of `fairlead_attempts` after its position, in the order of the fields of
`AttemptRecord`."""

NEW = tuple(column for column in TASKS if column.name in NewTask.__struct_fields__)
"""Columns that a submit gives."""

StoredTask = msgspec.defstruct("StoredTask", [(column.name, column.values) for column in NEW])
"""Values of a new task that every store and the history can take."""

KEPT = tuple(column for column in TASKS if column in ATTEMPTS and column not in ENDED)
"""Columns that an attempt keeps of its task."""
