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

-- name: newest
-- ?1, ?2: position after which to look
SELECT 0, seq FROM fairlead_attempts WHERE seq > ?2 ORDER BY seq DESC LIMIT 1

-- name: newest_of_next
-- ?1, ?2: position after which to look; ?3: number of attempts to look at
SELECT 0, seq FROM (SELECT seq FROM fairlead_attempts WHERE seq > ?2 ORDER BY seq LIMIT ?3) ORDER BY seq DESC LIMIT 1
