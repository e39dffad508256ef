-- Bounded reads for consoles on PostgreSQL; see backends/sql/task_reads.py. Parameters of a filter ($1 to $11): state, queue, name,
-- fairness key, submitted before, submitted from, text of the last error, ordering key, unique key, [tenant, ...], tags. NULL
-- selects any value. The tenant of a key is the text before the first slash that is not its first character.

-- name: matching
   AND ($2::text IS NULL OR queue = $2::text) AND ($3::text IS NULL OR name = $3::text)
   AND ($4::text IS NULL OR fairness_key = $4::text)
   AND ($5::bigint IS NULL OR submitted_at < $5::bigint) AND ($6::bigint IS NULL OR submitted_at >= $6::bigint)
   AND ($7::text IS NULL OR strpos(lower(concat(error_type, E'\n', error_text) COLLATE "C"), lower($7::text COLLATE "C")) > 0)
   AND ($8::text IS NULL OR ordering_key = $8::text) AND ($9::text IS NULL OR unique_key = $9::text)
   AND ($10::text IS NULL OR left(fairness_key, strpos(substr(fairness_key || '/', 2), '/')) IN (SELECT json_array_elements_text($10::json)))
   AND ($11::text IS NULL OR tags = $11::text)

-- name: matching_tasks
-- Appended to `in_range` and `of`.
   AND ($1::text IS NULL OR state = $1::text)
{matching}

-- name: matching_attempts
-- Appended to `in_history`.
   AND ($1::text IS NULL OR next_state = $1::text)
{matching}

-- name: tasks
-- Columns of a task; `sizes` and `ids` have fewer.
SELECT {task}

-- name: sizes
SELECT t.id::text, length(payload)

-- name: ids
SELECT t.id::text

-- name: in_range
-- $12, $13: first and last id; $14: maximum number of tasks
  FROM fairlead_tasks t
 WHERE t.id BETWEEN $12::text::uuid AND $13::text::uuid

-- name: of
-- As `in_range`; $15: [id, ...]
  FROM fairlead_tasks t
 WHERE t.id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($15::json) AS j)::uuid[])
   AND t.id BETWEEN $12::text::uuid AND $13::text::uuid

-- name: oldest_task_first
 ORDER BY t.id LIMIT $14::bigint

-- name: newest_task_first
 ORDER BY t.id DESC LIMIT $14::bigint

-- name: end_of_oldest
-- The id $3 rows after the first one of a range. The ids are compared as rows, which lets the planner expect many, so that it
-- reads them in their order.
SELECT t.id::text FROM fairlead_tasks t
 WHERE (t.id, 0) >= ($1::text::uuid, 0) AND (t.id, 0) <= ($2::text::uuid, 0)
 ORDER BY t.id LIMIT 1 OFFSET $3::bigint

-- name: end_of_newest
-- The id $3 rows after the first one of a range.
SELECT t.id::text FROM fairlead_tasks t
 WHERE (t.id, 0) >= ($1::text::uuid, 0) AND (t.id, 0) <= ($2::text::uuid, 0)
 ORDER BY t.id DESC LIMIT 1 OFFSET $3::bigint

-- name: finished
-- Columns of an attempt, of which the first two are its position; `ends` has the position alone.
SELECT {history}

-- name: ends
SELECT a.xid::text::bigint, a.seq

-- name: in_history
-- $12, $13 and $14, $15: first and last position; $16, $17: first and last id; $18: maximum number of tasks
  FROM fairlead_attempts a
 WHERE (a.xid, a.seq) BETWEEN (($12::bigint)::text::xid8, $13::bigint) AND (($14::bigint)::text::xid8, $15::bigint)
   AND task_id BETWEEN $16::text::uuid AND $17::text::uuid

-- name: oldest_end_first
 ORDER BY a.xid, a.seq LIMIT $18::bigint

-- name: newest_end_first
 ORDER BY a.xid DESC, a.seq DESC LIMIT $18::bigint

-- name: end_of_oldest_ends
-- The position $5 rows after the first one of a range.
SELECT a.xid::text::bigint, a.seq FROM fairlead_attempts a
 WHERE (a.xid, a.seq) BETWEEN (($1::bigint)::text::xid8, $2::bigint) AND (($3::bigint)::text::xid8, $4::bigint)
 ORDER BY a.xid, a.seq LIMIT 1 OFFSET $5::bigint

-- name: end_of_newest_ends
-- The position $5 rows after the first one of a range.
SELECT a.xid::text::bigint, a.seq FROM fairlead_attempts a
 WHERE (a.xid, a.seq) BETWEEN (($1::bigint)::text::xid8, $2::bigint) AND (($3::bigint)::text::xid8, $4::bigint)
 ORDER BY a.xid DESC, a.seq DESC LIMIT 1 OFFSET $5::bigint

-- name: payloads
-- $1: [id, ...]
SELECT id::text, payload, payload_format
  FROM fairlead_tasks
 WHERE id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($1::json) AS j)::uuid[])

-- name: runs
SELECT {run_fact}
  FROM fairlead_attempts a
 ORDER BY a.xid DESC, a.seq DESC
 LIMIT $1::bigint

