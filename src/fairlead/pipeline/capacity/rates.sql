-- Statements of `capacity`, for DuckDB. {silver.backlog}: the rows of the partitions that are read. Hours are counted from
-- the epoch.

-- name: arrivals
SELECT queue, epoch_us(minute) // 3600000000 AS hour, epoch_us(minute) // 60000000 % 60 AS minute, sum(arrived) AS tasks
  FROM {silver.backlog} GROUP BY 1, 2, 3 HAVING sum(arrived) > 0

-- name: runs
-- Number and sums of the run times by hour. The time of a run is the harmonic mean of the bounds of its bucket.
WITH found AS (
    SELECT queue, epoch_us(hour) // 3600000000 AS hour, n, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS us
      FROM {gold.latency_hist}
     WHERE fairness_key = '*' AND measure = 'run' AND epoch_us(hour) // 3600000000 BETWEEN $first AND $last
)
SELECT queue, hour, sum(n) AS n, sum(n * us) AS total, sum(n * us * us) AS squares FROM found GROUP BY 1, 2 ORDER BY 1, 2

-- name: work
-- Worker time of the tasks by the hour of their submit, and the part of deferrable tasks.
SELECT queue, epoch_us(submitted_at) // 3600000000 AS hour, coalesce(sum(run_us), 0) AS work_us,
       coalesce(sum(run_us) FILTER (priority >= $deferrable), 0) AS deferrable_us
  FROM {silver.tasks} GROUP BY 1, 2
