-- Statements of ordered queues on PostgreSQL: the task log and the schedule. A batch is one JSON array.

-- name: append
-- $1: [[queue, partition, message], ...]
INSERT INTO fairlead_task_log (queue, partition, message)
SELECT j ->> 0, (j ->> 1)::smallint, j ->> 2 FROM json_array_elements($1::json) WITH ORDINALITY AS g (j, n) ORDER BY n

-- name: receive
-- $1: [[queue, partition, mark], ...] (see low_water.py); $2: maximum number of entries of each partition; $3: the
-- start of the server on which the marks hold; $4: maximum number of bytes of each partition, but one entry at least.
-- A long message stays in its own table until it is sent.
SELECT l.seq, l.queue, l.partition, l.message
  FROM json_array_elements($1::json) AS j
  CROSS JOIN LATERAL (SELECT r.*, row_number() OVER w AS n, sum(octet_length(message)) OVER w AS total
                        FROM (SELECT seq, queue, partition, message
                                FROM fairlead_task_log
                               WHERE queue = j ->> 0 AND partition = (j ->> 1)::smallint
                                 AND seq > CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3
                                                THEN (j ->> 2)::bigint ELSE 0 END
                               ORDER BY seq LIMIT $2::bigint) AS r
                      WINDOW w AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)) AS l
 WHERE n = 1 OR total <= $4::bigint
 ORDER BY l.seq

-- name: commit
-- $1: [seq, ...] of the queue $2 and the partition $3
DELETE FROM fairlead_task_log
 WHERE ctid = ANY (ARRAY(SELECT l.ctid
                           FROM json_array_elements_text($1::json) AS w
                          CROSS JOIN LATERAL (SELECT ctid FROM fairlead_task_log
                                               WHERE queue = $2 AND partition = $3 AND seq = w::bigint OFFSET 0) AS l))

-- name: lag
SELECT partition, count(*) FROM fairlead_task_log WHERE queue = $1 GROUP BY partition

-- name: has_entries
-- $1: queue; $2: [[queue, partition, mark], ...]; $3: as in receive. Returns each registered partition with the position of
-- its first entry or NULL, and -1 with that of the other partitions.
WITH registered AS MATERIALIZED (
    SELECT coalesce((SELECT partitions FROM fairlead_queues WHERE queue = $1), 0) AS partitions
)
SELECT p.number, (SELECT seq FROM fairlead_task_log
                   WHERE queue = $1 AND partition = p.number::smallint
                     AND seq > CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3
                                    THEN coalesce(m.mark, 0) ELSE 0 END
                   ORDER BY seq LIMIT 1)
  FROM registered
 CROSS JOIN LATERAL generate_series(0, partitions - 1) AS p (number)
  LEFT JOIN (SELECT (j ->> 1)::integer AS number, (j ->> 2)::bigint AS mark
               FROM json_array_elements($2::json) AS j WHERE j ->> 0 = $1) AS m USING (number)
UNION ALL
SELECT -1, (SELECT seq FROM fairlead_task_log
             WHERE queue = $1 AND partition >= (SELECT partitions FROM registered)
             ORDER BY partition, seq LIMIT 1)

