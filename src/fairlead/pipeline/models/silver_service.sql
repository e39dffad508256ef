-- table: silver.service
-- doc: worker time that tasks of one key and name took in a minute; the sum of busy_us is exactly
--   the length of all runs
-- key: window_start, window_s, queue, fairness_key, name
-- partition: hour of window_start
-- columns:
--   window_start     timestamp first instant of the minute
--   window_s         int       length of the window in seconds: 60
--   queue            string    queue of the attempts
--   fairness_key     string    fairness key of the attempts
--   name             string    task name of the attempts
--   weight           double    greatest weight of an attempt that ran in the window
--   busy_us          bigint    worker time spent inside the window
--   weighted_us      double    busy_us, the time of each run divided by the weight of its task
--   attempts_started bigint    runs that started in the window
--   attempts_done    bigint    runs that finished in the window with outcome done
--   failed           bigint    runs that finished in the window with outcome failed, retried,
--                              timed_out or lost
--   wasted_us        bigint    busy_us of runs whose outcome is neither done nor snoozed
--   longest_run_us   bigint    full length of the longest run that took worker time in the window
WITH runs AS (
    SELECT *, unix_micros(started_at) AS start, unix_micros(finished_at) AS finish
    FROM sound_attempts
    WHERE started_at IS NOT NULL
), pieces AS (
    SELECT *,
        explode(
            sequence(start - start % 60000000, finish - finish % 60000000, 60000000L)
        ) AS minute
    FROM runs
), measured AS (
    SELECT *,
        least(finish, minute + 60000000) - greatest(start, minute) AS busy,
        finish < minute + 60000000 AS ends_here
    FROM pieces
)
SELECT
    timestamp_micros(minute) AS window_start,
    60 AS window_s,
    queue, fairness_key, name,
    max(weight) AS weight,
    sum(busy) AS busy_us,
    -- The last digits of a sum depend on the order of the rows.
    round(sum(busy / weight), 3) AS weighted_us,
    count_if(start >= minute) AS attempts_started,
    count_if(ends_here AND outcome = 'done') AS attempts_done,
    count_if(ends_here AND outcome IN ('failed', 'retried', 'timed_out', 'lost')) AS failed,
    sum(CASE WHEN outcome IN ('done', 'snoozed') THEN 0 ELSE busy END) AS wasted_us,
    max(CASE WHEN busy > 0 THEN finish - start ELSE 0 END) AS longest_run_us
FROM measured
GROUP BY minute, queue, fairness_key, name
