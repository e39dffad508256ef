-- table: silver.open_tasks
-- doc: tasks of silver.tasks without a finished attempt: their first run has not begun or has not
--   ended. A build counts them as waiting without reading all tasks
-- key: store_id, task_id
-- partition: hour of submitted_at
-- columns:
--   store_id     string     store that the task comes from
--   task_id      string     UUIDv7 of the task
--   queue        string     queue of the task, as submitted
--   fairness_key string     fairness key of the task, as submitted
--   weight       double     weight of the task, as submitted
--   submitted_at timestamp  time of the call of submit
--   ready_at     timestamp? first instant at which the task may run
SELECT store_id, task_id, queue, fairness_key, weight, submitted_at, first_ready_at AS ready_at
FROM silver_tasks
WHERE last_finished_at IS NULL