-- name: log_snapshot
-- As lane_snapshot in task_store.sql.
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('fairlead_task_log', 'seq')::regclass), 0),
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       ARRAY(SELECT DISTINCT virtualtransaction FROM pg_locks
              WHERE locktype = 'relation' AND relation = 'fairlead_task_log'::regclass
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock'))

-- name: take_over
INSERT INTO fairlead_schedule_owners (queue, partition, range_id) VALUES ($1, $2, 1)
ON CONFLICT (queue, partition) DO UPDATE SET range_id = fairlead_schedule_owners.range_id + 1
RETURNING range_id, pg_postmaster_start_time()::text

-- name: fence
-- Allows one write of a partition at a time, so that no other write completes a key before this one commits.
SELECT range_id, pg_postmaster_start_time()::text
  FROM fairlead_schedule_owners WHERE queue = $1 AND partition = $2 FOR UPDATE

-- name: record
SELECT number, record FROM fairlead_schedule_records WHERE queue = $1 AND partition = $2

-- name: first_record
INSERT INTO fairlead_schedule_records (queue, partition, number, record) VALUES ($1, $2, 1, $3) RETURNING number, record

-- name: keep
-- Follows fence. $4: the number that this process has read or given last, so that no replaced records are read
UPDATE fairlead_schedule_records SET number = number + 1, record = $3
 WHERE queue = $1 AND partition = $2 AND number >= $4
RETURNING number

-- name: records
-- $2: [[partition, number], ...], as this process has read them last, so that no replaced records are read. Another server
-- may have lower numbers.
SELECT o.partition, r.number, r.record
  FROM fairlead_schedule_owners o
  LEFT JOIN (SELECT (j ->> 0)::smallint AS partition, (j ->> 1)::bigint AS number
               FROM json_array_elements($2::json) AS j) AS f ON f.partition = o.partition
 CROSS JOIN LATERAL ((SELECT number, record FROM fairlead_schedule_records
                       WHERE queue = o.queue AND partition = o.partition AND number >= coalesce(f.number, 0) LIMIT 1)
                     UNION ALL
                     (SELECT number, record FROM fairlead_schedule_records
                       WHERE queue = o.queue AND partition = o.partition AND number < f.number LIMIT 1)
                     LIMIT 1) AS r
 WHERE o.queue = $1

-- name: completed
-- $3: [[run_at, ordering_key, unique_key, ...], ...]
SELECT c.*
  FROM json_array_elements($3::json) AS j
 CROSS JOIN LATERAL (SELECT run_at, ordering_key, unique_key FROM fairlead_completions
                      WHERE queue = $1 AND partition = $2 AND run_at = (j ->> 0)::bigint AND ordering_key = j ->> 1
                        AND unique_key = j ->> 2 OFFSET 0) AS c

-- name: persist
-- $3: [[run_at, ordering_key, unique_key, id, task], ...]
INSERT INTO fairlead_schedule (queue, partition, run_at, ordering_key, unique_key, id, task)
SELECT $1, $2, (j ->> 0)::bigint, j ->> 1, j ->> 2, (j ->> 3)::uuid, j ->> 4 FROM json_array_elements($3::json) AS j
ON CONFLICT (queue, partition, run_at, ordering_key, unique_key) DO UPDATE
   SET id = excluded.id, task = excluded.task, attempt = 0, tries = 0, retry_at = NULL
 WHERE fairlead_schedule.id <> excluded.id

-- name: read
-- $10: bytes; the tasks after those with as many bytes come without text. A long text stays in its own table until it is sent.
SELECT run_at, ordering_key, unique_key, id::text, CASE WHEN n = 1 OR total <= $10::bigint THEN task END, attempt, tries, retry_at
  FROM (SELECT r.*, row_number() OVER w AS n, sum(octet_length(task)) OVER w AS total
          FROM (SELECT run_at, ordering_key, unique_key, id, task, attempt, tries, retry_at
                  FROM fairlead_schedule
                 WHERE queue = $1 AND partition = $2 AND (run_at, ordering_key, unique_key) > ($3, $4, $5)
                   AND (run_at, ordering_key, unique_key) <= ($6, $7, $8)
                 ORDER BY run_at, ordering_key, unique_key
                 LIMIT $9) AS r
        WINDOW w AS (ORDER BY run_at, ordering_key, unique_key ROWS UNBOUNDED PRECEDING)) AS p
 ORDER BY run_at, ordering_key, unique_key

-- name: read_of
-- $10: bytes; the tasks after those with as many bytes come without text. A long text stays in its own table until it is sent.
SELECT run_at, ordering_key, unique_key, id::text, CASE WHEN n = 1 OR total <= $10::bigint THEN task END, attempt, tries, retry_at
  FROM (SELECT r.*, row_number() OVER w AS n, sum(octet_length(task)) OVER w AS total
          FROM (SELECT run_at, ordering_key, unique_key, id, task, attempt, tries, retry_at
                  FROM fairlead_schedule
                 WHERE queue = $1 AND partition = $2 AND ordering_key = $11 AND octet_length(ordering_key) >= 0
                   AND run_at >= $3
                   AND (run_at, ordering_key, unique_key) > ($3, $4, $5)
                   AND (run_at, ordering_key, unique_key) <= ($6, $7, $8)
                 ORDER BY run_at, unique_key
                 LIMIT $9) AS r
        WINDOW w AS (ORDER BY run_at, unique_key ROWS UNBOUNDED PRECEDING)) AS p
 ORDER BY run_at, unique_key

-- name: find
SELECT run_at, ordering_key, unique_key, id::text, task, attempt, tries, retry_at
  FROM fairlead_schedule
 WHERE queue = $1 AND partition = $2 AND run_at = $3 AND ordering_key = $4 AND unique_key = $5

-- name: find_id
SELECT queue, partition, run_at, ordering_key, unique_key, id::text, task, attempt, tries, retry_at
  FROM fairlead_schedule
 WHERE id = $1::uuid

-- name: wait_for_appends
-- $1: queue; $2: partition. A lock until the end of the transaction, so that the next statement sees what the transaction
-- before it has appended. A unique index would cost each run of all queues 2 % more log, and three times the pages with ON CONFLICT.
SELECT pg_advisory_xact_lock(hashtextextended(format('fairlead %s %s %s', 'fairlead_attempts'::regclass::oid, $2::integer, $1::text), 0))

-- name: append_attempts
-- $1: [[task_id, attempt, ...], ...], each row once, even if it is given twice
INSERT INTO fairlead_attempts ({attempt})
SELECT {attempt}
  FROM (SELECT n, {attempt_in_j} FROM json_array_elements($1::json) WITH ORDINALITY AS g (j, n)) AS g
 WHERE NOT EXISTS (SELECT 1 FROM fairlead_attempts a
                    WHERE a.task_id = g.task_id AND a.attempt = g.attempt AND a.finished_at = g.finished_at OFFSET 0)
 ORDER BY n

-- name: complete
-- $3: [[run_at, ordering_key, unique_key, finished_at], ...]
INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT $1, $2, (j ->> 0)::bigint, j ->> 1, j ->> 2, (j ->> 3)::bigint FROM json_array_elements($3::json) AS j
ON CONFLICT DO NOTHING

-- name: delete_completed
-- $3: [[run_at, ordering_key, unique_key, ...], ...]
DELETE FROM fairlead_schedule
 WHERE ctid = ANY (ARRAY(SELECT s.ctid
                           FROM json_array_elements($3::json) AS j
                          CROSS JOIN LATERAL (SELECT ctid FROM fairlead_schedule
                                               WHERE queue = $1 AND partition = $2 AND run_at = (j ->> 0)::bigint
                                                 AND ordering_key = j ->> 1 AND unique_key = j ->> 2 OFFSET 0) AS s))

-- name: try_again
-- $3: [[run_at, ordering_key, unique_key, id, attempt, tries, retry_at], ...]. The rows are found by their places, since a join by
-- the key may read the whole partition. The id is not compared by =, for which the planner would read all of the index by id.
UPDATE fairlead_schedule s
   SET attempt = (j ->> 4)::integer, tries = (j ->> 5)::integer, retry_at = (j ->> 6)::bigint
  FROM json_array_elements($3::json) AS j
 WHERE s.ctid = ANY (ARRAY(SELECT t.ctid
                             FROM json_array_elements($3::json) AS k
                            CROSS JOIN LATERAL (SELECT ctid FROM fairlead_schedule
                                                 WHERE queue = $1 AND partition = $2 AND run_at = (k ->> 0)::bigint
                                                   AND ordering_key = k ->> 1 AND unique_key = k ->> 2 OFFSET 0) AS t))
   AND s.run_at = (j ->> 0)::bigint AND s.ordering_key = j ->> 1 AND s.unique_key = j ->> 2
   AND s.id IS NOT DISTINCT FROM (j ->> 3)::uuid

-- name: clean
-- $3 to $5: key up to which keys were cleaned; $6 to $8: the last key to clean; $9: instant of the end
DELETE FROM fairlead_completions
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fairlead_completions
                          WHERE queue = $1 AND partition = $2 AND (run_at, ordering_key, unique_key) > ($3, $4, $5)
                            AND (run_at, ordering_key, unique_key) <= ($6, $7, $8) AND finished_at < $9
                          ORDER BY run_at, ordering_key, unique_key LIMIT $10))
