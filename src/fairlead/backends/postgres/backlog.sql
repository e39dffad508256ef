-- Statements of the fair backlog on PostgreSQL.

-- name: take_over
-- $1: [[queue, partition], ...], ascending
INSERT INTO fairlead_backlog_owners (queue, partition, range_id)
SELECT j ->> 0, (j ->> 1)::smallint, 1 FROM json_array_elements($1::json) AS j
ON CONFLICT (queue, partition) DO UPDATE SET range_id = fairlead_backlog_owners.range_id + 1
RETURNING queue, partition, range_id, pg_postmaster_start_time()::text

-- name: owned_lanes
-- $1: [[queue, partition], ...]
SELECT l.*
  FROM json_array_elements($1::json) AS j
 CROSS JOIN LATERAL (SELECT queue, partition, priority, record FROM fairlead_backlog_lanes
                      WHERE queue = j ->> 0 AND partition = (j ->> 1)::smallint OFFSET 0) AS l

-- name: fence
-- Returns also a text that another server, or the server after a restart, does not return.
SELECT range_id, pg_postmaster_start_time()::text
  FROM fairlead_backlog_owners WHERE queue = $1 AND partition = $2 FOR SHARE

-- name: write
-- $1 queue, $2 partition, $3 priority; columns: $4 pass, $5 id, $6 task_id, $7 version, $8 name, $9 fairness_key,
-- $10 weight, $11 ordering_key, $12 seq, $13 order_at
INSERT INTO fairlead_backlog (queue, partition, priority, pass, id, task_id, version, name, fairness_key, weight,
       ordering_key, seq, order_at)
SELECT $1, $2, $3, e.*
  FROM unnest($4::bigint[], $5::bigint[], $6::uuid[], $7::integer[], $8::text[], $9::text[], $10::double precision[],
              $11::text[], $12::bigint[], $13::bigint[]) AS e
ON CONFLICT DO NOTHING

-- name: keep_record
-- $5: the number that this process has given last, so that no replaced records are read
UPDATE fairlead_backlog_lanes SET number = number + 1, record = $4
 WHERE queue = $1 AND partition = $2 AND priority = $3 AND number >= $5
RETURNING number

-- name: first_record
INSERT INTO fairlead_backlog_lanes (queue, partition, priority, number, record) VALUES ($1, $2, $3, 1, $4)
ON CONFLICT (queue, partition, priority, number) DO UPDATE SET record = excluded.record
RETURNING number

-- name: read_above
SELECT pass, id, task_id::text, version, name, fairness_key, weight, ordering_key, seq, order_at
  FROM fairlead_backlog
 WHERE queue = $1 AND partition = $2 AND priority = $3 AND (pass, id) > ($4, $5)
 ORDER BY pass, id
 LIMIT $6

-- name: delete_through
DELETE FROM fairlead_backlog
 WHERE queue = $1 AND partition = $2 AND priority = $3 AND (pass, id) > ($4, $5) AND (pass, id) <= ($6, $7)

-- name: entries
-- $1: [id, ...]
SELECT pass, id, task_id::text, version, name, fairness_key, weight, ordering_key, seq, order_at
  FROM (SELECT * FROM fairlead_backlog
         WHERE task_id = ANY (ARRAY(SELECT json_array_elements_text($1::json)::uuid)) OFFSET 0) AS b
 WHERE queue = $2 AND partition = $3 AND priority = $4 AND (pass, id) > ($5, $6)

-- name: owners
SELECT o.queue, o.partition, o.range_id, l.priority, l.record
  FROM fairlead_backlog_owners o
  LEFT JOIN fairlead_backlog_lanes l ON l.queue = o.queue AND l.partition = o.partition
 ORDER BY o.queue, o.partition, l.priority

-- name: ahead
-- $8: maximum number of entries to count
SELECT count(*), count(DISTINCT fairness_key)
  FROM (SELECT fairness_key
          FROM fairlead_backlog
         WHERE queue = $1 AND partition = $2 AND priority = $3 AND (pass, id) > ($4, $5) AND (pass, id) < ($6, $7)
         LIMIT $8::bigint) AS ahead
