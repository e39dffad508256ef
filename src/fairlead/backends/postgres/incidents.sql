-- Statements of the incidents on PostgreSQL. Each change of deliver_at draws a deliver_seq, by which a search that begins at a
-- floor finds the incidents that came later (see due_floor.py).

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
-- $1: [[kind, subject, version, queue, name, since, details], ...]; $2: now. A report within ten minutes after the one that the
-- row has changes nothing, so that few replaced rows are in the way of the next one.
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT j ->> 0, j ->> 1, (j ->> 2)::integer, j ->> 3, j ->> 4, (j ->> 5)::bigint, $2::bigint, j ->> 6, $2::bigint
  FROM json_array_elements($1::json) AS j
ON CONFLICT (kind, subject, version) DO UPDATE SET seen_at = excluded.seen_at, details = excluded.details
 WHERE excluded.seen_at NOT BETWEEN fairlead_incidents.seen_at AND fairlead_incidents.seen_at + 600000000

-- name: mark
-- As lane_mark in task_store.sql.
SELECT coalesce(pg_sequence_last_value('fairlead_ready_seq'::regclass), 0),
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       ARRAY(SELECT DISTINCT virtualtransaction FROM pg_locks
              WHERE locktype = 'relation' AND relation = 'fairlead_incidents'::regclass
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock'))

-- name: next_delivery
-- Appended to due_floor. The expressions keep the planner from the index of the undelivered.
SELECT least((SELECT deliver_at FROM fairlead_incidents
               WHERE delivered_at IS NULL AND deliver_at >= (SELECT due_at FROM floor) ORDER BY deliver_at LIMIT 1),
             (SELECT min(coalesce(deliver_at, 0)) FROM fairlead_incidents
               WHERE coalesce(delivered_at, -1) < 0 AND deliver_seq > (SELECT due_seq FROM floor) AND deliver_seq < 9223372036854775807
                 AND coalesce(deliver_at, 0) < (SELECT due_at FROM floor)))

-- name: claim
-- Appended to due_floor. $4: now; $5: instant up to which the incidents are hidden; $6: maximum number of incidents
UPDATE fairlead_incidents SET deliver_at = $5, deliver_seq = nextval('fairlead_ready_seq'), deliveries = deliveries + 1
 WHERE id = ANY (ARRAY(
       SELECT id
         FROM (SELECT id FROM fairlead_incidents
                WHERE coalesce(delivered_at, -1) < 0 AND deliver_seq > (SELECT due_seq FROM floor) AND deliver_seq < 9223372036854775807
                  AND coalesce(deliver_at, 0) < (SELECT due_at FROM floor) AND coalesce(deliver_at, 0) <= $4
                ORDER BY coalesce(deliver_at, 0), id LIMIT $6 FOR UPDATE SKIP LOCKED) AS late
       UNION ALL
       SELECT id
         FROM (SELECT id FROM fairlead_incidents
                WHERE delivered_at IS NULL AND deliver_at >= (SELECT due_at FROM floor) AND deliver_at <= $4
                ORDER BY deliver_at, id LIMIT $6 FOR UPDATE SKIP LOCKED) AS others
        LIMIT $6))
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
-- $1: [[id, deliver_at], ...]. The id is compared as in try_again in schedule.sql.
UPDATE fairlead_incidents i SET deliver_at = (j ->> 1)::bigint, deliver_seq = nextval('fairlead_ready_seq')
  FROM json_array_elements($1::json) AS j
 WHERE i.ctid = ANY (ARRAY(SELECT n.ctid
                             FROM json_array_elements($1::json) AS k
                            CROSS JOIN LATERAL (SELECT ctid FROM fairlead_incidents WHERE id = (k ->> 0)::bigint OFFSET 0) AS n))
   AND i.id IS NOT DISTINCT FROM (j ->> 0)::bigint AND i.delivered_at IS NULL

-- name: arrivals
-- $1: the incidents up to this deliver_seq are known; $2: maximum number of incidents
SELECT deliver_seq, id FROM fairlead_incidents WHERE deliver_seq > $1 ORDER BY deliver_seq LIMIT $2

-- name: sweep
-- $1: [id, ...]; $2: instant before which an incident without a task is over. Returns the ids that were there at the
-- beginning, so that a sweep whose commit fails forgets none.
WITH given AS MATERIALIZED (
    SELECT ARRAY(SELECT j::bigint FROM json_array_elements_text($1::json) AS j) AS ids
), gone AS (
    DELETE FROM fairlead_incidents i
     WHERE id = ANY ((SELECT ids FROM given)::bigint[])
       AND CASE kind
           WHEN 'error' THEN NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = i.subject::uuid AND t.version = i.version OFFSET 0)
           WHEN 'stuck' THEN delivered_at IS NOT NULL
                             AND NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = i.subject::uuid AND t.version = i.version OFFSET 0)
           ELSE delivered_at IS NOT NULL AND seen_at < $2
           END
)
SELECT id FROM fairlead_incidents WHERE id = ANY ((SELECT ids FROM given)::bigint[]) ORDER BY id

-- name: counts
-- $1: ids of the open incidents that a sweep has found; $2: deliver_seq up to which it has found all; $3: the start of the
-- server that has them
SELECT kind, queue, name, count(*)
  FROM (SELECT id, kind, queue, name FROM fairlead_incidents WHERE id = ANY ((SELECT $1::bigint[])::bigint[])
        UNION
        SELECT id, kind, queue, name FROM fairlead_incidents
         WHERE deliver_seq < 9223372036854775807
           AND deliver_seq > (SELECT CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3
                                         THEN $2::bigint ELSE 0 END)) AS found
 GROUP BY kind, queue, name

-- name: undelivered
-- In the order of their index, so that those that were delivered, and those beyond the limit, are not read.
SELECT id, kind, subject, details, since, queue, name, version, deliveries, delivered_at
  FROM (SELECT * FROM fairlead_incidents WHERE delivered_at IS NULL ORDER BY deliver_at, id LIMIT $1) AS first
 ORDER BY id

-- name: open
-- $1: [kind, ...]; $2: maximum number, of each kind and of all; $3: instant of the earliest last report. The kind is compared by ranges and is part of the order, so that
-- a page of a kind is read in order.
SELECT id, kind, subject, details, since, queue, name, version, deliveries, delivered_at
  FROM json_array_elements_text($1::json) AS wanted
 CROSS JOIN LATERAL (SELECT * FROM fairlead_incidents WHERE (kind, subject) >= (wanted, '') AND kind <= wanted ORDER BY kind DESC, subject DESC LIMIT $2::bigint) AS i
 WHERE seen_at >= $3
 ORDER BY i.id DESC
 LIMIT $2::bigint

-- name: latest
SELECT id, kind, subject, details, since, queue, name, version, deliveries, delivered_at
  FROM fairlead_incidents WHERE id < $1 ORDER BY id DESC LIMIT $2
