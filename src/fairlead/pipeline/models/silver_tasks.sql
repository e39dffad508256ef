-- table: silver.tasks
-- doc: one row for each task, as far as its history is known
-- key: store_id, task_id
-- partition: hour of submitted_at
-- given: known_tasks, rows of this table for days that bronze has deleted; normally none
-- columns:
--   store_id         string     store that the task comes from
--   task_id          string     UUIDv7 of the task
--   queue            string     queue of the task, as submitted
--   name             string     name of the task, as submitted
--   fairness_key     string     fairness key of the task, as submitted
--   weight           double     weight of the task, as submitted
--   priority         tinyint    priority of the task, as submitted
--   ordering_key     string?    ordering key of the task, as submitted; also null while no attempt
--                               is known
--   submitted_at     timestamp  time of the call of submit
--   first_ready_at   timestamp? first instant at which the task might run; the due time while no
--                               attempt is known
--   first_claimed_at timestamp? first claim by a node
--   first_started_at timestamp? first call of the handler
--   last_finished_at timestamp? end of the latest attempt
--   attempts         int        number of runs, lost ones included
--   retries          int        number of runs after the first
--   state            string     state after the latest attempt; state after the submit if there is
--                               no attempt
--   wait_us          bigint?    time from first_ready_at to first_claimed_at; null if never claimed
--   queue_us         bigint     time from ready to claimed, summed over all attempts
--   run_us           bigint     worker time of all attempts
--   e2e_us           bigint?    time from the submit to the end of the task; null if not ended
--   slowdown         double     bounded slowdown: (queue_us + run_us) / run_us, with run_us at
--                               least 10 s; at least 1
WITH later AS (
    -- Attempts that the rows of an earlier build, for days that bronze has deleted, do not count.
    SELECT sound_attempts.*
    FROM sound_attempts
    LEFT JOIN known_tasks USING (store_id, task_id)
    WHERE last_finished_at IS NULL OR finished_at > last_finished_at
), history AS (
    SELECT
        store_id, task_id, version,
        queue, name, fairness_key, weight, priority, submitted_at, ordering_key, next_state,
        CAST(NULL AS timestamp) AS due_at,
        ready_at, claimed_at, started_at, finished_at,
        CAST(started_at IS NOT NULL OR outcome = 'lost' AS int) AS runs,
        CASE
            -- The row of a task that a person marked as failed repeats the times of the last run.
            WHEN started_at IS NULL AND outcome = 'failed' THEN 0
            ELSE greatest(unix_micros(claimed_at) - unix_micros(ready_at), 0)
        END AS queue_us,
        coalesce(unix_micros(finished_at) - unix_micros(started_at), 0) AS run_us
    FROM later
    UNION ALL
    SELECT
        store_id, task_id,
        -- The version is below that of every attempt, because an attempt of a task cancelled at
        -- once still has the version of the submit.
        -1,
        queue, name, fairness_key, weight, priority, event.at, NULL,
        CASE WHEN run_at > event.at THEN 'WAITING' ELSE 'SUBMITTED' END,
        greatest(run_at, event.at),
        NULL, NULL, NULL, NULL, 0, 0, 0
    FROM sound_events AS event
    WHERE kind = 'submitted'
    UNION ALL
    SELECT
        store_id, task_id, -1,
        queue, name, fairness_key, weight, priority, submitted_at, ordering_key, state,
        CASE WHEN last_finished_at IS NULL THEN first_ready_at END,
        CASE WHEN last_finished_at IS NOT NULL THEN first_ready_at END,
        first_claimed_at, first_started_at, last_finished_at, attempts, queue_us, run_us
    FROM known_tasks
), by_task AS (
    -- Most tasks have one attempt, so summing before the shuffle would only sort all rows once
    -- more.
    SELECT /*+ REPARTITION(store_id, task_id) */ * FROM history
), summed AS (
    SELECT
        store_id, task_id,
        max_by(
            struct(
                queue, name, fairness_key, weight, priority, ordering_key, submitted_at,
                next_state, due_at
            ),
            version
        ) AS latest,
        min(ready_at) AS ready_at,
        min(claimed_at) AS first_claimed_at,
        min(started_at) AS first_started_at,
        max(finished_at) AS last_finished_at,
        CAST(sum(runs) AS int) AS attempts,
        sum(queue_us) AS queue_us,
        sum(run_us) AS run_us
    FROM by_task
    GROUP BY store_id, task_id
)
SELECT
    store_id, task_id, latest.queue, latest.name, latest.fairness_key, latest.weight,
    latest.priority, latest.ordering_key, latest.submitted_at,
    coalesce(ready_at, latest.due_at) AS first_ready_at,
    first_claimed_at, first_started_at, last_finished_at, attempts,
    greatest(attempts - 1, 0) AS retries,
    latest.next_state AS state,
    CASE
        WHEN first_claimed_at IS NOT NULL AND first_ready_at IS NOT NULL
        THEN greatest(unix_micros(first_claimed_at) - unix_micros(first_ready_at), 0)
    END AS wait_us,
    queue_us, run_us,
    CASE
        WHEN latest.next_state IN ('DONE', 'FAILED', 'CANCELLED', 'ERROR')
        THEN greatest(unix_micros(last_finished_at) - unix_micros(latest.submitted_at), 0)
    END AS e2e_us,
    -- Without the bound, a task of a millisecond would dominate every average.
    greatest((queue_us + run_us) / greatest(run_us, 10000000), 1) AS slowdown
FROM summed
