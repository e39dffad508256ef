-- Statements of ordered queues on SQLite: the task log and the schedule. A batch is one JSON array.

-- name: append
-- ?1: [[queue, partition, message], ...]
INSERT INTO fairlead_task_log (queue, partition, message)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1) ORDER BY key

-- name: receive
-- ?1: [[queue, partition], ...]; ?2, ?3: maximum number of entries and of bytes of each partition, but one entry at least.
-- One entry after the other, so that no message is read beyond the first one that does not fit.
WITH RECURSIVE found (seq, queue, partition, n, total) AS (
    SELECT l.seq, l.queue, l.partition, 1, length(CAST(l.message AS BLOB))
      FROM json_each(?1) j
      CROSS JOIN fairlead_task_log l ON l.seq = (SELECT seq FROM fairlead_task_log
                                                  WHERE queue = j.value ->> 0 AND partition = j.value ->> 1
                                                  ORDER BY seq LIMIT 1)
     UNION ALL
    SELECT l.seq, l.queue, l.partition, n + 1, total + length(CAST(l.message AS BLOB))
      FROM found f
      CROSS JOIN fairlead_task_log l ON l.seq = (SELECT seq FROM fairlead_task_log
                                                  WHERE queue = f.queue AND partition = f.partition AND seq > f.seq
                                                  ORDER BY seq LIMIT 1)
     WHERE n < ?2 AND total <= ?3)
SELECT l.seq, l.queue, l.partition, l.message
  FROM found f
  CROSS JOIN fairlead_task_log l ON l.seq = f.seq
 WHERE n = 1 OR total <= ?3
 ORDER BY l.seq

-- name: commit
-- ?1: [seq, ...] of the queue ?2 and the partition ?3
DELETE FROM fairlead_task_log WHERE seq IN (SELECT value FROM json_each(?1)) AND queue = ?2 AND partition = ?3

-- name: lag
SELECT partition, count(*) FROM fairlead_task_log WHERE queue = ?1 GROUP BY partition

-- name: has_entries
SELECT EXISTS (SELECT 1 FROM fairlead_task_log WHERE queue = ?1)

-- name: take_over
INSERT INTO fairlead_schedule_owners (queue, partition, range_id, record) VALUES (?1, ?2, 1, ?3)
ON CONFLICT (queue, partition) DO UPDATE SET range_id = range_id + 1
RETURNING range_id, record, ''

-- name: fence
SELECT range_id, '' FROM fairlead_schedule_owners WHERE queue = ?1 AND partition = ?2

-- name: keep
UPDATE fairlead_schedule_owners SET record = ?3 WHERE queue = ?1 AND partition = ?2

-- name: completed
-- ?3: [[run_at, ordering_key, unique_key, ...], ...]
SELECT c.run_at, c.ordering_key, c.unique_key
  FROM json_each(?3) j
  CROSS JOIN fairlead_completions c
    ON c.queue = ?1 AND c.partition = ?2 AND c.run_at = j.value ->> 0 AND c.ordering_key = j.value ->> 1
   AND c.unique_key = j.value ->> 2

-- name: persist
-- ?3: [[run_at, ordering_key, unique_key, id, task], ...]
INSERT INTO fairlead_schedule (queue, partition, run_at, ordering_key, unique_key, id, task)
SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?3) WHERE true
ON CONFLICT (queue, partition, run_at, ordering_key, unique_key) DO UPDATE
   SET id = excluded.id, task = excluded.task, attempt = 0, tries = 0, retry_at = NULL
 WHERE id <> excluded.id

-- name: read
-- ?10: bytes; the tasks after those with as many bytes come without text.
SELECT s.run_at, s.ordering_key, s.unique_key, s.id, CASE WHEN n = 1 OR total <= ?10 THEN s.task END, s.attempt, s.tries, s.retry_at
  FROM (SELECT run_at, ordering_key, unique_key, row_number() OVER w AS n, sum(bytes) OVER w AS total
          FROM (SELECT run_at, ordering_key, unique_key, length(CAST(task AS BLOB)) AS bytes
                  FROM fairlead_schedule
                 WHERE queue = ?1 AND partition = ?2 AND (run_at, ordering_key, unique_key) > (?3, ?4, ?5)
                   AND (run_at, ordering_key, unique_key) <= (?6, ?7, ?8)
                 ORDER BY run_at, ordering_key, unique_key
                 LIMIT ?9)
        WINDOW w AS (ORDER BY run_at, ordering_key, unique_key ROWS UNBOUNDED PRECEDING)) AS p
 CROSS JOIN fairlead_schedule AS s ON s.queue = ?1 AND s.partition = ?2 AND s.run_at = p.run_at
                                  AND s.ordering_key = p.ordering_key AND s.unique_key = p.unique_key
 ORDER BY n

-- name: read_of
-- ?10: bytes; the tasks after those with as many bytes come without text.
SELECT s.run_at, s.ordering_key, s.unique_key, s.id, CASE WHEN n = 1 OR total <= ?10 THEN s.task END, s.attempt, s.tries, s.retry_at
  FROM (SELECT run_at, ordering_key, unique_key, row_number() OVER w AS n, sum(bytes) OVER w AS total
          FROM (SELECT run_at, ordering_key, unique_key, length(CAST(task AS BLOB)) AS bytes
                  FROM fairlead_schedule INDEXED BY fairlead_schedule_order
                 WHERE queue = ?1 AND partition = ?2 AND ordering_key = ?11 AND run_at >= ?3
                   AND (run_at, ordering_key, unique_key) > (?3, ?4, ?5)
                   AND (run_at, ordering_key, unique_key) <= (?6, ?7, ?8)
                 ORDER BY run_at, unique_key
                 LIMIT ?9)
        WINDOW w AS (ORDER BY run_at, unique_key ROWS UNBOUNDED PRECEDING)) AS p
 CROSS JOIN fairlead_schedule AS s ON s.queue = ?1 AND s.partition = ?2 AND s.run_at = p.run_at
                                  AND s.ordering_key = p.ordering_key AND s.unique_key = p.unique_key
 ORDER BY n

