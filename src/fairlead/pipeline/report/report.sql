-- Statements of the report, for DuckDB. {gold.slo}: the rows of a table in the period, [$since, $until); of gold.cost, those
-- of the days of the period. The last three statements read all rows. Instants are microseconds since the epoch; a step
-- lasts $step_us. A statement returns at most $most rows. Durations are microseconds.

-- name: queues
SELECT queue, sum(busy_us) AS busy_us, sum(attempts_started) AS started, sum(attempts_done) AS done,
       sum(failed) AS failed, sum(wasted_us) AS wasted_us
  FROM {silver.service}
 GROUP BY queue ORDER BY busy_us DESC, queue LIMIT $most

-- name: keys
-- The position of a key: 1 for the key with most worker time, then alternately by lag and by worker time. The keys after
-- $top are one row of each queue, without a rank.
WITH by_key AS (
    SELECT queue, fairness_key, arg_max(weight, window_start) AS weight, sum(busy_us) AS busy_us,
           sum(entitled_us) AS entitled_us, max(lag_us) AS lag_us, arg_max(window_start, lag_us) AS lag_at
      FROM {gold.tenant_share}
     WHERE window_s = $window_s AND list_contains($queues, queue)
     GROUP BY queue, fairness_key
), ordered AS (
    SELECT *, row_number() OVER (PARTITION BY queue ORDER BY busy_us DESC, fairness_key) AS by_busy,
           row_number() OVER (PARTITION BY queue ORDER BY lag_us DESC, fairness_key) AS by_lag
      FROM by_key
), ranked AS (
    SELECT *, row_number() OVER (
               PARTITION BY queue ORDER BY least(by_busy, by_lag), by_busy, fairness_key) AS position
      FROM ordered
)
SELECT queue, CASE WHEN position <= $top THEN position END AS rank,
       CASE WHEN position <= $top THEN fairness_key END AS fairness_key, count(*) AS keys, max(weight) AS weight,
       sum(busy_us) AS busy_us, sum(entitled_us) AS entitled_us, max(lag_us) AS lag_us,
       arg_max(lag_at, lag_us) AS lag_at
  FROM ranked GROUP BY 1, 2, 3 ORDER BY queue, rank NULLS LAST

