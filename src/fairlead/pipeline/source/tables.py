"""The tables of the data source: those of a store, with the names and types of the lake."""

from __future__ import annotations

from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.schema import Column, Table
from fairlead.ports.history import ATTEMPT_FIELDS

_ATTEMPTS = {column.name: column for column in ATTEMPTS.columns}
_OWN = {"unique_key": Column("unique_key", "string", "as submitted", nullable=True)}

ATTEMPTS_READ = Table(
    "attempts",
    "one run of a task, or an end without a run, as the store keeps it",
    key=("task_id", "version"),
    instant="finished_at",
    columns=tuple(_OWN.get(name) or _ATTEMPTS[name] for name in ATTEMPT_FIELDS),
)

TASKS_READ = Table(
    "tasks",
    "a task that has not ended: WAITING, SUBMITTED, PROCESSING or ERROR",
    key=("task_id",),
    instant="submitted_at",
    columns=(
        Column("task_id", "string", "UUIDv7 of the task"),
        Column("queue", "string", "as submitted"),
        Column("partition", "int", "of the queue"),
        Column("name", "string", "the task's name (its type)"),
        Column("state", "string", "WAITING, SUBMITTED, PROCESSING or ERROR"),
        Column("version", "int", "raised by every change"),
        Column("attempt", "int", "runs so far"),
        Column("tries", "int", "runs spent against the retry policy"),
        Column("priority", "tinyint", "0 (first) to 9 (last)"),
        Column("fairness_key", "string", "whose work it is"),
        Column("weight", "double", "the key's share, as submitted"),
        Column("ordering_key", "string", "as submitted", nullable=True),
        Column("unique_key", "string", "as submitted", nullable=True),
        Column("submitted_at", "timestamp", "when submit was called, by the submitter's clock"),
        Column("run_at", "timestamp", "earliest start of the next run"),
        Column("ready_at", "timestamp", "when it last became SUBMITTED", nullable=True),
        Column("triggered_at", "timestamp", "when its trigger was sent", nullable=True),
        Column("claimed_at", "timestamp", "when a node last took it", nullable=True),
        Column("node", "string", "who has it", nullable=True),
        Column("trigger_path", "string", "what last triggered it: hook, poller, spill, heal"),
        Column("error_type", "string", "class of the last error", nullable=True),
        Column("error_text", "string", "its text", nullable=True),
        Column("payload_bytes", "int", "stored size of its arguments"),
        Column(
            "context",
            "string",
            "JSON object of strings that travels with it; only when asked for",
            nullable=True,
        ),
        Column("payload", "string", "its arguments as JSON; only when asked for"),
    ),
)

BACKLOG_READ = Table(
    "backlog",
    "a trigger of a fair queue that did not fit in memory, above the ack level its lane has kept:"
    " each was not dispatched when the level was kept, and may have been since",
    key=("queue", "partition", "priority", "pass", "id"),
    instant="",
    columns=(
        Column("queue", "string", "of the lane"),
        Column("partition", "int", "of the lane"),
        Column("priority", "tinyint", "of the lane: 0 (first) to 9 (last)"),
        Column("pass", "bigint", "the pass, with id its level: place in the lane"),
        Column("id", "bigint", "unique in the lane"),
        Column("task_id", "string", "UUIDv7 of the task"),
        Column("version", "int", "at which the task may be claimed"),
        Column("name", "string", "the task's name (its type)"),
        Column("fairness_key", "string", "whose work it is"),
        Column("weight", "double", "the key's share, as submitted"),
        Column("ordering_key", "string", "as submitted", nullable=True),
        Column("seq", "bigint", "its place in the channel"),
        Column(
            "order_at", "timestamp", "its place among the tasks of its ordering key", nullable=True
        ),
    ),
)

TABLES = {table.name: table for table in (TASKS_READ, ATTEMPTS_READ, BACKLOG_READ)}

ONLY_WHEN_ASKED = frozenset({"payload", "context"})
"""Columns read only when the option `columns` names them: user data of any size."""
