-- The aggregates of `aggregate` in bench/pipeline_spark.py, for DuckDB. The program replaces $files and $out.

-- name: attempts
CREATE OR REPLACE TEMP VIEW attempts AS
SELECT queue, name, fairness_key, attempt, next_state, submitted_at, run_at, ready_at, started_at, finished_at
FROM read_parquet($files, hive_partitioning = false)
WHERE started_at IS NULL OR finished_at >= started_at;

-- name: minutes
CREATE OR REPLACE TEMP TABLE minutes AS
SELECT minute_us, queue, fairness_key,
       sum(least(finish, minute_us + 60_000_000) - greatest(start, minute_us))::BIGINT AS busy_us
FROM (SELECT queue, fairness_key, epoch_us(started_at) AS start, epoch_us(finished_at) AS finish,
             unnest(range(start - start % 60_000_000, finish + 1, 60_000_000)) AS minute_us
      FROM attempts WHERE started_at IS NOT NULL)
GROUP BY ALL;

-- name: shares
COPY (
    SELECT make_timestamptz(window_us) AS window_start, window_s, queue, fairness_key, busy_us,
           coalesce(busy_us / nullif(sum(busy_us) OVER (PARTITION BY window_s, window_us, queue), 0), 0) AS share
    FROM (SELECT minute_us - minute_us % (window_s * 1_000_000) AS window_us, window_s, queue, fairness_key,
                 sum(busy_us)::BIGINT AS busy_us
          FROM minutes, (VALUES (60::BIGINT), (3600), (86400)) AS windows (window_s)
          GROUP BY ALL)
) TO '$out/shares.parquet' (FORMAT parquet, COMPRESSION zstd);

-- name: percentiles
COPY (
    WITH measured AS (
        SELECT date_trunc('hour', finished_at) AS window_start, queue, name,
               unnest(['pickup', 'run', 'e2e', 'retry_delay']) AS measure,
               unnest([
                   epoch_us(started_at) - epoch_us(ready_at),
                   epoch_us(finished_at) - epoch_us(started_at),
                   CASE WHEN next_state = 'DONE' THEN epoch_us(finished_at) - epoch_us(submitted_at) END,
                   CASE WHEN attempt > 1 THEN epoch_us(started_at) - epoch_us(run_at) END
               ]) AS us
        FROM attempts
    ), buckets AS (
        SELECT window_start, queue, name, measure, ceil(ln(greatest(us, 1)) / ln(1.02))::INT AS bucket,
               count(*) AS n, max(greatest(us, 0)) AS max_us
        FROM measured WHERE us IS NOT NULL GROUP BY ALL
    ), summed AS (
        SELECT *, sum(n) OVER (PARTITION BY window_start, queue, name, measure ORDER BY bucket) AS up_to,
               sum(n) OVER (PARTITION BY window_start, queue, name, measure) AS n_all,
               least(2 / 2.02 * pow(1.02, bucket), max_us) AS value
        FROM buckets
    )
    SELECT window_start, queue, name, measure, sum(n)::BIGINT AS n,
           min(value) FILTER (up_to * 1000 >= n_all * 500) AS p50,
           min(value) FILTER (up_to * 1000 >= n_all * 900) AS p90,
           min(value) FILTER (up_to * 1000 >= n_all * 990) AS p99,
           min(value) FILTER (up_to * 1000 >= n_all * 999) AS p999,
           max(max_us) AS max_us
    FROM summed GROUP BY ALL
) TO '$out/percentiles.parquet' (FORMAT parquet, COMPRESSION zstd);
