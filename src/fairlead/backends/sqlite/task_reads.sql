-- Bounded reads for consoles on SQLite; see backends/sql/task_reads.py. Parameters of a filter (?1 to ?11): state, queue, name,
-- fairness key, submitted before, submitted from, text of the last error, ordering key, unique key, [tenant, ...], tags. NULL
-- selects any value. The tenant of a key is the text before the first slash that is not its first character.

-- name: matching
   AND (?2 IS NULL OR queue = ?2) AND (?3 IS NULL OR name = ?3)
   AND (?4 IS NULL OR fairness_key = ?4)
   AND (?5 IS NULL OR submitted_at < ?5) AND (?6 IS NULL OR submitted_at >= ?6)
   AND (?7 IS NULL OR instr(lower(coalesce(error_type, '') || char(10) || coalesce(error_text, '')), lower(?7)) > 0)
   AND (?8 IS NULL OR ordering_key = ?8) AND (?9 IS NULL OR unique_key = ?9)
   AND (?10 IS NULL OR substr(fairness_key, 1, instr(substr(fairness_key || '/', 2), '/')) IN (SELECT value FROM json_each(?10)))
   AND (?11 IS NULL OR tags = ?11)

-- name: matching_tasks
-- Appended to `in_range` and `of`.
   AND (?1 IS NULL OR state = ?1)
{matching}

-- name: matching_attempts
-- Appended to `in_history`.
   AND (?1 IS NULL OR next_state = ?1)
{matching}

-- name: tasks
-- Columns of a task; `sizes` and `ids` have fewer.
SELECT {task}

-- name: sizes
SELECT t.id, length(payload)

-- name: ids
SELECT t.id

-- name: in_range
-- ?12, ?13: first and last id; ?14: maximum number of tasks
  FROM fairlead_tasks t
 WHERE t.id BETWEEN ?12 AND ?13

-- name: of
-- As `in_range`; ?15: [id, ...]
  FROM json_each(?15) j
 CROSS JOIN fairlead_tasks t ON t.id = j.value
 WHERE t.id BETWEEN ?12 AND ?13

-- name: oldest_task_first
 ORDER BY t.id LIMIT ?14

-- name: newest_task_first
 ORDER BY t.id DESC LIMIT ?14

-- name: end_of_oldest
-- The id ?3 rows after the first one of a range.
SELECT t.id FROM fairlead_tasks t WHERE t.id BETWEEN ?1 AND ?2 ORDER BY t.id LIMIT 1 OFFSET ?3

-- name: end_of_newest
-- The id ?3 rows after the first one of a range.
SELECT t.id FROM fairlead_tasks t WHERE t.id BETWEEN ?1 AND ?2 ORDER BY t.id DESC LIMIT 1 OFFSET ?3

-- name: finished
-- Columns of an attempt, of which the first two are its position; `ends` has the position alone.
SELECT {history}

-- name: ends
SELECT 0, a.seq

-- name: in_history
-- ?12, ?13 and ?14, ?15: first and last position; ?16, ?17: first and last id; ?18: maximum number of tasks
  FROM fairlead_attempts a
 WHERE a.seq BETWEEN ?13 AND ?15
   AND task_id BETWEEN ?16 AND ?17

-- name: oldest_end_first
 ORDER BY a.seq LIMIT ?18

-- name: newest_end_first
 ORDER BY a.seq DESC LIMIT ?18

-- name: end_of_oldest_ends
-- The position ?5 rows after the first one of a range.
SELECT 0, a.seq FROM fairlead_attempts a
 WHERE a.seq BETWEEN ?2 AND ?4
 ORDER BY a.seq LIMIT 1 OFFSET ?5

-- name: end_of_newest_ends
-- The position ?5 rows after the first one of a range.
SELECT 0, a.seq FROM fairlead_attempts a
 WHERE a.seq BETWEEN ?2 AND ?4
 ORDER BY a.seq DESC LIMIT 1 OFFSET ?5

-- name: payloads
-- ?1: [id, ...]
SELECT t.id, t.payload, t.payload_format FROM json_each(?1) j CROSS JOIN fairlead_tasks t ON t.id = j.value

-- name: runs
SELECT {run_fact}
  FROM fairlead_attempts a
 ORDER BY a.seq DESC
 LIMIT ?1

