"""Bronze tables: history as it was recorded, append-only. The exporter writes the bronze tables,
and all other tables are made from them."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

TRIGGER_PATHS = (
    "hook (a submit), poller (the task came due), heal (a sweep, or a dead node), spill (read back"
    " from the backlog) or grant (from the owner of the partition)"
)

ATTEMPTS = Table(
    "bronze.attempts",
    "one run of a task, or the end of a task without a run (started_at is then null)",
    key=("store_id", "task_id", "version"),
    instant="finished_at",
    columns=(
        Column("store_id", "string", "identity of the store, created once by its migration"),
        Column("task_id", "string", "UUIDv7 of the task"),
        Column(
            "attempt",
            "int",
            "number of runs of the task up to and including this one; an end without a run"
            " repeats the number",
        ),
        Column("tries", "int", "runs that count against the retry policy"),
        Column(
            "xid",
            "bigint",
            "id of the transaction that wrote the attempt (PostgreSQL); 0 in other stores",
        ),
        Column("seq", "bigint", "order of writing in the store, together with xid"),
        Column("queue", "string", "queue of the task, as submitted"),
        Column("name", "string", "name of the task (its type)"),
        Column("partition", "int", "partition of the queue"),
        Column("priority", "tinyint", "priority of the task, 0 (first) to 9 (last)"),
        Column("fairness_key", "string", "fairness key (tenant) of the task"),
        Column("weight", "double", "weight of the task, as submitted"),
        Column("ordering_key", "string", "ordering key of the task, as submitted", nullable=True),
        Column(
            "unique_key_hash",
            "bigint",
            "CRC-32 of the unique key, to find duplicates without the key itself",
            nullable=True,
        ),
        Column("submitted_at", "timestamp", "time of the call of submit, by the submitter's clock"),
        Column("run_at", "timestamp", "earliest start of this run"),
        Column(
            "ready_at", "timestamp", "time at which the task last became SUBMITTED", nullable=True
        ),
        Column("triggered_at", "timestamp", "time at which the trigger was sent", nullable=True),
        Column(
            "received_at",
            "timestamp",
            "time at which a node received the trigger; null, because this version does not"
            " record it",
            nullable=True,
        ),
        Column(
            "acquired_at",
            "timestamp",
            "time at which the slot was acquired; null, because this version does not record it",
            nullable=True,
        ),
        Column("claimed_at", "timestamp", "time at which a node claimed the task", nullable=True),
        Column("started_at", "timestamp", "time at which the handler was called", nullable=True),
        Column("finished_at", "timestamp", "time at which the run, or the task, ended"),
        Column(
            "outcome",
            "string",
            "outcome of the attempt: done, retried, failed, timed_out, snoozed, cancelled, lost",
        ),
        Column(
            "next_state",
            "string",
            "state of the task after the attempt: DONE, WAITING, SUBMITTED, ERROR, FAILED,"
            " CANCELLED",
        ),
        Column("error_type", "string", "class of the error", nullable=True),
        Column(
            "error_fp",
            "bigint",
            "fingerprint of the error, equal for similar errors: CRC-32 of its class and the"
            " first line of its text, without digits",
            nullable=True,
        ),
        Column("error_text", "string", "first 500 characters of the error's text", nullable=True),
        Column("node", "string", "node that ran the task", nullable=True),
        Column(
            "worker",
            "int",
            "number of the worker process; null, because this version does not record it",
            nullable=True,
        ),
        Column("version", "int", "version of the task during the run"),
        Column("payload_bytes", "int", "stored size of the arguments"),
        Column("trigger_path", "string", f"source of the trigger of the run: {TRIGGER_PATHS}"),
        Column(
            "policy_version",
            "bigint",
            "version of the published weights during the run; null without published weights",
            nullable=True,
        ),
        Column("exported_at", "timestamp", "time at which the row was exported"),
        WRITTEN_UNDER,
    ),
)

EVENTS = Table(
    "bronze.events",
    "changes of a task other than its runs. A task that was submitted and finished"
    " between two exports has attempts but no event `submitted`",
    key=("store_id", "task_id", "version", "kind"),
    instant="at",
    columns=(
        Column("store_id", "string", "identity of the store"),
        Column("task_id", "string", "UUIDv7 of the task"),
        Column("version", "int", "version of the task at the change"),
        Column(
            "kind",
            "string",
            "kind of the change: submitted, resumed, rescheduled, changed, cancelled,"
            " marked_failed",
        ),
        Column(
            "xid",
            "bigint",
            "id of the transaction that wrote the event (PostgreSQL); 0 in other stores",
        ),
        Column("seq", "bigint", "order of writing in the store, together with xid"),
        Column("at", "timestamp", "time of the change; for submitted: submitted_at"),
        Column("queue", "string", "queue of the task"),
        Column("name", "string", "name of the task"),
        Column("fairness_key", "string", "fairness key of the task"),
        Column("weight", "double", "weight of the task"),
        Column("priority", "tinyint", "priority of the task"),
        Column("run_at", "timestamp", "earliest start of the next run after the change"),
        Column(
            "actor",
            "string",
            "person who made the change; null if a program made it",
            nullable=True,
        ),
        Column("details", "string", "further facts, as JSON", nullable=True),
        Column("exported_at", "timestamp", "time at which the row was exported"),
        WRITTEN_UNDER,
    ),
)

QUARANTINE = Table(
    "bronze.quarantine",
    "invalid rows, which are counted and kept out of the other tables",
    key=("source", "ordinal"),
    instant="seen_at",
    columns=(
        Column("source", "string", "table and store from which the row comes"),
        Column("ordinal", "string", "key of the row in that table"),
        Column("reason", "string", "fault of the row"),
        Column("column", "string", "column with the fault"),
        Column("raw", "string", "the row, as JSON"),
        Column(
            "seen_at",
            "timestamp",
            "instant that decides the partition, as in the table of the row: finished_at for an"
            " attempt, at for an event; 1970 if it is missing",
        ),
        WRITTEN_UNDER,
    ),
)
