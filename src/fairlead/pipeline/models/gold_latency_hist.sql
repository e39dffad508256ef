-- table: gold.latency_hist
-- doc: histogram of the durations of attempts of all keys together in buckets that are 2 % wide;
--   bucket b counts durations with 1.02^(b-1) < microseconds <= 1.02^b, and bucket 0 also counts 0
-- key: hour, queue, name, fairness_key, measure, bucket
-- partition: date of hour
-- columns:
--   hour         timestamp hour that contains finished_at
--   queue        string    queue of the attempts
--   name         string    name of the tasks
--   fairness_key string    '*' for all keys together
--   measure      string    pickup (ready to started), run (started to finished), e2e (submitted to
--                          finished, for the attempt that made the task DONE) or retry_delay (due
--                          to started, for runs after the first)
--   bucket       int       number of the bucket: ceil(ln(max(microseconds, 1)) / ln 1.02)
--   n            bigint    number of attempts in the bucket
--   max_us       bigint    greatest duration in the bucket
SELECT
    date_trunc('HOUR', finished_at) AS hour,
    queue, name,
    '*' AS fairness_key,
    measure,
    CAST(ceil(ln(greatest(us, 1)) / ln(1.02D)) AS int) AS bucket,
    count(*) AS n,
    max(us) AS max_us
FROM measured_attempts
LATERAL VIEW stack(
    4, 'pickup', pickup_us, 'run', run_us, 'e2e', e2e_us, 'retry_delay', retry_delay_us
) AS measure, us
WHERE us IS NOT NULL
GROUP BY hour, queue, name, measure, bucket
