-- table: gold.tenant_share
-- doc: worker time that each key of a queue got in a window, and its entitlement
-- key: window_start, window_s, queue, fairness_key
-- partition: date of window_start
-- columns:
--   window_start        timestamp start of the window
--   window_s            int       length of the window in seconds: 60, 3600, or 86400 for a day
--                                 (UTC)
--   queue               string    queue of the tasks
--   fairness_key        string    fairness key of the tasks
--   busy_us             bigint    worker time that the key got
--   share               double    fraction of the queue's worker time in the window, 0 to 1; 0 if
--                                 no key got any
--   weight              double    weight that the claimed tasks were submitted with: their harmonic
--                                 mean, which is one weight for all of them with the same effect on
--                                 the order; without a claim, that of the worker time; without
--                                 both, the greatest weight of a waiting task
--   weighted_us         double    busy_us, the time of each run divided by the weight of its task
--   demand_us           bigint    worker time that the key could have used: work that remained at
--                                 the start of the window, and work that arrived during it
--   entitled_us         bigint    worker time due to the key if time is divided by weight and no
--                                 key gets more than its demand
--   deficit_us          bigint    entitled_us - busy_us; below 0 if the key got more than it was
--                                 entitled to
--   lag_us              bigint    sum of deficit_us since midnight or since the last window without
--                                 backlog; 0 in a window without backlog
--   backlogged_fraction double    fraction of the window in which tasks of the key waited, 0 to 1
--   throughout          boolean   whether tasks of the key waited throughout every minute of the
--                                 window
--   claimed             bigint    number of tasks of the key that nodes claimed in the window
--   longest_run_us      bigint    length of the key's longest run of the day
--   starved             boolean   whether, in some minute of the window, tasks had waited without
--                                 any claim for at least a minute and at least 10 x the queue's
--                                 median pickup (time from ready to started) of that day
WITH sources AS (
    SELECT
        queue, fairness_key, unix_seconds(window_start) AS minute, weight,
        busy_us, weighted_us, longest_run_us,
        0L AS work_us, 0L AS arrived_us, 0L AS backlogged_us, 0L AS claimed, 0D AS strides,
        0L AS depth_min, 0L AS full_minutes
    FROM silver_service
    UNION ALL
    SELECT
        queue, fairness_key, unix_seconds(minute), weight,
        0, 0, 0, work_us, arrived_us, backlogged_us, claimed, strides, depth_min,
        -- Times are rounded down to seconds, so depth_min can be 0 although some task waited all
        -- the time.
        CAST(depth_min > 0 OR backlogged_us >= 60000000 AS bigint)
    FROM silver_backlog
), of_day AS (
    -- Shuffle the rows once: all sums and carried values stay within a key's day.
    SELECT /*+ REPARTITION(day, queue, fairness_key) */ *, minute - minute % 86400 AS day
    FROM sources
), minutes AS (
    SELECT
        day, queue, fairness_key, minute,
        max(weight) AS weight,
        max(longest_run_us) AS longest_run_us,
        sum(busy_us) AS busy_us,
        sum(weighted_us) AS weighted_us,
        sum(work_us) AS work_us,
        sum(arrived_us) AS arrived_us,
        sum(backlogged_us) AS backlogged_us,
        sum(claimed) AS claimed,
        sum(strides) AS strides,
        sum(full_minutes) AS full_minutes,
        sum(depth_min) > 0 AND sum(claimed) = 0 AS unserved
    FROM of_day
    GROUP BY day, queue, fairness_key, minute
), followed AS (
    SELECT *,
        minute - lag(minute, 1, 0) OVER (
            PARTITION BY day, queue, fairness_key ORDER BY minute
        ) = 60 AS follows,
        -- The bound of start-time fair queueing is about the longest run a key may have, even
        -- while the key waits.
        max(longest_run_us) OVER (PARTITION BY day, queue, fairness_key) AS longest_of_day
    FROM minutes
), waited AS (
    -- A wait is counted from midnight at the earliest. No task waited in a minute without a row.
    SELECT *,
        minute + 60 - max(
            CASE WHEN NOT unserved THEN minute + 60 WHEN NOT follows THEN minute END
        ) OVER (PARTITION BY day, queue, fairness_key ORDER BY minute) AS waited_s
    FROM followed
), pickups AS (
    SELECT
        unix_seconds(window_start) AS day,
        queue,
        CAST(percentile_approx(p50, 0.5) AS bigint) AS pickup_p50_us
    FROM gold_latency
    WHERE window_s = 86400 AND measure = 'pickup' AND fairness_key = '*'
    GROUP BY window_start, queue
), marked AS (
    SELECT /*+ BROADCAST(pickups) */
        waited.*,
        unserved AND waited_s >= greatest(60, 10 * pickup_p50_us / 1000000) AS starved,
        explode(array(60, 3600, 86400)) AS window_s
    FROM waited
    LEFT JOIN pickups USING (day, queue)
), keys AS (
    SELECT
        day, queue, fairness_key, window_s,
        minute - minute % window_s AS start,
        sum(busy_us) AS busy_us,
        -- The last digits of a sum depend on the order of the rows.
        round(sum(weighted_us), 3) AS weighted_us,
        coalesce(
            round(try_divide(sum(claimed), sum(strides)), 9),
            round(try_divide(sum(busy_us), sum(weighted_us)), 9),
            max(weight)
        ) AS weight,
        -- Work left from the window before counts once, at the start. Later minutes add only the
        -- work that arrived in them.
        sum(arrived_us + CASE WHEN minute % window_s = 0 THEN work_us ELSE 0 END) AS demand_us,
        sum(backlogged_us) AS backlogged_us,
        sum(full_minutes) * 60 = window_s AS throughout,
        sum(claimed) AS claimed,
        max(longest_of_day) AS longest_run_us,
        max(starved) AS starved
    FROM marked
    GROUP BY day, queue, fairness_key, window_s, minute - minute % window_s
), filled AS (
    -- Shares are max-min fair, by water-filling: each key gets min(demand, level x weight). Keys
    -- fill up in the order of demand / weight. If the water stops at a key, the keys before it are
    -- full, and the level is (capacity - demand of the full keys) / (weight of the others). This
    -- value rises up to that key and falls after it, so the level is the greatest value. The
    -- largest come first, so that weights are summed without cancellation.
    SELECT *,
        coalesce(try_divide(busy_us, sum(busy_us) OVER rivals), 0) AS share,
        (sum(busy_us) OVER rivals - sum(demand_us) OVER rivals + sum(demand_us) OVER thirstiest)
        / sum(weight) OVER thirstiest AS level_here
    FROM keys
    WINDOW
        rivals AS (PARTITION BY window_s, start, queue),
        thirstiest AS (
            PARTITION BY window_s, start, queue ORDER BY demand_us / weight DESC, fairness_key
        )
), levelled AS (
    SELECT *,
        weight * max(level_here) OVER (PARTITION BY window_s, start, queue) AS by_weight
    FROM filled
), entitled AS (
    SELECT *,
        CASE
            WHEN by_weight < demand_us THEN CAST(round(by_weight) AS bigint) ELSE demand_us
        END AS entitled_us
    FROM levelled
), summed AS (
    SELECT *,
        entitled_us - busy_us AS deficit_us,
        sum(entitled_us - busy_us) OVER along AS deficits,
        coalesce(
            start - lag(start) OVER along = window_s
            AND backlogged_us > 0
            AND lag(backlogged_us) OVER along > 0,
            false
        ) AS goes_on
    FROM entitled
    WINDOW along AS (PARTITION BY day, queue, fairness_key, window_s ORDER BY start)
), lagging AS (
    SELECT *,
        deficits - last(CASE WHEN NOT goes_on THEN deficits - deficit_us END, true) OVER (
            PARTITION BY day, queue, fairness_key, window_s ORDER BY start
        ) AS lag_us
    FROM summed
)
SELECT
    timestamp_seconds(start) AS window_start,
    window_s, queue, fairness_key, busy_us, share, weight, weighted_us, demand_us, entitled_us,
    deficit_us,
    CASE WHEN backlogged_us > 0 THEN lag_us ELSE 0 END AS lag_us,
    backlogged_us / (window_s * 1e6) AS backlogged_fraction,
    throughout, claimed, longest_run_us, starved
FROM lagging
