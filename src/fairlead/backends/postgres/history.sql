-- Statements that follow the history on PostgreSQL. A position is (xid, seq). Rows below the oldest open transaction
-- (pg_snapshot_xmin) are settled.

-- name: store_id
SELECT store_id FROM fairlead_store

-- name: horizon
-- $1: table, not used here: all tables have one horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 0 WHERE $1::text IS NOT NULL

-- name: attempts
-- $1, $2: after this position; $3, $4: before this position. SELECT hides the positions from the planner, which would expect
-- few rows from old statistics, and sort all that there are.
SELECT {history}
  FROM fairlead_attempts a
 WHERE (xid, seq) > ((SELECT ($1::bigint)::text::xid8), $2::bigint) AND (xid, seq) < ((SELECT ($3::bigint)::text::xid8), $4::bigint)
 ORDER BY a.xid, a.seq
 LIMIT $5

-- name: events
SELECT {event}
  FROM fairlead_events e
 WHERE (xid, seq) > ((SELECT ($1::bigint)::text::xid8), $2::bigint) AND (xid, seq) < ((SELECT ($3::bigint)::text::xid8), $4::bigint)
 ORDER BY e.xid, e.seq
 LIMIT $5

-- name: settled
-- Returns the oldest open transaction that has written (the next one if none is open), the next transaction to write, and an
-- instant before the former: the latest claim of a task whose attempt an earlier transaction has recorded. Prepared
-- transactions are open too. age() counts from the next transaction, which may be later than the end of the snapshot.
SELECT pg_snapshot_xmin(s)::text::bigint,
       pg_snapshot_xmax(s)::text::bigint + age(pg_snapshot_xmax(s)::xid),
       (SELECT max(claimed_at)
          FROM (SELECT claimed_at FROM fairlead_attempts
                 WHERE xid < pg_snapshot_xmin(s) ORDER BY fairlead_attempts.xid DESC, seq DESC LIMIT 100) AS last)
  FROM pg_current_snapshot() AS s

-- name: submitted
-- $1: the last id read, empty at the beginning; $2: an instant before every open transaction; $3: the longest time from
-- making an id to the first write of its transaction. Ids ascend in the order of submits. An open transaction can only add
-- ids that are greater than the id of its first write.
SELECT id::text, id::text, submitted_at, queue, name, fairness_key, weight, priority, run_at
  FROM fairlead_tasks
 WHERE (id, 0) > ((SELECT coalesce(nullif($1::text, ''), '00000000-0000-0000-0000-000000000000')::uuid), 0)
   AND (attempt < 1 OR (attempt = 1 AND state = 'PROCESSING'))
   AND id < (lpad(to_hex(greatest(0, $2::bigint - $3::bigint) / 1000), 12, '0') || '70008000000000000000')::uuid
 ORDER BY fairlead_tasks.id
 LIMIT $4

-- name: newest_submitted
SELECT ((lpad(to_hex($1::bigint / 1000), 12, '0') || '70008000000000000000')::uuid)::text

-- name: ended
-- $1, $2: after this position; $3, $4: up to this position; $5: ended from this instant on; $6: submitted after this instant
SELECT queue, fairness_key, outcome, CASE outcome WHEN 'lost' THEN coalesce(node, '') ELSE '' END, count(*),
       count(*) FILTER (WHERE attempt <= 1 AND submitted_at > $6::bigint)
  FROM fairlead_attempts
 WHERE (xid, seq) > (($1::bigint)::text::xid8, $2::bigint) AND (xid, seq) <= (($3::bigint)::text::xid8, $4::bigint)
   AND finished_at >= $5::bigint
 GROUP BY 1, 2, 3, 4

-- name: attempts_between
SELECT count(*), coalesce(sum(finished_at - started_at), 0)::bigint,
       coalesce(sum((31 * (finished_at % 1000000007) + 17 * (seq % 1000000007) + version) % 1000000007), 0)::bigint
  FROM fairlead_attempts
 WHERE (xid, seq) > (($1::bigint)::text::xid8, $2::bigint) AND (xid, seq) <= (($3::bigint)::text::xid8, $4::bigint)

-- name: position_after
-- $5: number of rows to skip
SELECT xid::text::bigint, seq
  FROM fairlead_attempts
 WHERE (xid, seq) > ((SELECT ($1::bigint)::text::xid8), $2::bigint) AND (xid, seq) <= ((SELECT ($3::bigint)::text::xid8), $4::bigint)
 ORDER BY fairlead_attempts.xid, seq
 LIMIT 1 OFFSET $5

-- name: readers
SELECT name, kind, xid, seq, checked_xid, checked_seq, updated_at, checked_at FROM fairlead_readers ORDER BY name

-- name: advance
-- $1 name, $2 kind, $3 xid, $4 seq, $5 now
INSERT INTO fairlead_readers AS r (name, kind, xid, seq, updated_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
   SET updated_at = excluded.updated_at,
       xid = CASE WHEN (r.xid, r.seq) < (excluded.xid, excluded.seq) THEN excluded.xid ELSE r.xid END,
       seq = CASE WHEN (r.xid, r.seq) < (excluded.xid, excluded.seq) THEN excluded.seq ELSE r.seq END

-- name: checked
UPDATE fairlead_readers SET checked_xid = $2, checked_seq = $3, checked_at = $4 WHERE name = $1

-- name: drop_reader
DELETE FROM fairlead_readers WHERE name = $1 RETURNING name
