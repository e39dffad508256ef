-- table: gold.failures
-- doc: runs that failed, by hour and kind of error
-- key: hour, queue, name, error_fp
-- partition: date of hour
-- columns:
--   hour                timestamp  hour that contains finished_at
--   queue               string     queue of the runs
--   name                string     task name of the runs
--   error_fp            bigint     fingerprint of similar errors; for a run without an error,
--                                  CRC-32 of its outcome
--   n                   bigint     number of failed runs with this error
--   tasks               bigint     number of tasks that these runs belong to
--   retry_amplification double     number of all runs of this queue and name in the hour / number
--                                  of their tasks; 1: no retries
--   wasted_us           bigint     worker time spent on the failed runs
--   error_type          string     class of the earliest error; if its run has no error, the
--                                  outcome of the run
--   error_text          string?    text of the earliest error
--   first_seen          timestamp  finished_at of the first of these runs
--   last_seen           timestamp  finished_at of the last of these runs
--   recovered_at        timestamp? time of the first successful run of this queue and name after
--                                  last_seen, in the same hour
--   storm               boolean    whether there were at least 100 such runs, and they were more
--                                  than half of all runs of this queue and name in the hour
WITH runs AS (
    SELECT *,
        date_trunc('HOUR', finished_at) AS hour,
        CASE WHEN has_failed THEN coalesce(error_fp, crc32(outcome)) END AS error,
        attempt = 1 AND next_state = 'DONE' AND NOT has_failed AS is_single,
        CASE WHEN NOT is_single THEN task_id END AS task,
        CASE WHEN NOT is_single THEN store_id END AS store
    FROM measured_attempts
    WHERE is_run
), counted AS (
    -- Nearly all tasks succeed in their first run. Their runs form one group without a task id, in
    -- which there are as many tasks as runs.
    SELECT
        hour, queue, name, error, task, store,
        count(*) AS n,
        sum(coalesce(run_us, 0)) FILTER (WHERE has_failed) AS wasted_us,
        min(
            struct(finished_at, task_id, coalesce(error_type, outcome) AS error_type, error_text)
        ) FILTER (WHERE has_failed) AS earliest,
        max(finished_at) FILTER (WHERE has_failed) AS last_seen
    FROM runs
    GROUP BY hour, queue, name, error, task, store
), with_tasks AS (
    -- A task with several errors counts once. Runs without a task id are as many tasks.
    SELECT *,
        CASE
            WHEN task IS NULL THEN n
            WHEN row_number() OVER (
                PARTITION BY hour, queue, name, store, task ORDER BY error
            ) = 1 THEN 1
            ELSE 0
        END AS new_tasks
    FROM counted
), errors AS (
    SELECT
        hour, queue, name, error,
        sum(n) AS n,
        count(*) AS tasks,
        sum(new_tasks) AS new_tasks,
        sum(wasted_us) AS wasted_us,
        min(earliest) AS earliest,
        max(last_seen) AS last_seen
    FROM with_tasks
    GROUP BY hour, queue, name, error
), compared AS (
    SELECT *,
        sum(n) OVER (PARTITION BY hour, queue, name) AS all_n,
        sum(new_tasks) OVER (PARTITION BY hour, queue, name) AS all_tasks
    FROM errors
), failed AS (
    SELECT * FROM compared WHERE error IS NOT NULL
), ends AS (
    SELECT hour, queue, name, min(last_seen) AS first_end FROM failed GROUP BY hour, queue, name
), good AS (
    -- No run before the earliest end can be a recovery. Where failures are frequent, few remain.
    SELECT /*+ BROADCAST(ends) */ hour, queue, name, finished_at
    FROM runs
    JOIN ends USING (hour, queue, name)
    WHERE outcome = 'done' AND finished_at > first_end
), sorted AS (
    -- Sort errors and good runs together, latest first, for a running minimum. A join would pair
    -- every error with every later good run.
    SELECT hour, queue, name, last_seen AS seen, struct(failed.*) AS row FROM failed
    UNION ALL
    SELECT hour, queue, name, finished_at, NULL FROM good
), recovered AS (
    SELECT
        row,
        min(CASE WHEN row IS NULL THEN seen END) OVER (
            PARTITION BY hour, queue, name ORDER BY unix_micros(seen) DESC
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS recovered_at
    FROM sorted
)
SELECT
    row.hour, row.queue, row.name,
    row.error AS error_fp,
    row.n, row.tasks,
    row.all_n / row.all_tasks AS retry_amplification,
    row.wasted_us, row.earliest.error_type, row.earliest.error_text,
    row.earliest.finished_at AS first_seen,
    row.last_seen, recovered_at,
    row.n >= 100 AND 2 * row.n > row.all_n AS storm
FROM recovered
WHERE row IS NOT NULL