-- name: running
-- $1: maximum number. Those that nodes noted and that still run.
SELECT id::text, version, queue, name, fairness_key, node, claimed_at
  FROM fairlead_tasks
 WHERE id = ANY (ARRAY(SELECT j::uuid FROM fairlead_running CROSS JOIN LATERAL json_array_elements_text(tasks::json) AS j)::uuid[])
   AND state = 'PROCESSING'
 ORDER BY claimed_at, fairlead_tasks.id
 LIMIT $1::bigint

-- name: mark
SELECT (SELECT xid::text || '.' || seq FROM fairlead_attempts a ORDER BY a.xid DESC, a.seq DESC LIMIT 1),
       (SELECT id FROM fairlead_incidents ORDER BY id DESC LIMIT 1),
       (SELECT number FROM fairlead_changes WHERE kind = 'queues')

-- name: sampled_part
-- $1: number of pages to read. The part of the table's pages that the sample reads, from 0 to 1.
SELECT least(1.0, $1::double precision
                  / greatest(1, pg_relation_size('fairlead_tasks') / current_setting('block_size')::bigint))::double precision

-- name: backlog
-- $1: part of the table's pages to read. The same pages are read again while the table has the same size.
SELECT queue, name, fairness_key, state, count(*), min(coalesce(ready_at, run_at)), max(weight)
  FROM fairlead_tasks TABLESAMPLE SYSTEM (100 * $1::double precision) REPEATABLE (0)
 GROUP BY queue, name, fairness_key, state

-- name: errors
SELECT i.subject, t.queue, t.name, t.fairness_key, i.since, t.error_type
  FROM (SELECT subject, version, since FROM fairlead_incidents
         WHERE kind <= 'error' AND (kind, subject) >= ('error', '') ORDER BY kind DESC, subject DESC LIMIT $1::bigint) AS i
 CROSS JOIN LATERAL (SELECT queue, name, fairness_key, error_type FROM fairlead_tasks
                      WHERE id = i.subject::uuid AND version = i.version OFFSET 0) AS t
 ORDER BY i.subject DESC

-- name: oldest_error_ids
-- $1, $2: first and last id; $3: maximum number. Each task in ERROR has an incident. The kind is compared by ranges, as in
-- `open` in incidents.sql.
SELECT subject FROM fairlead_incidents
 WHERE (kind, subject) >= ('error', $1::text) AND (kind, subject) <= ('error', $2::text)
 ORDER BY kind, subject LIMIT $3::bigint

-- name: newest_error_ids
SELECT subject FROM fairlead_incidents
 WHERE (kind, subject) >= ('error', $1::text) AND (kind, subject) <= ('error', $2::text)
 ORDER BY kind DESC, subject DESC LIMIT $3::bigint

-- name: ids_of_unique_key
-- $1: unique key; $2: queue, or NULL for all: walks the index from queue to queue. A key belongs to its task at least until
-- the task ends.
WITH RECURSIVE q (queue) AS (
    SELECT coalesce($2::text, (SELECT t.queue FROM fairlead_unique_keys t ORDER BY t.queue LIMIT 1))
    UNION ALL
    SELECT (SELECT t.queue FROM fairlead_unique_keys t WHERE t.queue > q.queue ORDER BY t.queue LIMIT 1)
      FROM q
     WHERE q.queue IS NOT NULL AND $2::text IS NULL
)
SELECT k.id
  FROM q
 CROSS JOIN LATERAL (SELECT task_id::text AS id FROM fairlead_unique_keys
                      WHERE queue = q.queue AND unique_key = $1::text OFFSET 0) AS k

-- name: ids_of_ordering_key
-- $1: ordering key; $2: queue, or NULL for all, as above; $3: maximum number
WITH RECURSIVE q (queue) AS (
    SELECT coalesce($2::text, (SELECT t.queue FROM fairlead_tasks t WHERE order_seq IS NOT NULL ORDER BY t.queue LIMIT 1))
    UNION ALL
    SELECT (SELECT t.queue FROM fairlead_tasks t WHERE order_seq IS NOT NULL AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
      FROM q
     WHERE q.queue IS NOT NULL AND $2::text IS NULL
)
SELECT k.id
  FROM q
 CROSS JOIN LATERAL (SELECT id::text FROM fairlead_tasks
                      WHERE queue = q.queue AND ordering_key = $1::text AND order_seq IS NOT NULL
                      ORDER BY order_seq LIMIT $3::bigint) AS k
 LIMIT $3::bigint

-- name: key_settings
-- $1: [[queue, fairness_key], ...]
SELECT j ->> 0, j ->> 1, w.weight, l.slots
  FROM json_array_elements($1::json) AS j
  LEFT JOIN LATERAL (SELECT weight FROM fairlead_weights WHERE queue = j ->> 0 AND fairness_key = j ->> 1 OFFSET 0) AS w ON true
  LEFT JOIN LATERAL (SELECT slots FROM fairlead_limits WHERE queue = j ->> 0 AND fairness_key = j ->> 1 OFFSET 0) AS l ON true
 WHERE w.weight IS NOT NULL OR l.slots IS NOT NULL
