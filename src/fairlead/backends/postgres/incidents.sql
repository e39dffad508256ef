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
 WHERE ctid = ANY (ARRAY(SELECT i.ctid
                           FROM json_array_elements($1::json) AS j
                          CROSS JOIN LATERAL (SELECT ctid FROM fairlead_incidents
                                               WHERE kind = 'error' AND subject = j ->> 0 AND version = (j ->> 1)::integer OFFSET 0) AS i))

-- name: report
-- $1: [[kind, subject, version, queue, name, since, details], ...]; $2: now; $3: an incident that was reported
-- last before this instant begins anew. A report within 20 seconds after the one that the row has changes nothing, so that few
-- replaced rows are in the way of the next one.
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT j ->> 0, j ->> 1, (j ->> 2)::integer, j ->> 3, j ->> 4, (j ->> 5)::bigint, $2::bigint, j ->> 6, $2::bigint
  FROM json_array_elements($1::json) AS j
ON CONFLICT (kind, subject, version) DO UPDATE SET seen_at = excluded.seen_at, details = excluded.details,
       since = CASE WHEN fairlead_incidents.seen_at < $3 THEN excluded.since ELSE fairlead_incidents.since END
 WHERE excluded.seen_at NOT BETWEEN fairlead_incidents.seen_at AND fairlead_incidents.seen_at + 20000000

-- name: claim
UPDATE fairlead_incidents SET deliver_at = $2, deliveries = deliveries + 1
 WHERE id = ANY (ARRAY(SELECT id FROM fairlead_incidents
                        WHERE delivered_at IS NULL AND deliver_at <= $1
                        ORDER BY deliver_at, id LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING {incident}

-- name: tasks_of
SELECT {task}
  FROM fairlead_tasks t
 WHERE t.id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($1::json) AS j)::uuid[])

-- name: delete
DELETE FROM fairlead_incidents WHERE id = ANY (ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j))

-- name: delivered
UPDATE fairlead_incidents SET delivered_at = $2
 WHERE id = ANY (ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j)) AND delivered_at IS NULL

-- name: retry
-- $1: [[id, deliver_at], ...]. The id is compared as in try_again in schedule.sql.
UPDATE fairlead_incidents i SET deliver_at = (j ->> 1)::bigint
  FROM json_array_elements($1::json) AS j
 WHERE i.ctid = ANY (ARRAY(SELECT n.ctid
                             FROM json_array_elements($1::json) AS k
                            CROSS JOIN LATERAL (SELECT ctid FROM fairlead_incidents WHERE id = (k ->> 0)::bigint OFFSET 0) AS n))
   AND i.id IS NOT DISTINCT FROM (j ->> 0)::bigint AND i.delivered_at IS NULL

-- name: page
SELECT id FROM fairlead_incidents WHERE id > $1 ORDER BY id LIMIT $2

-- name: sweep
-- $1: [id, ...]; $2: instant before which an incident without a task is over
DELETE FROM fairlead_incidents i
 WHERE id = ANY (ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j))
   AND CASE kind
       WHEN 'error' THEN NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = i.subject::uuid AND t.version = i.version OFFSET 0)
       ELSE delivered_at IS NOT NULL AND seen_at < $2
       END

-- name: counts
SELECT kind, queue, name, count(*) FROM fairlead_incidents WHERE kind = 'error' OR seen_at >= $1 GROUP BY kind, queue, name

-- name: undelivered
-- In the order of their index, so that those that were delivered, and those beyond the limit, are not read.
SELECT {incident}
  FROM (SELECT * FROM fairlead_incidents WHERE delivered_at IS NULL ORDER BY deliver_at, id LIMIT $1) AS first
 ORDER BY id

-- name: open
-- $1: [kind, ...]; $2: maximum number, of each kind and of all; $3: instant of the earliest last report. The kind is compared
-- by ranges and is part of the order, so that a page of a kind is read in order.
SELECT {incident}
  FROM json_array_elements_text($1::json) AS wanted
 CROSS JOIN LATERAL (SELECT * FROM fairlead_incidents WHERE (kind, subject) >= (wanted, '') AND kind <= wanted ORDER BY kind DESC, subject DESC LIMIT $2::bigint) AS i
 WHERE seen_at >= $3
 ORDER BY i.id DESC
 LIMIT $2::bigint

-- name: latest
SELECT {incident}
  FROM fairlead_incidents WHERE id < $1 AND (kind = 'error' OR seen_at >= $3) ORDER BY id DESC LIMIT $2
