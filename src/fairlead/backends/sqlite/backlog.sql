-- Statements of the fair backlog on SQLite.

-- name: take_over
-- ?1: [[queue, partition], ...]
INSERT INTO fairlead_backlog_owners (queue, partition, range_id)
SELECT j.value ->> 0, j.value ->> 1, 1 FROM json_each(?1) AS j WHERE true
ON CONFLICT (queue, partition) DO UPDATE SET range_id = range_id + 1
RETURNING queue, partition, range_id, ''

-- name: owned_lanes
-- ?1: [[queue, partition], ...]
SELECT l.queue, l.partition, l.priority, l.record
  FROM json_each(?1) AS j
  JOIN fairlead_backlog_lanes l ON l.queue = j.value ->> 0 AND l.partition = j.value ->> 1

-- name: fence
SELECT range_id, '' FROM fairlead_backlog_owners WHERE queue = ?1 AND partition = ?2

-- name: write
INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name, fairness_key, weight,
       ordering_key, seq, order_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT DO NOTHING

-- name: keep_record
INSERT INTO fairlead_backlog_lanes (queue, partition, priority, record) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, partition, priority) DO UPDATE SET record = excluded.record

-- name: read_above
SELECT pass, id, task_id, version, name, fairness_key, weight, ordering_key, seq, order_at
  FROM fairlead_backlog
 WHERE queue = ?1 AND partition = ?2 AND priority = ?3 AND (pass, id) > (?4, ?5)
 ORDER BY pass, id
 LIMIT ?6

-- name: delete_through
DELETE FROM fairlead_backlog
 WHERE queue = ?1 AND partition = ?2 AND priority = ?3 AND (pass, id) > (?4, ?5) AND (pass, id) <= (?6, ?7)

-- name: entries
-- ?1: [id, ...]. The plus makes SQLite look up each id instead of scanning the lane.
SELECT b.pass, b.id, b.task_id, b.version, b.name, b.fairness_key, b.weight, b.ordering_key, b.seq, b.order_at
  FROM json_each(?1) j
  CROSS JOIN fairlead_backlog b ON b.task_id = j.value
 WHERE +b.queue = ?2 AND +b.partition = ?3 AND +b.priority = ?4 AND (+b.pass, b.id) > (?5, ?6)

-- name: owners
SELECT o.queue, o.partition, o.range_id, l.priority, l.record
  FROM fairlead_backlog_owners o
  LEFT JOIN fairlead_backlog_lanes l ON l.queue = o.queue AND l.partition = o.partition
 ORDER BY o.queue, o.partition, l.priority

-- name: ahead
-- ?8: maximum number of entries to count
SELECT count(*), count(DISTINCT fairness_key)
  FROM (SELECT fairness_key
          FROM fairlead_backlog
         WHERE queue = ?1 AND partition = ?2 AND priority = ?3 AND (pass, id) > (?4, ?5) AND (pass, id) < (?6, ?7)
         LIMIT ?8) AS ahead
