"""Definitions of silver.tasks and silver.open_tasks."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

TASKS = Table(
    "silver.tasks",
    "one row for each task, as far as its history is known",
    key=("store_id", "task_id"),
    instant="submitted_at",
    together=True,
    columns=columns_in(
        """
        store_id         string     store that the task comes from
        task_id          string     UUIDv7 of the task
        queue            string     queue of the task, as submitted
        name             string     name of the task, as submitted
        fairness_key     string     fairness key of the task, as submitted
        weight           double     weight of the task, as submitted
        priority         tinyint    priority of the task, as submitted
        ordering_key     string?    ordering key of the task, as submitted; also null while no
                                    attempt is known
        submitted_at     timestamp  time of the call of submit
        first_ready_at   timestamp? first instant at which the task might run; the due time while no
                                    attempt is known
        first_claimed_at timestamp? first claim by a node
        first_started_at timestamp? first call of the handler
        last_finished_at timestamp? end of the latest attempt
        attempts         int        number of runs, lost ones included
        retries          int        number of runs after the first
        state            string     state after the latest attempt; state after the submit if there
                                    is no attempt
        wait_us          bigint?    time from first_ready_at to first_claimed_at; null if never
                                    claimed
        queue_us         bigint     time from ready to claimed, summed over all attempts
        run_us           bigint     worker time of all attempts
        e2e_us           bigint?    time from the submit to the end of the task; null if not ended
        slowdown         double     bounded slowdown: (queue_us + run_us) / run_us, with run_us at
                                    least 10 s; at least 1
        """,
    ),
)

OPEN_TASKS = Table(
    "silver.open_tasks",
    "tasks of silver.tasks without a finished attempt: their first run has not begun or has not"
    " ended. A build counts them as waiting without reading all tasks",
    key=("store_id", "task_id"),
    instant="submitted_at",
    columns=columns_in(
        """
        store_id     string     store that the task comes from
        task_id      string     UUIDv7 of the task
        queue        string     queue of the task, as submitted
        fairness_key string     fairness key of the task, as submitted
        weight       double     weight of the task, as submitted
        submitted_at timestamp  time of the call of submit
        ready_at     timestamp? first instant at which the task may run
        """,
    ),
)
