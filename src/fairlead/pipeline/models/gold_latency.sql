-- table: gold.latency
-- doc: percentiles of the durations of attempts, by nearest rank; half of the durations do not
--   exceed p50. A key has a row of an hour only for at least `least` attempts of [latency]; rows of
--   days and of all keys together have no minimum
-- key: window_start, window_s, queue, name, fairness_key, measure
-- partition: date of window_start
-- given: :least, number of attempts from which a key has a row of an hour
-- columns:
--   window_start timestamp start of the window that contains finished_at
--   window_s     int       length of the window in seconds: 3600, or 86400 for a day (UTC)
--   queue        string    queue of the attempts
--   name         string    name of the tasks
--   fairness_key string    fairness key, or '*' for all keys together, never a key of this name
--   measure      string    pickup (ready to started), run (started to finished), e2e (submitted to
--                          finished, for the attempt that made the task DONE) or retry_delay (due
--                          to started, for runs after the first)
--   n            bigint    number of attempts in the window
--   p50          double    50th percentile in microseconds
--   p90          double    90th percentile in microseconds
--   p99          double    99th percentile in microseconds
--   p999         double    99.9th percentile in microseconds
--   max_us       bigint    greatest duration, exact
--   error_bound  double    greatest relative error of the percentiles: 0.01, and at most 1 us below
--                          100 us, for all keys together; 0 for a key, whose ranks are off by at
--                          most 0.01 % of its attempts
WITH hists AS (
    SELECT
        timestamp_seconds(unix_seconds(hour) - unix_seconds(hour) % window_s) AS window_start,
        window_s, queue, name, measure, bucket,
        sum(n) AS n,
        max(max_us) AS max_us
    FROM gold_latency_hist
    LATERAL VIEW explode(array(3600, 86400)) AS window_s
    WHERE fairness_key = '*'
    GROUP BY
        unix_seconds(hour) - unix_seconds(hour) % window_s, window_s, queue, name, measure, bucket
), ranked AS (
    -- The value of a bucket is the harmonic mean of its bounds, whose relative error is the same at
    -- both bounds, but no more than the greatest duration in the bucket.
    SELECT *,
        sum(n) OVER (
            PARTITION BY window_start, window_s, queue, name, measure ORDER BY bucket
        ) AS n_up_to,
        sum(n) OVER (PARTITION BY window_start, window_s, queue, name, measure) AS n_all,
        least(2 / 2.02D * pow(1.02D, bucket), max_us) AS value
    FROM hists
), runs AS (
    -- Shuffle the runs of a key once: windows of any size lie within a day.
    SELECT /*+ REPARTITION(day, queue, name, fairness_key) */
        date_trunc('DAY', finished_at) AS day,
        unix_seconds(finished_at) AS finished,
        queue, name, fairness_key, pickup_us, run_us, e2e_us, retry_delay_us
    FROM measured_attempts
    WHERE fairness_key <> '*'
), windows AS (
    SELECT *, finished - finished % window_s AS start
    FROM runs
    LATERAL VIEW explode(array(3600, 86400)) AS window_s
), sketches AS (
    SELECT
        day, queue, name, fairness_key, window_s, start,
        struct(
            count(pickup_us) AS n,
            percentile_approx(pickup_us, array(0.5, 0.9, 0.99, 0.999), 10000) AS at,
            max(pickup_us) AS max_us
        ) AS pickup,
        struct(
            count(run_us) AS n,
            percentile_approx(run_us, array(0.5, 0.9, 0.99, 0.999), 10000) AS at,
            max(run_us) AS max_us
        ) AS run,
        struct(
            count(e2e_us) AS n,
            percentile_approx(e2e_us, array(0.5, 0.9, 0.99, 0.999), 10000) AS at,
            max(e2e_us) AS max_us
        ) AS e2e,
        struct(
            count(retry_delay_us) AS n,
            percentile_approx(retry_delay_us, array(0.5, 0.9, 0.99, 0.999), 10000) AS at,
            max(retry_delay_us) AS max_us
        ) AS retry_delay
    FROM windows
    GROUP BY day, queue, name, fairness_key, window_s, start
)
SELECT
    window_start, window_s, queue, name,
    '*' AS fairness_key,
    measure,
    sum(n) AS n,
    -- Compare integers, because 0.999 * n may be just above the right rank.
    min(CASE WHEN n_up_to * 1000 >= n_all * 500 THEN value END) AS p50,
    min(CASE WHEN n_up_to * 1000 >= n_all * 900 THEN value END) AS p90,
    min(CASE WHEN n_up_to * 1000 >= n_all * 990 THEN value END) AS p99,
    min(CASE WHEN n_up_to * 1000 >= n_all * 999 THEN value END) AS p999,
    max(max_us) AS max_us,
    0.01D AS error_bound
FROM ranked
GROUP BY window_start, window_s, queue, name, measure
UNION ALL
SELECT
    timestamp_seconds(start),
    window_s, queue, name, fairness_key, measure, found.n,
    CAST(found.at[0] AS double),
    CAST(found.at[1] AS double),
    CAST(found.at[2] AS double),
    CAST(found.at[3] AS double),
    found.max_us, 0D
FROM sketches
LATERAL VIEW stack(
    4, 'pickup', pickup, 'run', run, 'e2e', e2e, 'retry_delay', retry_delay
) AS measure, found
WHERE found.n > 0 AND (window_s = 86400 OR found.n >= :least)
