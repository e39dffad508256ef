"""Tables that the data source reads from a store, with the column names and types of the lake."""

from __future__ import annotations

from fairlead.pipeline.bronze import ATTEMPTS, TRIGGER_PATHS
from fairlead.pipeline.schema import Column, Table, columns_in
from fairlead.ports.history import ATTEMPT_FIELDS

_ATTEMPTS = {column.name: column for column in ATTEMPTS.columns}
_OWN = {"unique_key": Column("unique_key", "string", "unique key, as submitted", nullable=True)}

ATTEMPTS_READ = Table(
    "attempts",
    "one run of a task, or the end of a task without a run, as stored",
    key=("task_id", "version"),
    instant="finished_at",
    columns=tuple(_OWN.get(name) or _ATTEMPTS[name] for name in ATTEMPT_FIELDS),
)

TASKS_READ = Table(
    "tasks",
    "a task that has not ended: WAITING, SUBMITTED, PROCESSING or ERROR",
    key=("task_id",),
    instant="submitted_at",
    columns=columns_in(
        f"""
        task_id       string     UUIDv7 of the task
        queue         string     queue of the task, as submitted
        partition     int        partition of the queue
        name          string     name of the task (its type)
        state         string     WAITING, SUBMITTED, PROCESSING or ERROR
        version       int        version of the task, raised by every change
        attempt       int        number of runs so far
        tries         int        number of runs that count against the retry policy
        priority      tinyint    priority of the task, 0 (first) to 9 (last)
        fairness_key  string     fairness key (tenant) of the task
        weight        double     weight of the task, as submitted
        ordering_key  string?    ordering key of the task, as submitted
        unique_key    string?    unique key, as submitted
        submitted_at  timestamp  time of the call of submit, by the submitter's clock
        run_at        timestamp  earliest start of the next run
        ready_at      timestamp? time at which the task last became SUBMITTED
        triggered_at  timestamp? time at which the trigger was sent
        claimed_at    timestamp? time at which a node last claimed the task
        node          string?    node that has claimed the task
        trigger_path  string     source of the last trigger: {TRIGGER_PATHS}
        error_type    string?    class of the last error
        error_text    string?    text of the last error
        payload_bytes int        stored size of the arguments
        context       string?    JSON object of strings that accompanies the task; read only if
                                 `columns` names it
        payload       string     arguments as JSON; read only if `columns` names it
        """,
    ),
)

BACKLOG_READ = Table(
    "backlog",
    "a stored trigger of a fair queue, above the ack level that its lane last saved; the trigger"
    " was not dispatched when the lane saved the level, but may have been since",
    key=("queue", "partition", "priority", "pass", "id"),
    instant="",
    columns=columns_in(
        """
        queue        string     queue of the lane
        partition    int        partition of the lane
        priority     tinyint    priority of the lane, 0 (first) to 9 (last)
        pass         bigint     first part of the level (pass, id), the trigger's position in the
                                lane
        id           bigint     second part of the level (pass, id), unique in the lane
        task_id      string     UUIDv7 of the task
        version      int        version of the task that the trigger may claim
        name         string     name of the task (its type)
        fairness_key string     fairness key (tenant) of the task
        weight       double     weight of the task, as submitted
        ordering_key string?    ordering key of the task, as submitted
        seq          bigint     position in the channel
        order_at     timestamp? position among the tasks of the ordering key
        """,
    ),
)

TABLES = {table.name: table for table in (TASKS_READ, ATTEMPTS_READ, BACKLOG_READ)}

ONLY_ON_REQUEST = frozenset({"payload", "context"})
"""Columns with user data of any size; a read returns them only if the option `columns` names
them."""