-- name: find
SELECT run_at, ordering_key, unique_key, id, task, attempt, tries, retry_at
  FROM fairlead_schedule
 WHERE queue = ?1 AND partition = ?2 AND run_at = ?3 AND ordering_key = ?4 AND unique_key = ?5

-- name: find_id
SELECT queue, partition, run_at, ordering_key, unique_key, id, task, attempt, tries, retry_at
  FROM fairlead_schedule
 WHERE id = ?1

-- name: append_attempts
-- ?1: [[task_id, attempt, ...], ...], each row once, even if it is given twice
INSERT INTO fairlead_attempts ({attempt})
SELECT {attempt}
  FROM (SELECT key, {attempt_in_j} FROM json_each(?1) j) g
 WHERE NOT EXISTS (SELECT 1 FROM fairlead_attempts a
                    WHERE a.task_id = g.task_id AND a.attempt = g.attempt AND a.finished_at = g.finished_at)
 ORDER BY key

-- name: complete
-- ?3: [[run_at, ordering_key, unique_key, finished_at], ...]
INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3) WHERE true
ON CONFLICT DO NOTHING

-- name: delete_completed
-- ?3: [[run_at, ordering_key, unique_key, ...], ...]
DELETE FROM fairlead_schedule
 WHERE queue = ?1 AND partition = ?2
   AND (run_at, ordering_key, unique_key) IN (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?3))

-- name: try_again
-- ?3: [[run_at, ordering_key, unique_key, id, attempt, tries, retry_at], ...]
UPDATE fairlead_schedule
   SET attempt = a.attempt, tries = a.tries, retry_at = a.retry_at
  FROM (SELECT value ->> 0 AS run_at, value ->> 1 AS ordering_key, value ->> 2 AS unique_key, value ->> 3 AS id,
               value ->> 4 AS attempt, value ->> 5 AS tries, value ->> 6 AS retry_at
          FROM json_each(?3)) AS a
 WHERE fairlead_schedule.queue = ?1 AND fairlead_schedule.partition = ?2 AND fairlead_schedule.run_at = a.run_at
   AND fairlead_schedule.ordering_key = a.ordering_key AND fairlead_schedule.unique_key = a.unique_key
   AND fairlead_schedule.id = a.id

-- name: clean
DELETE FROM fairlead_completions
 WHERE queue = ?1 AND partition = ?2
   AND (run_at, ordering_key, unique_key) IN (
        SELECT run_at, ordering_key, unique_key
          FROM fairlead_completions
         WHERE queue = ?1 AND partition = ?2 AND (run_at, ordering_key, unique_key) <= (?3, ?4, ?5) AND finished_at < ?6
         ORDER BY run_at, ordering_key, unique_key
         LIMIT ?7)
RETURNING run_at

-- name: move_tasks
-- ?3: [[partition, run_at, ordering_key, unique_key, task], ...] of the queue ?1 and the partition ?2
UPDATE fairlead_schedule
   SET partition = m.target, task = m.task
  FROM (SELECT value ->> 0 AS target, value ->> 1 AS run_at, value ->> 2 AS ordering_key, value ->> 3 AS unique_key,
               value ->> 4 AS task
          FROM json_each(?3)) AS m
 WHERE fairlead_schedule.queue = ?1 AND fairlead_schedule.partition = ?2 AND fairlead_schedule.run_at = m.run_at
   AND fairlead_schedule.ordering_key = m.ordering_key AND fairlead_schedule.unique_key = m.unique_key

-- name: completions
SELECT run_at, ordering_key, unique_key, finished_at
  FROM fairlead_completions
 WHERE queue = ?1 AND partition = ?2 AND (run_at, ordering_key, unique_key) > (?3, ?4, ?5)
 ORDER BY run_at, ordering_key, unique_key
 LIMIT ?6

-- name: move_completed
-- ?2: [[partition, run_at, ordering_key, unique_key, finished_at], ...]
INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT ?1, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?2) WHERE true
ON CONFLICT DO NOTHING

-- name: delete_moved
-- ?3: [[partition, run_at, ordering_key, unique_key, ...], ...]
DELETE FROM fairlead_completions
 WHERE queue = ?1 AND partition = ?2
   AND (run_at, ordering_key, unique_key) IN (SELECT value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))

-- name: unfinished
SELECT count(*) FROM fairlead_schedule WHERE queue = ?1 AND (run_at <= ?2 OR attempt > 0)

-- name: has_due
-- Each partition with a task has an owner.
SELECT EXISTS (SELECT 1 FROM fairlead_schedule_owners o
                WHERE o.queue = ?1
                  AND (SELECT s.run_at FROM fairlead_schedule s WHERE s.queue = o.queue AND s.partition = o.partition
                        ORDER BY s.run_at LIMIT 1) <= ?2)

-- name: statuses
SELECT o.partition, o.range_id, o.record, count(s.run_at), coalesce(sum(s.run_at < ?2), 0)
  FROM fairlead_schedule_owners o
  LEFT JOIN fairlead_schedule s ON s.queue = o.queue AND s.partition = o.partition
 WHERE o.queue = ?1
 GROUP BY o.partition

-- name: oldest
SELECT run_at, ordering_key, unique_key
  FROM fairlead_schedule WHERE queue = ?1 AND partition = ?2 ORDER BY run_at, ordering_key, unique_key LIMIT 1
