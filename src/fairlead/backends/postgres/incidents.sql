-- Statements of the incidents on PostgreSQL.

-- name: note_errors
-- $1: [id, ...] of tasks that this transaction has moved to ERROR; $2: now
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT 'error', t.id::text, t.version, t.queue, t.name, $2::bigint, $2::bigint,
       left(coalesce(t.error_type || ': ', '') || coalesce(t.error_text, ''), 1000), $2::bigint
  FROM fairlead_tasks t
 WHERE t.id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($1::json) AS j)::uuid[]) AND t.state = 'ERROR'
ON CONFLICT DO NOTHING

-- name: drop_errors
-- $1: [[id, version], ...]
DELETE FROM fairlead_incidents
 WHERE kind = 'error' AND subject = ANY (ARRAY(SELECT j ->> 0 FROM json_array_elements($1::json) AS j))
   AND (subject, version) IN (SELECT j ->> 0, (j ->> 1)::integer FROM json_array_elements($1::json) AS j)

-- name: report
-- $1: [[kind, subject, version, queue, name, since, details], ...]; $2: now
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT j ->> 0, j ->> 1, (j ->> 2)::integer, j ->> 3, j ->> 4, (j ->> 5)::bigint, $2::bigint, j ->> 6, $2::bigint
  FROM json_array_elements($1::json) AS j
ON CONFLICT (kind, subject, version) DO UPDATE SET seen_at = excluded.seen_at, details = excluded.details

-- name: claim
UPDATE fairlead_incidents SET deliver_at = $2, deliveries = deliveries + 1
 WHERE id = ANY (ARRAY(SELECT id FROM fairlead_incidents
                        WHERE delivered_at IS NULL AND deliver_at <= $1
                        ORDER BY deliver_at, id LIMIT $3
                          FOR UPDATE SKIP LOCKED))
RETURNING id, kind, subject, details, since, queue, name, version, deliveries, delivered_at

-- name: tasks_of
SELECT t.id::text, queue, partition, name, state, version, attempt, tries, priority, fairness_key, weight, ordering_key,
       unique_key, submitted_at, run_at, ready_at, claimed_at, node, error_type, error_text, context, length(payload)
  FROM fairlead_tasks t
 WHERE t.id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($1::json) AS j)::uuid[])

-- name: delete
DELETE FROM fairlead_incidents WHERE id = ANY (ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j))

-- name: delivered
UPDATE fairlead_incidents SET delivered_at = $2
 WHERE id = ANY (ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j)) AND delivered_at IS NULL

-- name: retry
-- $1: [[id, deliver_at], ...]
UPDATE fairlead_incidents i SET deliver_at = (j ->> 1)::bigint
  FROM json_array_elements($1::json) AS j
 WHERE i.id = (j ->> 0)::bigint AND i.delivered_at IS NULL

-- name: page
SELECT id FROM fairlead_incidents WHERE id > $1 ORDER BY id LIMIT $2

-- name: sweep
-- $1 to $2: the ids of a page, the first excluded; $3: instant before which an incident without a task is over
DELETE FROM fairlead_incidents i
 WHERE id > $1 AND id <= $2
   AND CASE kind
       WHEN 'error' THEN NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = i.subject::uuid AND t.version = i.version OFFSET 0)
       WHEN 'stuck' THEN delivered_at IS NOT NULL
                         AND NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = i.subject::uuid AND t.version = i.version OFFSET 0)
       ELSE delivered_at IS NOT NULL AND seen_at < $3
       END

-- name: counts
SELECT kind, queue, name, count(*) FROM fairlead_incidents GROUP BY kind, queue, name

-- name: undelivered
SELECT id, kind, subject, details, since, queue, name, version, deliveries, delivered_at
  FROM fairlead_incidents WHERE delivered_at IS NULL ORDER BY id LIMIT $1
