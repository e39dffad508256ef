"""Bronze tables: history as it was recorded, append-only. The exporter writes the bronze tables,
and all other tables are made from them."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

TRIGGER_PATHS = (
    "hook (a submit), poller (the task came due), heal (a sweep, or a dead node), spill (read back"
    " from the backlog) or grant (from the owner of the partition)"
)

ATTEMPTS = Table(
    "bronze.attempts",
    "one run of a task, or the end of a task without a run (started_at is then null)",
    key=("store_id", "task_id", "version"),
    instant="finished_at",
    columns=columns_in(
        f"""
        store_id        string     identity of the store, created once by its migration
        task_id         string     UUIDv7 of the task
        attempt         int        number of runs of the task up to and including this one; an end
                                   without a run repeats the number
        tries           int        runs that count against the retry policy
        xid             bigint     id of the transaction that wrote the attempt (PostgreSQL); 0 in
                                   other stores
        seq             bigint     order of writing in the store, together with xid
        queue           string     queue of the task, as submitted
        name            string     name of the task (its type)
        partition       int        partition of the queue
        priority        tinyint    priority of the task, 0 (first) to 9 (last)
        fairness_key    string     fairness key (tenant) of the task
        weight          double     weight of the task, as submitted
        ordering_key    string?    ordering key of the task, as submitted
        unique_key_hash bigint?    CRC-32 of the unique key, to find duplicates without the key
                                   itself
        submitted_at    timestamp  time of the call of submit, by the submitter's clock
        run_at          timestamp  earliest start of this run
        ready_at        timestamp? time at which the task last became SUBMITTED
        triggered_at    timestamp? time at which the trigger was sent
        claimed_at      timestamp? time at which a node claimed the task
        started_at      timestamp? time at which the handler was called
        finished_at     timestamp  time at which the run, or the task, ended
        outcome         string     outcome of the attempt: done, retried, failed, timed_out,
                                   snoozed, cancelled, lost
        next_state      string     state of the task after the attempt: DONE, WAITING, SUBMITTED,
                                   ERROR, FAILED, CANCELLED
        error_type      string?    class of the error
        error_fp        bigint?    fingerprint of the error, equal for similar errors: CRC-32 of its
                                   class and the first line of its text, without digits
        error_text      string?    first 500 characters of the error's text
        node            string?    node that ran the task
        version         int        version of the task during the run
        payload_bytes   int        stored size of the arguments
        trigger_path    string     source of the trigger of the run: {TRIGGER_PATHS}
        tags            string     text by which people find the task, as submitted
        policy_version  bigint?    version of the published weights during the run; null without
                                   published weights
        exported_at     timestamp  time at which the row was exported
        """,
    ),
)

EVENTS = Table(
    "bronze.events",
    "changes of a task other than its runs. A task that was submitted and finished"
    " between two exports has attempts but no event `submitted`",
    key=("store_id", "task_id", "version", "kind"),
    instant="at",
    columns=columns_in(
        """
        store_id     string    identity of the store
        task_id      string    UUIDv7 of the task
        version      int       version of the task at the change
        kind         string    kind of the change: submitted, resumed, rescheduled, changed,
                               cancelled, marked_failed
        xid          bigint    id of the transaction that wrote the event (PostgreSQL); 0 in other
                               stores
        seq          bigint    order of writing in the store, together with xid
        at           timestamp time of the change; for submitted: submitted_at
        queue        string    queue of the task
        name         string    name of the task
        fairness_key string    fairness key of the task
        weight       double    weight of the task
        priority     tinyint   priority of the task
        run_at       timestamp earliest start of the next run after the change
        actor        string?   person who made the change; null if a program made it
        details      string?   further facts, as JSON
        exported_at  timestamp time at which the row was exported
        """,
    ),
)

QUARANTINE = Table(
    "bronze.quarantine",
    "invalid rows, which are counted and kept out of the other tables",
    key=("source", "ordinal"),
    instant="seen_at",
    columns=columns_in(
        """
        source  string    table and store from which the row comes
        ordinal string    key of the row in that table
        reason  string    fault of the row
        column  string    column with the fault
        raw     string    the row, as JSON
        seen_at timestamp instant that decides the partition, as in the table of the row:
                          finished_at for an attempt, at for an event; 1970 if it is missing
        """,
    ),
)
