-- view: measured_attempts
-- doc: sound attempts with the length of each of their parts in microseconds; null where an attempt
--   has no such part, and 0 where the clocks of two machines disagree
SELECT * EXCEPT (pickup, run, e2e, retry_delay),
    -- A node called the handler, or was lost before it could record the start.
    started_at IS NOT NULL OR outcome = 'lost' AS is_run,
    -- The row of a task that a person marked as failed is not a run.
    is_run AND outcome IN ('failed', 'retried', 'timed_out', 'lost') AS has_failed,
    if(pickup < 0, 0, pickup) AS pickup_us,
    if(run < 0, 0, run) AS run_us,
    if(next_state = 'DONE', if(e2e < 0, 0, e2e), NULL) AS e2e_us,
    if(attempt > 1, if(retry_delay < 0, 0, retry_delay), NULL) AS retry_delay_us
FROM (
    SELECT *,
        unix_micros(started_at) - unix_micros(ready_at) AS pickup,
        unix_micros(finished_at) - unix_micros(started_at) AS run,
        unix_micros(finished_at) - unix_micros(submitted_at) AS e2e,
        unix_micros(started_at) - unix_micros(run_at) AS retry_delay
    FROM sound_attempts
)