RETURNING run_at, ordering_key, unique_key

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: move_tasks
-- $3: [[partition, run_at, ordering_key, unique_key, task], ...] of the queue $1 and the partition $2. The rows are found as in try_again.
UPDATE fairlead_schedule AS s
   SET partition = (j ->> 0)::smallint, task = j ->> 4
  FROM json_array_elements($3::json) AS j
 WHERE s.ctid = ANY (ARRAY(SELECT t.ctid
                             FROM json_array_elements($3::json) AS k
                            CROSS JOIN LATERAL (SELECT ctid FROM fairlead_schedule
                                                 WHERE queue = $1 AND partition = $2 AND run_at = (k ->> 1)::bigint
                                                   AND ordering_key = k ->> 2 AND unique_key = k ->> 3 OFFSET 0) AS t))
   AND s.run_at = (j ->> 1)::bigint AND s.ordering_key = j ->> 2 AND s.unique_key = j ->> 3

-- name: completions
SELECT run_at, ordering_key, unique_key, finished_at
  FROM fairlead_completions
 WHERE queue = $1 AND partition = $2 AND (run_at, ordering_key, unique_key) > ($3, $4, $5)
 ORDER BY run_at, ordering_key, unique_key
 LIMIT $6

-- name: move_completed
-- $2: [[partition, run_at, ordering_key, unique_key, finished_at], ...]
INSERT INTO fairlead_completions (queue, partition, run_at, ordering_key, unique_key, finished_at)
SELECT $1, (j ->> 0)::smallint, (j ->> 1)::bigint, j ->> 2, j ->> 3, (j ->> 4)::bigint FROM json_array_elements($2::json) AS j
ON CONFLICT DO NOTHING

