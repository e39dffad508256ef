-- Statements that follow the history on SQLite. A position is (0, seq); the first number is not used. There is one writer,
-- so rows that can be read are settled.

-- name: store_id
SELECT store_id FROM fairlead_store

-- name: horizon
-- ?1: table. Its numbers ascend, even if the last rows were deleted.
SELECT 0, 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?1), 0)

-- name: attempts
-- ?1, ?2: after this position; ?3, ?4: before this position
SELECT {history}
  FROM fairlead_attempts a
 WHERE seq > ?2 AND seq < ?4
 ORDER BY seq
 LIMIT ?5

-- name: events
SELECT {event}
  FROM fairlead_events e
 WHERE seq > ?2 AND seq < ?4
 ORDER BY seq
 LIMIT ?5

-- name: settled
-- Returns that no transaction that has written is open; see the statement for PostgreSQL.
SELECT 0, 0, NULL

-- name: submitted
-- ?1: the last seq read, empty at the beginning; ?2 and ?3 are for stores where a row may commit late
SELECT cast(seq AS TEXT), id, submitted_at, queue, name, fairness_key, weight, priority, run_at
  FROM fairlead_tasks
 WHERE seq > cast(?1 AS INTEGER) AND (attempt = 0 OR (attempt = 1 AND state = 'PROCESSING'))
 ORDER BY seq
 LIMIT ?4

-- name: newest_submitted
-- ?1: now, not used here
SELECT cast(coalesce((SELECT max(seq) FROM fairlead_tasks), 0) AS TEXT) WHERE ?1 >= 0

-- name: ended
-- ?1, ?2: after this position; ?3, ?4: up to this position; ?5: ended from this instant on; ?6: submitted after this instant
SELECT queue, fairness_key, outcome, CASE outcome WHEN 'lost' THEN coalesce(node, '') ELSE '' END, count(*),
       count(*) FILTER (WHERE attempt <= 1 AND submitted_at > ?6)
  FROM fairlead_attempts
 WHERE seq > ?2 AND seq <= ?4 AND finished_at >= ?5
 GROUP BY 1, 2, 3, 4

-- name: attempts_between
SELECT count(*), coalesce(sum(finished_at - started_at), 0),
       coalesce(sum((31 * (finished_at % 1000000007) + 17 * (seq % 1000000007) + version) % 1000000007), 0)
  FROM fairlead_attempts
 WHERE seq > ?2 AND seq <= ?4

-- name: position_after
-- ?5: number of rows to skip
SELECT 0, seq FROM fairlead_attempts WHERE seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT 1 OFFSET ?5

-- name: readers
SELECT name, kind, xid, seq, checked_xid, checked_seq, updated_at, checked_at FROM fairlead_readers ORDER BY name

-- name: advance
INSERT INTO fairlead_readers (name, kind, xid, seq, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE
   SET updated_at = excluded.updated_at, seq = max(fairlead_readers.seq, excluded.seq)

-- name: checked
UPDATE fairlead_readers SET checked_xid = ?2, checked_seq = ?3, checked_at = ?4 WHERE name = ?1

-- name: drop_reader
DELETE FROM fairlead_readers WHERE name = ?1 RETURNING name
