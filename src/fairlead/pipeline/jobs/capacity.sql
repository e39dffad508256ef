-- Statements of `capacity`, for DuckDB. {silver.backlog}: the rows of the partitions that are read. Minutes and hours are
-- counted from the epoch.

-- name: arrivals
SELECT queue, epoch_us(minute) // 60000000 AS minute, sum(arrived) AS tasks
  FROM {silver.backlog} GROUP BY 1, 2 HAVING sum(arrived) > 0

-- name: served
-- Sums by hour of the week. Run times: the time of a run is the harmonic mean of the bounds of its bucket. Worker time: that of
-- the tasks by the hour of their submit, and the part of deferrable tasks.
WITH buckets AS (
    SELECT queue, epoch_us(hour) // 3600000000 AS hour, n, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS us
      FROM {gold.latency_hist} WHERE fairness_key = '*' AND measure = 'run'
), runs AS (
    SELECT queue, (hour - $monday) % 168 AS hour_of_week, sum(n) AS n, sum(n * us) AS total, sum(n * us * us) AS squares
      FROM buckets WHERE hour BETWEEN $first AND $last GROUP BY 1, 2
), work AS (
    SELECT queue, (epoch_us(submitted_at) // 3600000000 - $monday) % 168 AS hour_of_week, sum(run_us) AS work_us,
           sum(run_us) FILTER (priority >= $deferrable) AS deferrable_us
      FROM {silver.tasks} GROUP BY 1, 2
)
SELECT queue, hour_of_week, coalesce(n, 0) AS n, coalesce(total, 0) AS total, coalesce(squares, 0) AS squares,
       coalesce(work_us, 0) AS work_us, coalesce(deferrable_us, 0) AS deferrable_us
  FROM runs FULL JOIN work USING (queue, hour_of_week)
