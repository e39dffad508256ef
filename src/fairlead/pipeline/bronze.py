"""Bronze tables: history as it was recorded, append-only. The exporter writes them, all other
tables are made from them."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

ATTEMPTS = Table(
    "bronze.attempts",
    "one run of a task, or an end without a run (started_at is then null); partitioned by the hour"
    " of finished_at",
    key=("store_id", "task_id", "version"),
    instant="finished_at",
    columns=(
        Column("store_id", "string", "which store it comes from: made once, by its migration"),
        Column("task_id", "string", "UUIDv7 of the task"),
        Column(
            "attempt",
            "int",
            "runs of the task up to this one; an end without a run repeats the number",
        ),
        Column("tries", "int", "runs spent against the retry policy"),
        Column("xid", "bigint", "transaction that wrote it (PostgreSQL), else 0"),
        Column("seq", "bigint", "order of writing in its store, together with xid"),
        Column("queue", "string", "as submitted"),
        Column("name", "string", "the task's name (its type)"),
        Column("partition", "int", "of the queue"),
        Column("priority", "tinyint", "0 (first) to 9 (last)"),
        Column("fairness_key", "string", "whose work it was"),
        Column("weight", "double", "the key's share, as submitted"),
        Column("ordering_key", "string", "as submitted", nullable=True),
        Column(
            "unique_key_hash",
            "bigint",
            "CRC-32 of the unique key: it tells doubles without telling the key",
            nullable=True,
        ),
        Column("submitted_at", "timestamp", "when submit was called, by the submitter's clock"),
        Column("run_at", "timestamp", "earliest start of this run"),
        Column("ready_at", "timestamp", "when it last became SUBMITTED", nullable=True),
        Column("triggered_at", "timestamp", "when its trigger was sent", nullable=True),
        Column(
            "received_at",
            "timestamp",
            "when a node had its trigger; null: not recorded by this version",
            nullable=True,
        ),
        Column(
            "booked_at",
            "timestamp",
            "when its slot was acquired; null: not recorded by this version",
            nullable=True,
        ),
        Column("claimed_at", "timestamp", "when a node took it", nullable=True),
        Column("started_at", "timestamp", "when its handler was called", nullable=True),
        Column("finished_at", "timestamp", "when the run, or the task, ended"),
        Column("outcome", "string", "done, retried, failed, timed_out, snoozed, cancelled, lost"),
        Column(
            "next_state",
            "string",
            "where the task went: DONE, WAITING, SUBMITTED, ERROR, FAILED, CANCELLED",
        ),
        Column("error_type", "string", "class of the error", nullable=True),
        Column(
            "error_fp",
            "bigint",
            "CRC-32 of the error's class and its text without digits: alike errors",
            nullable=True,
        ),
        Column("error_text", "string", "its first 500 characters", nullable=True),
        Column("node", "string", "who ran it", nullable=True),
        Column(
            "worker",
            "int",
            "which worker of the node; null: not recorded by this version",
            nullable=True,
        ),
        Column("version", "int", "of the task while it ran"),
        Column("payload_bytes", "int", "stored size of its arguments"),
        Column("trigger_path", "string", "what triggered it: hook, poller, spill, heal"),
        Column(
            "policy_version",
            "bigint",
            "the published weights it ran under; null: none were",
            nullable=True,
        ),
        Column("exported_at", "timestamp", "when it was written here"),
        WRITTEN_UNDER,
    ),
)

EVENTS = Table(
    "bronze.events",
    "what happened to a task beside its runs; partitioned by the hour of at. A task that was"
    " submitted and finished between two exports has no event `submitted`: its attempts tell",
    key=("store_id", "task_id", "version", "kind"),
    instant="at",
    columns=(
        Column("store_id", "string", "which store it comes from"),
        Column("task_id", "string", "UUIDv7 of the task"),
        Column("version", "int", "of the task when it happened"),
        Column("kind", "string", "submitted, resumed, rescheduled, cancelled, marked_failed"),
        Column("xid", "bigint", "transaction that wrote it (PostgreSQL), else 0"),
        Column("seq", "bigint", "order of writing in its store, together with xid"),
        Column("at", "timestamp", "when it happened; of submitted: submitted_at"),
        Column("queue", "string", "of the task"),
        Column("name", "string", "of the task"),
        Column("fairness_key", "string", "of the task"),
        Column("weight", "double", "of the task"),
        Column("priority", "tinyint", "of the task"),
        Column("run_at", "timestamp", "its earliest start then"),
        Column("actor", "string", "who did it; null: a program", nullable=True),
        Column("details", "string", "JSON: what else is known", nullable=True),
        Column("exported_at", "timestamp", "when it was written here"),
        WRITTEN_UNDER,
    ),
)

QUARANTINE = Table(
    "bronze.quarantine",
    "a row that does not make sense, kept beside and counted, never dropped silently; partitioned"
    " by the hour of seen_at",
    key=("source", "ordinal"),
    instant="seen_at",
    columns=(
        Column("source", "string", "the table and store it came from"),
        Column("ordinal", "string", "its key there"),
        Column("reason", "string", "what is wrong with it"),
        Column("column", "string", "the column that shows it"),
        Column("raw", "string", "the row as JSON"),
        Column("seen_at", "timestamp", "the instant that placed it: finished_at of an attempt"),
        WRITTEN_UNDER,
    ),
)