-- name: service
-- $shown: the keys with a rank, as a list of (queue, fairness_key, rank).
WITH shown AS (
    SELECT key.queue AS queue, key.fairness_key AS fairness_key, key.rank AS rank
      FROM (SELECT unnest($shown::STRUCT(queue VARCHAR, fairness_key VARCHAR, rank INTEGER)[]) AS key)
)
SELECT make_timestamptz((epoch_us(window_start) // $step_us) * $step_us) AS "at", queue, rank, sum(busy_us) AS busy_us,
       sum(entitled_us) AS entitled_us, arg_max(lag_us, abs(lag_us)) AS lag_us
  FROM {gold.tenant_share} LEFT JOIN shown USING (queue, fairness_key)
 WHERE window_s = $window_s AND queue IN (SELECT queue FROM shown)
 GROUP BY 1, 2, 3 ORDER BY queue, rank NULLS FIRST, "at"

-- name: fairness
-- The mean and the least of Jain's index over the windows of a step (null if no window could be judged), and the
-- greatest numbers of keys.
SELECT make_timestamptz((epoch_us(window_start) // $step_us) * $step_us) AS "at", queue, avg(jain) AS jain,
       min(jain) AS jain_least, max(n_keys) AS n_keys, max(starved_keys) AS starved_keys
  FROM {gold.fairness}
 WHERE window_s = $window_s AND list_contains($queues, queue)
 GROUP BY 1, 2 ORDER BY queue, "at"

-- name: fairness_by_queue
-- A window is judged if at least two keys had waiting tasks all the time.
SELECT queue, count(*) AS windows, count(bound_ok) AS judged, median(jain) AS jain_median, min(jain) AS jain_least,
       count(*) FILTER (bound_ok) AS within_bound, count(*) FILTER (starved_keys > 0) AS starved_windows,
       max(starved_keys) AS starved_keys, arg_max(noisy_key, noisy_score) AS noisy_key,
       max(noisy_score) AS noisy_score, arg_max(max_lag_key, max_lag_us) AS max_lag_key, max(max_lag_us) AS max_lag_us
  FROM {gold.fairness}
 WHERE window_s = $window_s
 GROUP BY queue ORDER BY queue LIMIT $most

-- name: pickup
-- The buckets of all names are merged, because percentiles of percentiles would be wrong. The value of a bucket is
-- the harmonic mean of its bounds, at most the greatest duration in it.
WITH buckets AS (
    SELECT (epoch_us(hour) // $step_us) * $step_us AS "at", queue, bucket, sum(n) AS n, max(max_us) AS max_us
      FROM {gold.latency_hist}
     WHERE fairness_key = '*' AND measure = 'pickup' AND list_contains($queues, queue)
     GROUP BY ALL
), counted AS (
    SELECT *, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS value,
           sum(n) OVER (PARTITION BY "at", queue ORDER BY bucket) AS up_to, sum(n) OVER (PARTITION BY "at", queue) AS total
      FROM buckets
)
SELECT make_timestamptz("at") AS "at", queue, sum(n) AS n, min(value) FILTER (up_to * 1000 >= total * 500) AS p50,
       min(value) FILTER (up_to * 1000 >= total * 990) AS p99, min(value) FILTER (up_to * 1000 >= total * 999) AS p999
  FROM counted GROUP BY 1, 2 ORDER BY queue, "at"

-- name: names
-- Pickup and run times over the whole period, longest pickup p99 first.
WITH buckets AS (
    SELECT queue, name, measure, bucket, sum(n) AS n, max(max_us) AS max_us
      FROM {gold.latency_hist}
     WHERE fairness_key = '*' AND measure IN ('pickup', 'run')
     GROUP BY ALL
), counted AS (
    SELECT *, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS value,
           sum(n) OVER (PARTITION BY queue, name, measure ORDER BY bucket) AS up_to,
           sum(n) OVER (PARTITION BY queue, name, measure) AS total
      FROM buckets
), measured AS (
    SELECT queue, name, measure, sum(n) AS n, min(value) FILTER (up_to * 1000 >= total * 500) AS p50,
           min(value) FILTER (up_to * 1000 >= total * 990) AS p99,
           min(value) FILTER (up_to * 1000 >= total * 999) AS p999, max(max_us) AS max_us
      FROM counted GROUP BY 1, 2, 3
), run AS (
    SELECT queue, name, p50 AS run_p50, p99 AS run_p99 FROM measured WHERE measure = 'run'
)
SELECT queue, name, n, p50, p99, p999, max_us, run_p50, run_p99
  FROM measured LEFT JOIN run USING (queue, name)
 WHERE measure = 'pickup' ORDER BY p99 DESC, queue, name LIMIT $most

-- name: hours_of_week
-- All queues together. An hour is 0 (Monday 00:00 UTC) to 167; busy_us is the sum over all such hours of the period.
WITH load AS (
    SELECT ((epoch_us(window_start) - $first_monday) // 3600000000) % 168 AS hour, sum(busy_us) AS busy_us
      FROM {gold.tenant_share}
     WHERE window_s = 3600
     GROUP BY 1
), buckets AS (
    SELECT ((epoch_us(hist.hour) - $first_monday) // 3600000000) % 168 AS hour, bucket, sum(n) AS n,
           max(max_us) AS max_us
      FROM {gold.latency_hist} AS hist
     WHERE fairness_key = '*' AND measure = 'pickup'
     GROUP BY 1, 2
), counted AS (
    SELECT *, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS value,
           sum(n) OVER (PARTITION BY hour ORDER BY bucket) AS up_to, sum(n) OVER (PARTITION BY hour) AS total
      FROM buckets
), waits AS (
    SELECT hour, sum(n) AS n, min(value) FILTER (up_to * 1000 >= total * 500) AS p50,
           min(value) FILTER (up_to * 1000 >= total * 990) AS p99
      FROM counted GROUP BY hour
)
SELECT hour::INTEGER AS hour, busy_us, n, p50, p99 FROM load FULL JOIN waits USING (hour) ORDER BY hour

-- name: slowdown
-- Finished tasks by slowdown, and by load of their queue in the minute in which they became ready: a part of the load of
-- its busiest minute. Source: Feitelson, Workload Modeling for Computer Systems Performance Evaluation, 2015, which judges
-- a system under each load separately.
WITH minutes AS (
    SELECT queue, epoch_us(window_start) // 60000000 AS minute, sum(busy_us) AS busy_us
      FROM {silver.service}
     GROUP BY 1, 2
), loads AS (
    SELECT queue, minute, busy_us / nullif(max(busy_us) OVER (PARTITION BY queue), 0) AS load FROM minutes
), finished AS (
    SELECT queue, slowdown, epoch_us(coalesce(first_ready_at, submitted_at)) // 60000000 AS minute
      FROM {silver.tasks}
     WHERE e2e_us IS NOT NULL AND attempts > 0
)
SELECT least(floor(coalesce(load, 0) * $load_bins), $load_bins - 1)::INTEGER AS load,
       least(floor(ln(slowdown) / ln($slowdown_step)), $slowdown_bins)::INTEGER AS slowdown, count(*) AS n
  FROM finished LEFT JOIN loads USING (queue, minute)
 GROUP BY 1, 2 ORDER BY 1, 2

-- name: objectives
-- The last window of each objective, and sums over the whole period; least budget first.
WITH found AS (
    SELECT slo_id, arg_max({'at': window_start, 'objective': objective, 'budget_left': budget_left, 'burn_1h': burn_1h,
                            'burn_6h': burn_6h, 'burn_3d': burn_3d, 'state': state}, window_start) AS last,
           sum(good) AS good, sum(bad) AS bad, count(*) FILTER (state = 'page') * $slo_step_s AS page_s,
           count(*) FILTER (state = 'ticket') * $slo_step_s AS ticket_s
      FROM {gold.slo}
     GROUP BY slo_id
)
SELECT slo_id, unnest(last), good, bad, page_s, ticket_s FROM found
 ORDER BY last.budget_left NULLS FIRST, slo_id LIMIT $most

-- name: budgets
-- $states: the states, the worst one last.
SELECT make_timestamptz((epoch_us(window_start) // $step_us) * $step_us) AS "at", slo_id,
       arg_max_null(budget_left, window_start) AS budget_left,
       arg_max(state, list_position($states, state)) AS state
  FROM {gold.slo}
 WHERE list_contains($slo_ids, slo_id)
 GROUP BY 1, 2 ORDER BY slo_id, "at"

-- name: failures
-- Groups of similar errors; the texts are those of the earliest error.
SELECT queue, name, arg_min(error_type, first_seen) AS error_type, arg_min_null(error_text, first_seen) AS error_text,
       sum(n) AS n, sum(wasted_us) AS wasted_us, min(first_seen) AS first_seen, max(last_seen) AS last_seen,
       max(retry_amplification) AS retry_amplification, count(*) FILTER (storm) AS storm_hours
  FROM {gold.failures}
 GROUP BY queue, name, error_fp ORDER BY n DESC, queue, name, error_fp LIMIT $most

-- name: failures_over_time
-- The error type is null for all but the most frequent ones.
WITH failed AS (
    SELECT hour, error_type, n FROM {gold.failures}
), frequent AS (
    SELECT error_type FROM failed GROUP BY error_type ORDER BY sum(n) DESC, error_type LIMIT $types
)
SELECT make_timestamptz((epoch_us(hour) // $step_us) * $step_us) AS "at",
       CASE WHEN error_type IN (SELECT error_type FROM frequent) THEN error_type END AS error_type, sum(n) AS n
  FROM failed GROUP BY 1, 2 ORDER BY "at", error_type NULLS FIRST

-- name: storms
-- In a storm, one error makes at least 100 runs of a name fail in an hour, and more than half of all its runs.
SELECT hour, queue, name, error_type, n, retry_amplification, wasted_us, last_seen, recovered_at
  FROM {gold.failures}
 WHERE storm
 ORDER BY hour DESC, n DESC, queue, name, error_type LIMIT $most

-- name: cost
-- Days are whole, even where the period has only a part of one. Amounts are all 0 without a bill. The key '*' stands for
-- paid time in which no key ran anything; the keys after $top are one row, without a rank.
WITH by_key AS (
    SELECT fairness_key, sum(busy_us) AS busy_us, sum(wasted_us) AS wasted_us,
           sum(idle_allocated_us) AS idle_allocated_us, sum(amount) AS amount
      FROM {gold.cost} GROUP BY fairness_key
), ranked AS (
    SELECT *, row_number() OVER (ORDER BY amount DESC, busy_us DESC, fairness_key) AS position FROM by_key
)
SELECT CASE WHEN position <= $top THEN position END AS rank,
       CASE WHEN position <= $top THEN fairness_key END AS fairness_key, count(*) AS keys, sum(busy_us) AS busy_us,
       sum(wasted_us) AS wasted_us, sum(idle_allocated_us) AS idle_allocated_us, sum(amount) AS amount
  FROM ranked GROUP BY 1, 2 ORDER BY rank NULLS LAST

-- name: quarantined
-- Instants are texts, because a wrong clock may be off by more years than pandas can hold.
SELECT split_part(source, '/', 1) AS source, "column", reason, count(*) AS rows,
       strftime(make_timestamp(epoch_us(min(seen_at))), '%Y-%m-%d %H:%M') AS first_seen,
       strftime(make_timestamp(epoch_us(max(seen_at))), '%Y-%m-%d %H:%M') AS last_seen
  FROM {bronze.quarantine}
 GROUP BY 1, 2, 3 ORDER BY rows DESC, source, reason LIMIT $most

-- name: newest
-- {rows}, {instant}: a table and its column with the instant of a row.
SELECT max({instant}) FILTER ({instant} <= make_timestamptz($now)) AS newest FROM {rows}

-- name: last_runs
SELECT job, started_at, seconds, state, rows_out, quarantined, error, checks
  FROM {ops.pipeline_runs} QUALIFY row_number() OVER (PARTITION BY job ORDER BY started_at DESC) = 1
 ORDER BY job
