-- Statements of `tune`, for DuckDB. {gold.slo}: the rows of a table, of the dates of the period [$since, $until), which is
-- in microseconds since the epoch as all instants here. Durations are microseconds.

-- name: newest
SELECT max(epoch_us(window_start)) AS start FROM {gold.tenant_share}
 WHERE window_s = 60 AND window_start >= make_timestamptz($since) AND window_start < make_timestamptz($until)

-- name: use
-- The rows of each key and hour; with $peaks also its busiest minute, and whether tasks of the key waited throughout a minute.
WITH peaks AS (
    SELECT queue, fairness_key, date_trunc('hour', window_start) AS window_start, max(busy_us) AS most_us,
           bool_or(throughout) AS waited
      FROM {gold.tenant_share}
     WHERE $peaks AND window_s = 60 AND window_start >= make_timestamptz($since) AND window_start < make_timestamptz($until)
     GROUP BY 1, 2, 3
)
SELECT queue, fairness_key, epoch_us(window_start) AS start, weight, busy_us,
       weighted_us, claimed, demand_us, throughout,
       coalesce(most_us, 0) AS most_us, coalesce(waited, false) AS waited
  FROM {gold.tenant_share} LEFT JOIN peaks USING (queue, fairness_key, window_start)
 WHERE window_s = 3600 AND window_start >= make_timestamptz($since) AND window_start < make_timestamptz($until)
   AND ($queue::VARCHAR IS NULL OR queue = $queue)
 ORDER BY window_start

-- name: workers
-- The worker time of each queue and hour, and that of its busiest minute.
WITH minutes AS (
    SELECT queue, epoch_us(date_trunc('hour', window_start)) AS start, sum(busy_us) AS busy_us
      FROM {gold.tenant_share}
     WHERE window_s = 60 AND window_start >= make_timestamptz($since) AND window_start < make_timestamptz($until)
     GROUP BY queue, window_start
)
SELECT queue, start, sum(busy_us) AS busy_us, max(busy_us) AS most_us FROM minutes GROUP BY 1, 2 ORDER BY start

-- name: waits
-- The number of sound tasks (see quality.IS_SOUND) of each key (null: of all of them), and the p99 of their waits, by nearest rank as in the report.
SELECT fairness_key, count(*) AS tasks,
       quantile_disc(greatest(0, epoch_us(started_at) - epoch_us(ready_at)), 0.99) AS p99_us
  FROM {bronze.attempts}
 WHERE queue = $queue AND finished_at >= make_timestamptz($since) AND finished_at < make_timestamptz($until)
   AND ready_at IS NOT NULL AND started_at IS NOT NULL AND {sound} AND fairness_key <> '*'
   AND NOT list_contains($excluded::VARCHAR[], fairness_key)
 GROUP BY GROUPING SETS ((fairness_key), ())

-- name: incidents
-- The objectives whose newest state is `page`, without a queue, and the names of tasks with a failure storm.
SELECT NULL AS queue, slo_id AS name FROM {gold.slo}
 WHERE window_start >= make_timestamptz($since) AND window_start < make_timestamptz($until)
 GROUP BY slo_id HAVING arg_max(state, window_start) = 'page'
UNION
SELECT queue, name FROM {gold.failures}
 WHERE hour >= make_timestamptz($since) AND hour < make_timestamptz($until) AND storm AND recovered_at IS NULL
 ORDER BY queue NULLS FIRST, name
