-- Statements of the job `incidents`, for DuckDB. {silver.backlog}: the rows of the partitions of a table that are read.
-- Minutes are counted from the epoch.

-- name: first_minute
SELECT min(first) AS first FROM (
    SELECT min(epoch_us(minute)) // 60000000 AS first FROM {silver.backlog}
    UNION ALL SELECT min(epoch_us(window_start)) // 60000000 FROM {silver.service}
)

-- name: minutes
-- The minutes of a queue in which tasks waited, runs took time or ended, runs were lost, or keys starved.
WITH waited AS (
    SELECT queue, epoch_us(minute) // 60000000 AS minute, sum(depth_min) AS depth_min, sum(depth_end) AS depth_end,
           min(epoch_us(oldest_ready_at)) AS waits_since, sum(arrived) AS arrived, sum(claimed) AS claimed
      FROM {silver.backlog} GROUP BY 1, 2
), served AS (
    SELECT queue, epoch_us(window_start) // 60000000 AS minute, sum(attempts_done) AS done, sum(failed) AS failed,
           sum(busy_us) > 0 AS is_busy
      FROM {silver.service} GROUP BY 1, 2
), lost_runs AS (
    SELECT queue, epoch_us(finished_at) // 60000000 AS minute, node, count(*) AS n
      FROM {bronze.attempts} WHERE outcome = 'lost' AND node IS NOT NULL GROUP BY 1, 2, 3
), lost AS (
    SELECT queue, minute, map_from_entries(list((node, n) ORDER BY node)) AS lost FROM lost_runs GROUP BY 1, 2
), starving AS (
    SELECT queue, epoch_us(window_start) // 60000000 AS minute, list(fairness_key ORDER BY fairness_key) AS starved
      FROM {gold.tenant_share} WHERE starved AND window_s = 60 GROUP BY 1, 2
)
SELECT * FROM waited FULL JOIN served USING (queue, minute) FULL JOIN lost USING (queue, minute)
         FULL JOIN starving USING (queue, minute)

-- name: flooding
-- The keys that submitted many tasks in a minute.
SELECT queue, list(DISTINCT fairness_key) AS keys FROM {silver.backlog} WHERE arrived >= $least GROUP BY queue

-- name: arrivals
SELECT epoch_us(minute) // 60000000 AS minute, map_from_entries(list((fairness_key, arrived))) AS keys
  FROM {silver.backlog} WHERE queue = $queue AND list_contains($keys, fairness_key) GROUP BY 1

-- name: waits_of_key
SELECT 1 AS keys, coalesce(sum(depth_end), 0) AS minutes,
       coalesce(sum(arrived + if(epoch_us(minute) // 60000000 = $first, depth_min, 0)), 0) AS tasks
  FROM {silver.backlog}
 WHERE queue = $queue AND fairness_key = $subject AND epoch_us(minute) // 60000000 BETWEEN $first AND $last

-- name: keys_waiting
SELECT count(DISTINCT fairness_key) AS keys FROM {silver.backlog}
 WHERE queue = $queue AND epoch_us(minute) // 60000000 BETWEEN $first AND $last AND depth_end > 0

-- name: keys_failed
SELECT count(DISTINCT fairness_key) AS keys FROM {silver.service}
 WHERE queue = $queue AND epoch_us(window_start) // 60000000 BETWEEN $first AND $last AND failed > 0

-- name: keys_lost
SELECT count(DISTINCT fairness_key) AS keys FROM {bronze.attempts}
 WHERE queue = $queue AND epoch_us(finished_at) // 60000000 BETWEEN $first AND $last AND outcome = 'lost'
   AND node = $subject
