-- Statements of the report, for DuckDB. {gold.slo}: the rows of a table in the period, [$since, $until); of gold.cost, those
-- of the days of the period. Instants are microseconds since the epoch; a step lasts $step_us. A statement returns at most
-- $most rows. Durations are microseconds. $queues: the queues that are drawn.

-- name: queues
SELECT queue, sum(busy_us) AS busy_us, sum(busy_us) / ($until - $since) AS workers, sum(attempts_started) AS started,
       sum(failed) AS failed, sum(failed) / nullif(sum(attempts_started), 0) AS failed_part, sum(wasted_us) AS wasted_us,
       sum(wasted_us) / nullif(sum(busy_us), 0) AS wasted_part
  FROM {silver.service}
 GROUP BY queue ORDER BY busy_us DESC, queue LIMIT $most

-- name: share
-- Keys by worker time and by lag, alternately; the keys after $top are one row of each queue, without a name.
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
), grouped AS (
    SELECT queue, CASE WHEN position <= $top THEN position END AS rank,
           CASE WHEN position <= $top THEN fairness_key END AS fairness_key, count(*) AS keys, max(weight) AS weight,
           sum(busy_us) AS busy_us, sum(entitled_us) AS entitled_us, max(lag_us) AS lag_us,
           arg_max(lag_at, lag_us) AS lag_at
      FROM ranked GROUP BY 1, 2, 3
)
SELECT queue, fairness_key, keys, weight, busy_us, busy_us / nullif(sum(busy_us) OVER (PARTITION BY queue), 0) AS part,
       entitled_us, busy_us / nullif(entitled_us, 0) AS got, lag_us, lag_at
  FROM grouped ORDER BY queue, rank IS NULL, busy_us DESC, fairness_key

