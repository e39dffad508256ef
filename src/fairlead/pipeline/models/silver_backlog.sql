-- table: silver.backlog
-- doc: waiting tasks of a key in a minute, counted once a second; a minute without waiting tasks,
--   arrivals and remaining work has no row
-- key: minute, queue, fairness_key
-- partition: hour of minute
-- given: build_hours (hour), the hours to compute, :first and :last of them, and :known, the end of
--   the minute up to which history is known; all in microseconds since the epoch
-- columns:
--   minute          timestamp  first instant of the minute
--   queue           string     queue of the tasks
--   fairness_key    string     fairness key of the tasks
--   weight          double     greatest weight of a task that waited or ran in the hour
--   arrived         bigint     number of tasks that became ready in the minute
--   arrived_us      bigint     worker time that these tasks took later; 0 while unknown
--   claimed         bigint     number of tasks that a node claimed in the minute
--   strides         double     sum of 1 / weight of the claimed tasks
--   depth_end       bigint     number of tasks waiting in the last second of the minute
--   depth_min       bigint     least number of tasks waiting at the start or in any second of the
--                              minute
--   backlogged_us   bigint     total length of the seconds in which any task waited
--   work_us         bigint     remaining worker time, at the start of the minute, of tasks that
--                              were ready before
--   oldest_ready_at timestamp? earliest ready_at of the tasks waiting in the last second of the
--                              minute
WITH attempts AS (
    -- Clocks of machines may differ. So ready_at and claimed_at count as at most finished_at, which
    -- decides the partition of the row.
    SELECT *,
        least(unix_micros(ready_at), unix_micros(finished_at)) AS ready,
        least(unix_micros(claimed_at), unix_micros(finished_at)) AS claimed,
        unix_micros(started_at) AS started,
        unix_micros(finished_at) AS finished,
        started_at IS NULL AND outcome IN ('cancelled', 'failed') AS ended_by_hand
    FROM sound_attempts
    WHERE ready_at IS NOT NULL
), stays AS (
    -- A stay: a task waits in [ready, left_at) and runs in [start, finish).
    SELECT
        queue, fairness_key, weight, ready,
        -- The row of a task that a person ended has the times of the run before: no node claimed
        -- the task since it became ready again.
        claimed_at IS NOT NULL AND NOT (ended_by_hand AND claimed_at < ready_at) AS is_claimed,
        greatest(ready, CASE WHEN is_claimed THEN claimed ELSE finished END) AS left_at,
        greatest(ready, started) AS start,
        CASE WHEN started IS NULL THEN ready ELSE finished END AS finish,
        coalesce(finished - started, 0) AS run_us
    FROM attempts
    -- A task that a person marked as failed was not waiting for a run.
    WHERE NOT (ended_by_hand AND outcome = 'failed')
    UNION ALL
    SELECT
        queue, fairness_key, weight, unix_micros(ready_at), false,
        greatest(unix_micros(ready_at), :known), unix_micros(ready_at), unix_micros(ready_at), 0
    FROM silver_open_tasks
), hours AS (
    SELECT *,
        explode(
            sequence(
                greatest(ready - ready % 3600000000, :first),
                least(ends - ends % 3600000000, :last),
                3600000000
            )
        ) AS hour
    FROM (SELECT *, greatest(left_at, finish) AS ends FROM stays)
    WHERE ready < :last + 3600000000 AND ends >= :first
), placed AS (
    -- Shuffle the rows once, while there is one row for each hour of a stay: no later step needs
    -- rows of two hours. Instants become offsets in the hour; a minute before the hour stands for
    -- all instants before, and 3600000000 for all after.
    SELECT /*+ BROADCAST(build_hours), REPARTITION(hour, queue, fairness_key) */
        hour, queue, fairness_key, weight, is_claimed, ready, run_us,
        greatest(finish - greatest(start, hour), 0) AS outstanding,
        greatest(least(ready - hour, 3600000000), -60000000) AS ready_in,
        greatest(least(left_at - hour, 3600000000), -60000000) AS left_in,
        greatest(least(start - hour, 3600000000), -60000000) AS start_in,
        greatest(least(finish - hour, 3600000000), -60000000) AS finish_in
    FROM hours
    JOIN build_hours USING (hour)
), gridded AS (
    -- The number of waiting tasks changes at whole seconds, all other numbers at whole minutes.
    SELECT *,
        ready_in - pmod(ready_in, 60000000) AS ready_minute,
        left_in - pmod(left_in, 60000000) AS left_minute,
        start_in - pmod(start_in, 60000000) AS start_minute,
        finish_in - pmod(finish_in, 60000000) AS finish_minute,
        ready_in - pmod(ready_in, 1000000) AS ready_second,
        left_in - pmod(left_in, 1000000) AS left_second
    FROM placed
), changed AS (
    -- A wait within one second counts only in the sums of its minutes.
    SELECT *,
        explode(
            array_distinct(
                array(
                    ready_minute, left_minute, start_minute, finish_minute,
                    if(ready_second = left_second, ready_minute, ready_second),
                    if(ready_second = left_second, ready_minute, left_second)
                )
            )
        ) AS at
    FROM gridded
), changes AS (
    SELECT
        hour, queue, fairness_key, at,
        max(weight) AS weight,
        sum(if(ready_minute = at, 1, 0)) AS arrived,
        sum(if(ready_minute = at, run_us, 0)) AS arrived_us,
        sum(if(left_minute = at AND is_claimed, 1, 0)) AS claimed,
        sum(if(left_minute = at AND is_claimed, 1 / weight, 0)) AS strides,
        sum(if(ready_second = at, 1, 0) - if(left_second = at, 1, 0)) AS depth,
        sum(if(ready_minute = at, outstanding, 0)) AS work,
        sum(if(start_minute = at, 1, 0) - if(finish_minute = at, 1, 0)) AS running,
        -- Sum of the offsets at which runs began.
        sum(
            if(start_minute = at, greatest(start_in, 0), 0)
            - if(finish_minute = at, greatest(finish_in, 0), 0)
        ) AS run_from,
        min(if(left_minute = at, ready, NULL)) AS oldest
    FROM changed
    GROUP BY hour, queue, fairness_key, at
), steps AS (
    SELECT *,
        at - pmod(at, 60000000) AS minute,
        sum(depth) OVER along AS depth_now,
        lead(at, 1, 3600000000) OVER along AS next
    FROM changes
    WINDOW along AS (PARTITION BY hour, queue, fairness_key ORDER BY at)
), minutes AS (
    SELECT
        hour, queue, fairness_key, minute,
        max(weight) AS weight,
        sum(arrived) AS arrived,
        sum(arrived_us) AS arrived_us,
        sum(claimed) AS claimed,
        sum(strides) AS strides,
        sum(depth) AS depth,
        sum(work) AS work,
        sum(running) AS running,
        sum(run_from) AS run_from,
        min(oldest) AS oldest,
        min(depth_now) AS depth_least,
        sum(if(depth_now > 0, least(next, minute + 60000000) - at, 0)) AS backlogged,
        min(at) AS first_change
    FROM steps
    GROUP BY hour, queue, fairness_key, minute
), totals AS (
    -- The totals include stays that began before the hour.
    SELECT * EXCEPT (weight, oldest),
        sum(depth) OVER along AS depth_end,
        sum(work) OVER along AS total_work,
        sum(running) OVER along AS total_running,
        sum(run_from) OVER along AS total_run_from,
        lead(minute, 1, 3600000000) OVER along AS next,
        max(weight) OVER (PARTITION BY hour, queue, fairness_key) AS weight,
        -- A ready task waits now if it leaves the queue in a later minute. So the oldest waiting
        -- task has the least ready_at of all tasks that leave later.
        min(oldest) OVER (
            PARTITION BY hour, queue, fairness_key ORDER BY minute
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS oldest
    FROM minutes
    WINDOW along AS (PARTITION BY hour, queue, fairness_key ORDER BY minute)
), dense AS (
    -- A minute without changes has a row while tasks wait or work is outstanding.
    SELECT *,
        explode(
            sequence(
                minute,
                if(
                    depth_end > 0
                    OR total_work + total_run_from > (minute + 60000000) * total_running,
                    next - 60000000,
                    minute
                ),
                60000000L
            )
        ) AS at
    FROM totals
    WHERE minute < 3600000000
), measured AS (
    -- The work outstanding is the work that was ready, minus what each run has had since its
    -- start. Changes of the minute itself are taken out of the totals.
    SELECT
        hour, queue, fairness_key, weight, at, depth_end,
        if(at = minute, arrived, 0) AS arrived,
        if(at = minute, arrived_us, 0) AS arrived_us,
        if(at = minute, claimed, 0) AS claimed,
        if(at = minute, strides, 0) AS strides,
        if(at = minute, least(depth_end - depth, depth_least), depth_end) AS depth_min,
        CASE
            WHEN at = minute
            THEN backlogged + if(depth_end - depth > 0, first_change - at, 0)
            ELSE if(depth_end > 0, 60000000, 0)
        END AS backlogged_us,
        if(
            at = minute,
            total_work - work + total_run_from - run_from - at * (total_running - running),
            total_work + total_run_from - at * total_running
        ) AS work_us,
        if(depth_end > 0, oldest, NULL) AS oldest
    FROM dense
    WHERE at >= 0
)
SELECT
    timestamp_micros(hour + at) AS minute,
    queue, fairness_key, weight, arrived, arrived_us, claimed,
    -- The last digits of a sum depend on the order of the rows.
    round(strides, 9) AS strides,
    depth_end, depth_min, backlogged_us, work_us,
    timestamp_micros(oldest) AS oldest_ready_at
FROM measured
-- Leave out a minute whose only change is a stay that ended just before the minute.
WHERE greatest(arrived, claimed, backlogged_us, work_us) > 0