-- name: running
-- ?1: maximum number. DISTINCT, because a task that a node claims twice is in two batches of claims.
SELECT DISTINCT t.id, t.version, t.queue, t.name, t.fairness_key, t.node, t.claimed_at
  FROM fairlead_claims g, json_each(g.seqs) j
 CROSS JOIN fairlead_tasks t ON t.seq = j.value
 WHERE t.state = 'PROCESSING' AND t.node = g.node
 ORDER BY t.claimed_at, t.id
 LIMIT ?1

-- name: mark
SELECT (SELECT max(seq) FROM fairlead_attempts), (SELECT max(id) FROM fairlead_incidents),
       (SELECT number FROM fairlead_changes WHERE kind = 'queues')

-- name: range
-- First and last seq, and the number of tasks, counted up to ?1.
SELECT min(seq), (SELECT max(seq) FROM fairlead_tasks), (SELECT count(*) FROM (SELECT 1 FROM fairlead_tasks LIMIT ?1))
  FROM fairlead_tasks

-- name: backlog
SELECT queue, name, fairness_key, state, count(*), min(coalesce(ready_at, run_at)), max(weight)
  FROM fairlead_tasks
 GROUP BY queue, name, fairness_key, state

-- name: backlog_of
-- ?1: [seq, ...]
SELECT queue, name, fairness_key, state, count(*), min(coalesce(ready_at, run_at)), max(weight)
  FROM json_each(?1) j
 CROSS JOIN fairlead_tasks t ON t.seq = j.value
 GROUP BY queue, name, fairness_key, state

-- name: errors
SELECT i.subject, t.queue, t.name, t.fairness_key, i.since, t.error_type
  FROM (SELECT subject, version, since FROM fairlead_incidents WHERE kind = 'error' ORDER BY subject DESC LIMIT ?1) i
 CROSS JOIN fairlead_tasks t ON t.id = i.subject AND t.version = i.version
 ORDER BY i.subject DESC

-- name: oldest_error_ids
-- ?1, ?2: first and last id; ?3: maximum number. Each task in ERROR has an incident.
SELECT subject FROM fairlead_incidents WHERE kind = 'error' AND subject BETWEEN ?1 AND ?2 ORDER BY subject LIMIT ?3

-- name: newest_error_ids
SELECT subject FROM fairlead_incidents WHERE kind = 'error' AND subject BETWEEN ?1 AND ?2 ORDER BY subject DESC LIMIT ?3

-- name: ids_of_unique_key
-- ?1: unique key; ?2: queue, or NULL for all: walks the index from queue to queue. A key belongs to its task at least until
-- the task ends.
WITH RECURSIVE q (queue) AS (
    SELECT coalesce(?2, (SELECT min(queue) FROM fairlead_unique_keys))
    UNION ALL
    SELECT (SELECT t.queue FROM fairlead_unique_keys t WHERE t.queue > q.queue ORDER BY t.queue LIMIT 1)
      FROM q
     WHERE q.queue IS NOT NULL AND ?2 IS NULL
)
SELECT k.task_id
  FROM q
 CROSS JOIN fairlead_unique_keys k ON k.queue = q.queue AND k.unique_key = ?1

-- name: ids_of_ordering_key
-- ?1: ordering key; ?2: queue, or NULL for all, as above; ?3: maximum number
WITH RECURSIVE q (queue) AS (
    SELECT coalesce(?2, (SELECT min(queue) FROM fairlead_tasks WHERE ordering_key IS NOT NULL))
    UNION ALL
    SELECT (SELECT t.queue FROM fairlead_tasks t WHERE ordering_key IS NOT NULL AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
      FROM q
     WHERE q.queue IS NOT NULL AND ?2 IS NULL
)
SELECT t.id
  FROM q
 CROSS JOIN fairlead_tasks t ON t.queue = q.queue AND t.ordering_key = ?1
 LIMIT ?3

-- name: key_settings
-- ?1: [[queue, fairness_key], ...]
SELECT j.value ->> 0, j.value ->> 1, w.weight, l.slots
  FROM json_each(?1) j
  LEFT JOIN fairlead_weights w ON w.queue = j.value ->> 0 AND w.fairness_key = j.value ->> 1
  LEFT JOIN fairlead_limits l ON l.queue = j.value ->> 0 AND l.fairness_key = j.value ->> 1
 WHERE w.weight IS NOT NULL OR l.slots IS NOT NULL
