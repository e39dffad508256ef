-- Statements of the data source on PostgreSQL. $1, $2 are parameters. {history} is a list of backends/sql/columns.py. COPY
-- accepts no parameters, so the driver replaces {columns} by names of the table's columns, and the other names in braces by
-- quoted literals.

-- name: extent
-- $1: table. Return its number of blocks and the horizon; rows of all transactions before the horizon are visible now.
SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint,
       pg_snapshot_xmin(pg_current_snapshot())::text

-- name: attempts
-- A piece reads its range of blocks; all pieces of a scan read only rows written before {horizon}. No attempt ever moves.
SELECT {columns}
  FROM (SELECT {history} FROM fairlead_attempts a
         WHERE ctid >= {first}::tid AND ctid < {past}::tid AND a.xid < {horizon}::xid8) AS attempts
 WHERE ({queue}::text IS NULL OR queue = {queue}) AND ({since}::bigint IS NULL OR finished_at >= {since})
   AND ({until}::bigint IS NULL OR finished_at < {until})

-- name: tasks
SELECT {columns}
  FROM (SELECT *, id::text AS task_id, length(payload) AS payload_bytes FROM fairlead_tasks
         WHERE ctid >= {first}::tid AND ctid < {past}::tid) AS tasks
 WHERE ({queue}::text IS NULL OR queue = {queue}) AND ({since}::bigint IS NULL OR submitted_at >= {since})
   AND ({until}::bigint IS NULL OR submitted_at < {until})

-- name: newest
-- $1, $2: position after which to look
SELECT xid::text::bigint, seq
  FROM fairlead_attempts
 WHERE (xid, seq) > (($1::bigint)::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY xid DESC, seq DESC
 LIMIT 1

-- name: newest_of_next
-- $1, $2: position after which to look; $3: number of attempts to look at
SELECT xid::text::bigint, seq
  FROM (SELECT xid, seq
          FROM fairlead_attempts
         WHERE (xid, seq) > (($1::bigint)::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY xid, seq
         LIMIT $3) AS first
 ORDER BY first.xid DESC, seq DESC
 LIMIT 1

-- name: window
-- Attempts after one position and up to another, in the order of positions.
SELECT {columns}
  FROM (SELECT {history} FROM fairlead_attempts a
         WHERE (a.xid, seq) > ({after_xid}::text::xid8, {after_seq}::bigint)
           AND (a.xid, seq) <= ({through_xid}::text::xid8, {through_seq}::bigint)
         ORDER BY a.xid, a.seq) AS attempts
 WHERE ({queue}::text IS NULL OR queue = {queue})