-- name: share_over_time
-- The key is null for all but the $lines keys of a queue with most worker time.
WITH found AS (
    SELECT make_timestamptz((epoch_us(window_start) // $step_us) * $step_us) AS "at", queue, fairness_key, busy_us
      FROM {gold.tenant_share}
     WHERE window_s = $window_s AND list_contains($queues, queue)
), ranked AS (
    SELECT queue, fairness_key, row_number() OVER (PARTITION BY queue ORDER BY sum(busy_us) DESC, fairness_key) AS rank
      FROM found GROUP BY queue, fairness_key
)
SELECT "at", queue, CASE WHEN rank <= $lines THEN fairness_key END AS line, sum(busy_us) / $step_us AS value
  FROM found JOIN ranked USING (queue, fairness_key)
 GROUP BY 1, 2, 3 ORDER BY queue, min(rank), "at"

-- name: fairness
-- A window is judged if at least two keys had waiting tasks all the time.
SELECT queue, count(*) AS windows, count(bound_ok) AS judged, median(jain) AS jain_median, min(jain) AS jain_least,
       count(*) FILTER (bound_ok) AS within_bound, count(*) FILTER (starved_keys > 0) AS starved_windows,
       max(starved_keys) AS starved_keys, arg_max(max_lag_key, max_lag_us) AS max_lag_key, max(max_lag_us) AS max_lag_us,
       arg_max(noisy_key, noisy_score) AS noisy_key, max(noisy_score) AS noisy_score
  FROM {gold.fairness}
 WHERE window_s = $window_s
 GROUP BY queue ORDER BY queue LIMIT $most

-- name: pickup_over_time
-- The buckets of all names are merged, because percentiles of percentiles would be wrong. The value of a bucket is the
-- harmonic mean of its bounds, at most the greatest duration in it.
WITH buckets AS (
    SELECT (epoch_us(hour) // $hours_us) * $hours_us AS "at", queue, bucket, sum(n) AS n, max(max_us) AS max_us
      FROM {gold.latency_hist}
     WHERE fairness_key = '*' AND measure = 'pickup' AND list_contains($queues, queue)
     GROUP BY ALL
), counted AS (
    SELECT *, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS value,
           sum(n) OVER (PARTITION BY "at", queue ORDER BY bucket) AS up_to, sum(n) OVER (PARTITION BY "at", queue) AS total
      FROM buckets
)
SELECT make_timestamptz("at") AS "at", queue, line, min(value) FILTER (up_to * 1000 >= total * part) / 1e6 AS value
  FROM counted CROSS JOIN (VALUES ('50 %', 500), ('99 %', 990), ('99.9 %', 999)) AS parts (line, part)
 GROUP BY "at", queue, line, part ORDER BY part, queue, "at"

-- name: pickup
-- Pickup and run times by name over the whole period, longest pickup p99 first.
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
 WHERE measure = 'pickup' ORDER BY p99 DESC, queue, name LIMIT $top

-- name: objectives
-- The last window of each objective, and sums over the whole period; least budget first.
WITH found AS (
    SELECT slo_id, arg_max({'objective': objective, 'budget_left': budget_left, 'burn_1h': burn_1h, 'burn_6h': burn_6h,
                            'burn_3d': burn_3d, 'state': state}, window_start) AS last,
           sum(good) AS good, sum(bad) AS bad, sum(good) / nullif(sum(good) + sum(bad), 0) AS good_part,
           count(*) FILTER (state = 'page') * $slo_us AS page_us, count(*) FILTER (state = 'ticket') * $slo_us AS ticket_us
      FROM {gold.slo}
     GROUP BY slo_id
)
SELECT slo_id, unnest(last), good, bad, good_part, page_us, ticket_us FROM found
 ORDER BY last.budget_left NULLS FIRST, slo_id LIMIT $most

-- name: failures
-- Groups of similar errors; the texts are those of the earliest error. In an hour of a storm, one error makes at least 100
-- runs of a name fail, and more than half of all its runs.
SELECT queue, name, arg_min(error_type, first_seen) AS error_type, arg_min_null(error_text, first_seen) AS error_text,
       sum(n) AS n, sum(wasted_us) AS wasted_us, max(retry_amplification) AS retry_amplification,
       count(*) FILTER (storm) AS storm_hours, min(first_seen) AS first_seen, max(last_seen) AS last_seen
  FROM {gold.failures}
 GROUP BY queue, name, error_fp ORDER BY n DESC, queue, name, error_fp LIMIT $top

-- name: cost
-- Days are whole, even where the period has only a part of one. Amounts are all 0 without a bill. The key '*' stands for
-- paid time in which no key ran anything; the keys after $top are one row, without a name.
WITH by_key AS (
    SELECT fairness_key, sum(busy_us) AS busy_us, sum(wasted_us) AS wasted_us,
           sum(idle_allocated_us) AS idle_allocated_us, sum(amount) AS amount
      FROM {gold.cost} GROUP BY fairness_key
), ranked AS (
    SELECT *, row_number() OVER (ORDER BY amount DESC, busy_us DESC, fairness_key) AS position FROM by_key
), grouped AS (
    SELECT CASE WHEN position <= $top THEN position END AS rank,
           CASE WHEN position <= $top THEN fairness_key END AS fairness_key, count(*) AS keys, sum(busy_us) AS busy_us,
           sum(wasted_us) AS wasted_us, sum(idle_allocated_us) AS idle_allocated_us, sum(amount) AS amount
      FROM ranked GROUP BY 1, 2
)
SELECT *, coalesce((amount / nullif(sum(amount) OVER (), 0))::DOUBLE,
                   busy_us / nullif(sum(busy_us) OVER (), 0)) AS part
  FROM grouped ORDER BY rank NULLS LAST

-- name: quarantined
-- All time. Instants are texts, because a wrong clock may be off by more years than pandas can hold.
SELECT split_part(source, '/', 1) AS source, "column", reason, count(*) AS rows,
       strftime(make_timestamp(epoch_us(max(seen_at))), '%Y-%m-%d %H:%M') AS last_seen
  FROM {bronze.quarantine}
 GROUP BY 1, 2, 3 ORDER BY rows DESC, source, reason LIMIT $most

-- name: newest
-- All time, up to $now, because a clock may have been wrong.
SELECT max(finished_at) FILTER (finished_at <= make_timestamptz($now)) AS newest, count(*) AS attempts
  FROM {bronze.attempts}

-- name: runs
-- The last run of each job.
SELECT job, started_at, seconds * 1e6 AS us, state, rows_out, error, checks
  FROM {ops.pipeline_runs} QUALIFY row_number() OVER (PARTITION BY job ORDER BY started_at DESC) = 1
 ORDER BY job
