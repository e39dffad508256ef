-- Statements of the data source on SQLite. {columns} are names of the table's columns; values are parameters.

-- name: attempts_extent
SELECT coalesce((SELECT min(seq) FROM fairlead_attempts), 0), coalesce((SELECT max(seq) FROM fairlead_attempts), 0)

-- name: tasks_extent
SELECT coalesce((SELECT min(seq) FROM fairlead_tasks), 0), coalesce((SELECT max(seq) FROM fairlead_tasks), 0)

-- name: attempts
-- :first (inclusive) and :past (exclusive) are positions in the order of commits.
SELECT {columns}
  FROM (SELECT *, 0 AS xid FROM fairlead_attempts)
 WHERE seq >= :first AND seq < :past AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR finished_at >= :since) AND (:until IS NULL OR finished_at < :until)

-- name: tasks
SELECT {columns}
  FROM (SELECT *, id AS task_id, length(payload) AS payload_bytes FROM fairlead_tasks)
 WHERE seq >= :first AND seq < :past AND (:queue IS NULL OR queue = :queue)
   AND (:since IS NULL OR submitted_at >= :since) AND (:until IS NULL OR submitted_at < :until)

-- name: levels
-- Return a row if the store has tables of levels. A database without tables of Fairlead is refused.
SELECT 1 FROM fairlead_store WHERE EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'fairlead_backlog')

-- name: lanes
-- ?1: queue, or NULL for all queues
SELECT queue, partition, priority
  FROM fairlead_backlog_lanes
 WHERE ?1 IS NULL OR queue = ?1
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

-- name: newest_of_next
-- ?1, ?2: position after which to look; ?3: number of attempts to look at
SELECT 0, seq FROM (SELECT seq FROM fairlead_attempts WHERE seq > ?2 ORDER BY seq LIMIT ?3) ORDER BY seq DESC LIMIT 1
