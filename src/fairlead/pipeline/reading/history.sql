-- Statements of the history of a lake, for DuckDB. {rows}: the rows of one table in the period, [$since, $until), from the
-- files $files; {all_rows}: all rows of these files. Instants are microseconds since the epoch; a step lasts $step_us and
-- the first begins at $since. $tenants: NULL for all tenants, or the tenants whose rows may be read. Parts of one step come
-- in the order of their rank; the parts after $top are one part, with the rank $top + 1.

-- name: runs
-- {rows}: silver.service
WITH found AS (
    SELECT $since + ((epoch_us(window_start) - $since) // $step_us) * $step_us AS step_at,
           CASE $by WHEN 'queue' THEN queue WHEN 'name' THEN name ELSE tenant_of(fairness_key) END AS part,
           sum(attempts_started) AS started, sum(attempts_done) AS done, sum(failed) AS failed,
           sum(busy_us) AS busy_us, sum(wasted_us) AS wasted_us
      FROM {rows}
     WHERE ($queue::VARCHAR IS NULL OR queue = $queue)
       AND ($tenants::VARCHAR[] IS NULL OR list_contains($tenants, tenant_of(fairness_key)))
     GROUP BY ALL
), ranked AS (
    SELECT part, least(row_number() OVER (ORDER BY sum(busy_us) DESC, sum(started) DESC, part), $top + 1) AS rank
      FROM found GROUP BY part
)
SELECT step_at, CASE WHEN rank <= $top THEN part END AS part, rank, sum(started), sum(done), sum(failed), sum(busy_us),
       sum(wasted_us)
  FROM found JOIN ranked USING (part)
 GROUP BY 1, 2, 3 ORDER BY rank, step_at

-- name: waits
-- {rows}: gold.latency_hist.
-- A percentile is the value of the first bucket that reaches its rank: the harmonic mean of the bounds of the bucket.
WITH found AS (
    SELECT $since + ((epoch_us(hour) - $since) // $step_us) * $step_us AS step_at,
           CASE $by WHEN 'queue' THEN queue ELSE name END AS part, bucket, sum(n) AS n, max(max_us) AS max_us
      FROM {rows}
     WHERE measure = $measure AND fairness_key = '*'
       AND ($queue::VARCHAR IS NULL OR queue = $queue)
     GROUP BY ALL
), ranked AS (
    SELECT part, least(row_number() OVER (ORDER BY sum(n) DESC, part), $top + 1) AS rank FROM found GROUP BY part
), buckets AS (
    SELECT step_at, CASE WHEN rank <= $top THEN part END AS part, rank, bucket, sum(n) AS n, max(max_us) AS max_us
      FROM found JOIN ranked USING (part) GROUP BY 1, 2, 3, 4
), counted AS (
    SELECT step_at, part, rank, n, max_us, least(2 / ($growth + 1) * pow($growth, bucket), max_us) AS value,
           sum(n) OVER (PARTITION BY rank, step_at ORDER BY bucket) AS up_to, sum(n) OVER (PARTITION BY rank, step_at) AS total
      FROM buckets
)
SELECT step_at, part, rank, sum(n), min(value) FILTER (up_to * 1000 >= total * 500),
       min(value) FILTER (up_to * 1000 >= total * 900), min(value) FILTER (up_to * 1000 >= total * 990), max(max_us)
  FROM counted
 GROUP BY 1, 2, 3 ORDER BY rank, step_at

-- name: waits_of_keys
-- {rows}: bronze.attempts. Exact percentiles by nearest rank, of the sound rows (see quality.IS_SOUND) of the keys.
WITH measured AS NOT MATERIALIZED (
    SELECT finished_at, queue, name, tenant_of(fairness_key) AS tenant,
           epoch_us(CASE $measure WHEN 'run' THEN finished_at WHEN 'e2e' THEN finished_at ELSE started_at END)
           - epoch_us(CASE $measure WHEN 'pickup' THEN ready_at WHEN 'run' THEN started_at
                           WHEN 'e2e' THEN submitted_at ELSE run_at END) AS us
      FROM {rows}
     WHERE {sound} AND fairness_key <> '*' AND ($measure <> 'e2e' OR next_state = 'DONE')
       AND ($measure <> 'retry_delay' OR attempt > 1)
       AND ($queue::VARCHAR IS NULL OR queue = $queue)
       AND ($tenants::VARCHAR[] IS NULL OR list_contains($tenants, tenant_of(fairness_key)))
), found AS NOT MATERIALIZED (
    SELECT $since + ((epoch_us(finished_at) - $since) // $step_us) * $step_us AS step_at, greatest(0, us) AS us,
           CASE $by WHEN 'queue' THEN queue WHEN 'name' THEN name ELSE tenant END AS part
      FROM measured WHERE us IS NOT NULL
), ranked AS (
    SELECT part, least(row_number() OVER (ORDER BY count(*) DESC, part), $top + 1) AS rank FROM found GROUP BY part
)
SELECT step_at, CASE WHEN rank <= $top THEN part END AS part, rank, count(*), quantile_disc(us, 0.5),
       quantile_disc(us, 0.9), quantile_disc(us, 0.99), max(us)
  FROM found JOIN ranked USING (part)
 GROUP BY 1, 2, 3 ORDER BY rank, step_at

-- name: shares
-- {rows}: gold.tenant_share
WITH found AS (
    SELECT $since + ((epoch_us(window_start) - $since) // $step_us) * $step_us AS step_at,
           tenant_of(fairness_key) AS part,
           sum(busy_us) AS busy_us, sum(entitled_us) AS entitled_us, sum(demand_us) AS demand_us,
           sum(claimed) AS claimed, max(lag_us) AS lag_us, bool_or(starved) AS starved
      FROM {rows}
     WHERE window_s = $window_s AND ($queue::VARCHAR IS NULL OR queue = $queue)
       AND ($tenants::VARCHAR[] IS NULL OR list_contains($tenants, tenant_of(fairness_key)))
     GROUP BY ALL
), ranked AS (
    SELECT part, least(row_number() OVER (ORDER BY sum(busy_us) DESC, sum(entitled_us) DESC, part), $top + 1) AS rank
      FROM found GROUP BY part
)
SELECT step_at, CASE WHEN rank <= $top THEN part END AS part, rank, sum(busy_us), sum(entitled_us), sum(demand_us),
       sum(claimed), max(lag_us), bool_or(starved)
  FROM found JOIN ranked USING (part)
 GROUP BY 1, 2, 3 ORDER BY rank, step_at

-- name: fairness
-- {rows}: gold.fairness. The worst of the windows of a step, and the mean of Jain's index.
SELECT $since + ((epoch_us(window_start) - $since) // $step_us) * $step_us AS step_at, queue,
       avg(jain), min(jain), max(n_keys), max(starved_keys), max(max_lag_us),
       first(max_lag_key ORDER BY max_lag_us DESC, window_start), max(noisy_score),
       first(noisy_key ORDER BY noisy_score DESC NULLS LAST, window_start)
  FROM {rows}
 WHERE window_s = $window_s AND ($queue::VARCHAR IS NULL OR queue = $queue)
 GROUP BY 1, 2 ORDER BY queue, step_at
 LIMIT $most

-- name: incidents
-- {all_rows}: gold.incidents. Only floods and starved keys are about one tenant; the numbers of others count all tenants.
SELECT incident_id, kind, queue, subject, epoch_us(start_at), epoch_us(end_at), is_over,
       CASE WHEN $tenants::VARCHAR[] IS NULL THEN keys_hit END,
       CASE WHEN $tenants::VARCHAR[] IS NULL THEN tasks_delayed END,
       CASE WHEN $tenants::VARCHAR[] IS NULL THEN extra_wait_us END
  FROM {all_rows}
 WHERE start_at < make_timestamptz($until) AND end_at > make_timestamptz($since)
   AND ($queue::VARCHAR IS NULL OR queue = $queue)
   AND ($tenants::VARCHAR[] IS NULL OR (kind IN ('flood', 'starved') AND subject <> '*'
                                        AND list_contains($tenants, tenant_of(subject))))
 ORDER BY start_at DESC, incident_id
 LIMIT $most

-- name: costs
-- {all_rows}: gold.cost. The row of the key '*' is a bill for which no key ran anything.
WITH found AS (
    SELECT $since + ((epoch_us(day) - $since) // $step_us) * $step_us AS step_at, tenant_of(fairness_key) AS part,
           sum(amount) AS amount, sum(busy_us) AS busy_us, sum(wasted_us) AS wasted_us,
           sum(idle_allocated_us) AS idle_us
      FROM {all_rows}
     WHERE day >= make_timestamptz($since) AND day < make_timestamptz($until)
       AND ($queue::VARCHAR IS NULL OR queue = $queue)
       AND ($tenants::VARCHAR[] IS NULL
            OR (fairness_key <> '*' AND list_contains($tenants, tenant_of(fairness_key))))
     GROUP BY ALL
), ranked AS (
    SELECT part, least(row_number() OVER (ORDER BY sum(amount) DESC, sum(busy_us) DESC, part), $top + 1) AS rank
      FROM found GROUP BY part
)
SELECT step_at, CASE WHEN rank <= $top THEN part END AS part, rank, sum(amount), sum(busy_us), sum(wasted_us), sum(idle_us)
  FROM found JOIN ranked USING (part)
 GROUP BY 1, 2, 3 ORDER BY rank, step_at
