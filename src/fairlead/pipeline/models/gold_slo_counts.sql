-- table: gold.slo_counts
-- doc: good and bad runs by objective in windows of five minutes; a window without runs has no row
-- key: window_start, slo_id
-- partition: date of window_start
-- given: slo_objectives (slo_id, queue, name or '*', measure, threshold_us, objective)
-- columns:
--   window_start timestamp start of the five minutes that contain finished_at
--   slo_id       string    id of the objective
--   good         bigint    number of runs that did not fail and were no slower than the threshold
--   bad          bigint    number of runs that failed or were slower than the threshold
WITH judged AS (
    SELECT /*+ BROADCAST(slo_objectives) */
        timestamp_seconds(unix_seconds(finished_at) - unix_seconds(finished_at) % 300)
            AS window_start,
        slo_id, CASE
            -- An objective from submit to end counts only runs that end the task.
            WHEN measure = 'e2e' AND next_state NOT IN ('DONE', 'ERROR') THEN NULL
            WHEN has_failed THEN true
            ELSE CASE measure WHEN 'pickup' THEN pickup_us WHEN 'run' THEN run_us ELSE e2e_us END
                > threshold_us
        END AS is_bad
    FROM measured_attempts
    JOIN slo_objectives
        ON slo_objectives.queue = measured_attempts.queue
        AND slo_objectives.name IN ('*', measured_attempts.name)
    WHERE is_run
)
SELECT window_start, slo_id, count_if(NOT is_bad) AS good, count_if(is_bad) AS bad
FROM judged
WHERE is_bad IS NOT NULL
GROUP BY window_start, slo_id
