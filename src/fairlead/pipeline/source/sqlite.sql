-- Statements of the data source on SQLite. {columns} are names of the table's columns; values are parameters.

-- name: attempts_extent
SELECT coalesce((SELECT min(seq) FROM fairlead_attempts), 0), coalesce((SELECT max(seq) FROM fairlead_attempts), 0)

-- name: tasks_extent
SELECT coalesce((SELECT min(seq) FROM fairlead_tasks), 0), coalesce((SELECT max(seq) FROM fairlead_tasks), 0)

-- name: attempts
-- :first (inclusive) and :past (exclusive) are positions in the order of commits.
SELECT {columns}
  FROM (SELECT 0 AS xid, seq, task_id, attempt, tries, queue, name, partition, priority, fairness_key, weight, ordering_key,
               unique_key, submitted_at, run_at, ready_at, triggered_at, claimed_at, started_at, finished_at, outcome,
               next_state, error_type, error_text, node, version, payload_bytes, trigger_path
          FROM fairlead_attempts)
 WHERE seq >= :first AND seq < :past AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR finished_at >= :since) AND (:until IS NULL OR finished_at < :until)

-- name: tasks
SELECT {columns}
  FROM (SELECT seq, id AS task_id, queue, partition, name, state, version, attempt, tries, priority, fairness_key, weight,
               ordering_key, unique_key, submitted_at, run_at, ready_at, triggered_at, claimed_at, node, trigger_path,
               error_type, error_text, length(payload) AS payload_bytes, context, payload, payload_format
          FROM fairlead_tasks)
 WHERE seq >= :first AND seq < :past AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR submitted_at >= :since) AND (:until IS NULL OR submitted_at < :until)

-- name: lanes
SELECT queue, partition, priority
  FROM fairlead_backlog_lanes
 WHERE :queue IS NULL OR queue = :queue
 ORDER BY queue, partition, priority

-- name: backlog
-- One statement reads the saved ack level and the rows. Triggers at or below the ack level were dispatched.
SELECT {columns}
  FROM (SELECT b.queue, b.partition, b.priority, b.pass, b.id, b.task_id, b.version, b.name, b.fairness_key, b.weight,
               b.ordering_key, b.seq, nullif(b.order_at, 0) AS order_at
          FROM fairlead_backlog_lanes l
          CROSS JOIN fairlead_backlog b ON b.queue = l.queue AND b.partition = l.partition AND b.priority = l.priority
           AND (b.pass, b.id) > (l.record ->> '$.ack_level[0]', l.record ->> '$.ack_level[1]')
         WHERE l.queue = :lane_queue AND l.partition = :lane_partition AND l.priority = :lane_priority)

-- name: first
-- Earlier attempts may have been deleted by age.
SELECT coalesce(min(seq), :after + 1) FROM fairlead_attempts WHERE seq > :after

-- name: newest
SELECT coalesce(max(seq), :after) FROM fairlead_attempts WHERE seq > :after

-- name: newest_of_next
SELECT coalesce(max(seq), :after) FROM (SELECT seq FROM fairlead_attempts WHERE seq > :after ORDER BY seq LIMIT :most)