-- name: delete_moved
-- $3: [[partition, run_at, ordering_key, unique_key, ...], ...]
DELETE FROM fairlead_completions
 WHERE ctid = ANY (ARRAY(SELECT c.ctid
                           FROM json_array_elements($3::json) AS j
                          CROSS JOIN LATERAL (SELECT ctid FROM fairlead_completions
                                               WHERE queue = $1 AND partition = $2 AND run_at = (j ->> 1)::bigint
                                                 AND ordering_key = j ->> 2 AND unique_key = j ->> 3 OFFSET 0) AS c))

-- name: unfinished
SELECT count(*) FROM fairlead_schedule WHERE queue = $1 AND (run_at <= $2 OR attempt > 0)

-- name: has_due
-- $3: [[partition, run_at, ordering_key, unique_key], ...]: low-water marks. Each partition with a task has an owner.
SELECT EXISTS (SELECT 1 FROM json_array_elements($3::json) AS j
                WHERE (SELECT s.run_at FROM fairlead_schedule s
                        WHERE s.queue = $1 AND s.partition = (j ->> 0)::smallint
                          AND (s.run_at, s.ordering_key, s.unique_key) > ((j ->> 1)::bigint, j ->> 2, j ->> 3)
                        ORDER BY s.run_at, s.ordering_key, s.unique_key LIMIT 1) <= $2)

-- name: statuses
SELECT o.partition, o.range_id, r.record, count(s.run_at), count(*) FILTER (WHERE s.run_at < $2)
  FROM fairlead_schedule_owners o
  JOIN fairlead_schedule_records r ON r.queue = o.queue AND r.partition = o.partition
  LEFT JOIN fairlead_schedule s ON s.queue = o.queue AND s.partition = o.partition
 WHERE o.queue = $1
 GROUP BY o.partition, o.range_id, r.record

-- name: oldest
SELECT run_at, ordering_key, unique_key
  FROM fairlead_schedule WHERE queue = $1 AND partition = $2 ORDER BY run_at, ordering_key, unique_key LIMIT 1
