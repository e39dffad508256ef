-- Statements of the PostgreSQL store. $1, $2 ... are the parameters in order. A batch is one JSON array, or arrays of
-- columns in the statements that run most often (insert_tasks, claim, complete_done). Ids are text in parameters and
-- results, and uuid in tables. A statement that writes several rows takes them by ascending id or key. Names in braces stand
-- for lists of columns (see backends/sql/columns.py) or for other statements.
--
-- The server may plan a statement while a table is empty and use the plan when the table is long, so each statement leaves
-- it one way only. A batch is not joined with a table: the rows are found by `id = ANY (ids)`, and `width_bucket(id, ids)`
-- is the number of a row in the batch, because the ids ascend. `(SELECT ids)` hides the size of the batch from the planner, which
-- would scan the table for a large one. A row of each element is read by a LATERAL query that
-- OFFSET 0 or LIMIT keeps apart.

-- name: next_seqs
SELECT nextval('fairlead_ready_seq') FROM generate_series(1, $1::integer)

-- name: begin_copy
-- Returns a position before all rows of a batch, which get theirs from the column's default, and whether COPY takes the
-- batch: it refuses row-level security, and reads texts in the client's encoding, while ours are UTF-8. The INSERT of no
-- row takes the lock that has to be held before the position is drawn; see low_water.py.
WITH locked AS (INSERT INTO fairlead_tasks (id) SELECT NULL WHERE false)
SELECT nextval('fairlead_ready_seq'), pg_client_encoding() = 'UTF8' AND NOT row_security_active('fairlead_tasks')

-- name: announce
-- The channel is named by the table's number, so that each schema of a database has its own.
-- A transaction that must not notify, such as one that PREPARE TRANSACTION ends, sets fairlead.notify to off.
SELECT pg_notify('fairlead_' || 'fairlead_tasks'::regclass::oid, message)
  FROM unnest($1::text[]) AS message
 WHERE coalesce(current_setting('fairlead.notify', true), '') <> 'off'

-- name: claim_unique_keys
-- $1: [[queue, unique_key, id, kept_until], ...], as text: a caller may have set a codec for json on its connection.
INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, kept_until)
SELECT j ->> 0, j ->> 1, (j ->> 2)::uuid, (j ->> 3)::bigint FROM json_array_elements($1::text::json) WITH ORDINALITY AS u (j, n)
 ORDER BY n
ON CONFLICT DO NOTHING
RETURNING queue, unique_key, task_id::text

-- name: unique_key_owners
-- $1: [[queue, unique_key], ...]; $2: now. The last column says that the window of an ended task has passed.
SELECT k.*
  FROM json_array_elements($1::text::json) AS j
 CROSS JOIN LATERAL (SELECT queue, unique_key, task_id::text, is_ended AND kept_until <= $2::bigint
                       FROM fairlead_unique_keys
                      WHERE queue = j ->> 0 AND unique_key = j ->> 1 OFFSET 0) AS k

-- name: free_unique_keys
-- $1: [[queue, unique_key], ...]; $2: now
DELETE FROM fairlead_unique_keys
 WHERE ctid = ANY (ARRAY(SELECT k.ctid
                           FROM json_array_elements($1::text::json) AS j
                          CROSS JOIN LATERAL (SELECT ctid FROM fairlead_unique_keys
                                               WHERE queue = j ->> 0 AND unique_key = j ->> 1
                                                 AND is_ended AND kept_until <= $2::bigint OFFSET 0) AS k))

-- name: insert_tasks
-- $1: the earliest run_at of waiting tasks, or NULL. Each column has an array, from $2 up. Columns that may be NULL have ''
-- for it, which no array can have where array_nulls is off. The notification goes out with the commit; one that is too long
-- for NOTIFY means "look everywhere".
-- Nothing is read from the table, so that a role needs no right but INSERT.
WITH given AS (
    SELECT {given}, run_at <= submitted_at AS is_due
      FROM unnest({arrays 2}) WITH ORDINALITY AS g ({new}, n)
     ORDER BY n
), placed AS (
    SELECT *, CASE WHEN is_due THEN nextval('fairlead_ready_seq') END AS ready_seq FROM given
), inserted AS (
    INSERT INTO fairlead_tasks ({new}, state, ready_at, triggered_at, ready_seq, due_at, due_seq, order_at, order_seq)
    SELECT {new}, CASE WHEN is_due THEN 'SUBMITTED' ELSE 'WAITING' END, CASE WHEN is_due THEN submitted_at END,
           CASE WHEN is_due THEN submitted_at END, ready_seq, CASE WHEN NOT is_due THEN run_at END,
           CASE WHEN NOT is_due THEN nextval('fairlead_ready_seq') END,
           CASE WHEN ordering_key IS NOT NULL THEN run_at END,
           CASE WHEN ordering_key IS NOT NULL THEN nextval('fairlead_ready_seq') END
      FROM placed
), lanes AS (
    SELECT queue, partition, priority, min(ready_seq) AS first_seq, array_agg(id::text) AS ids, array_agg(ready_seq) AS seqs
      FROM placed WHERE is_due GROUP BY queue, partition, priority
), notification AS (
    SELECT json_strip_nulls(json_build_object(
               'ready', (SELECT json_agg(json_build_array(queue, partition, priority, first_seq)) FROM lanes),
               'due', $1::bigint))::text AS message
)
SELECT lanes.*,
       CASE WHEN coalesce(current_setting('fairlead.notify', true), '') <> 'off'
            THEN pg_notify('fairlead_' || 'fairlead_tasks'::regclass::oid,
                           CASE WHEN octet_length(message) < 7900 THEN message ELSE '{}' END) END
  FROM notification LEFT JOIN lanes ON true

-- name: insert_due_task
-- One task that is due and has no ordering key, which costs the server a third of insert_tasks. $1: the beginning of the
-- notification, which the position ends; $2: submitted_at; the values of the columns follow. The default of ready_seq draws
-- the position, and that of order_seq must draw no later one. RETURNING names no column, because that would need the right
-- to SELECT.
INSERT INTO fairlead_tasks (state, ready_at, triggered_at, order_seq, {new})
VALUES ('SUBMITTED', $2::bigint, $2::bigint, NULL, {values 3})
RETURNING currval('fairlead_ready_seq'),
          CASE WHEN coalesce(current_setting('fairlead.notify', true), '') <> 'off'
               THEN pg_notify('fairlead_' || 'fairlead_tasks'::regclass::oid,
                              $1::text || currval('fairlead_ready_seq') || ']]}') END

-- name: ready
SELECT {ready}
  FROM fairlead_tasks t
 WHERE state = 'SUBMITTED' AND queue = $1 AND partition = $2 AND priority = $3 AND ready_seq > $4
 ORDER BY ready_seq
 LIMIT $5

-- name: ready_of
-- $4: [[fairness_key, position], ...]; $5: maximum number of tasks of each key. No condition but that of the index by key
-- says that ready_seq has a value, so that no other index fits: the planner would read the whole lane for each key. The key
-- is compared by ranges and is part of the order, so that a page of a key is read in order.
SELECT r.*
  FROM json_array_elements($4::json) AS j
 CROSS JOIN LATERAL (
       SELECT {ready}
         FROM fairlead_tasks t
        WHERE state = 'SUBMITTED' AND coalesce(ready_seq, 0) > 0 AND queue = $1 AND partition = $2 AND priority = $3
          AND fairness_key <> '' AND (fairness_key, ready_seq) > (j ->> 0, (j ->> 1)::bigint) AND fairness_key <= j ->> 0
        ORDER BY fairness_key, ready_seq LIMIT $5) AS r
 ORDER BY r.ready_seq

-- name: ready_without
-- Looks for tasks without a fairness key among the next $5 tasks of the lane, because no index has them alone: one would
-- cost a bulk submit 15 %. $6: maximum number of tasks. The last column marks the last of the $5 tasks, which may have a key.
SELECT {ready}, number = $5
  FROM (SELECT *, row_number() OVER (ORDER BY ready_seq) AS number
          FROM (SELECT ready_seq, id, version, name, fairness_key, weight, ordering_key, order_at
                  FROM fairlead_tasks
                 WHERE state = 'SUBMITTED' AND queue = $1 AND partition = $2 AND priority = $3 AND ready_seq > $4
                 ORDER BY ready_seq
                 LIMIT $5) AS page) AS t
 WHERE fairness_key = '' OR number = $5
 ORDER BY ready_seq
 LIMIT $6

-- name: ready_keys
-- Walks the index from key to key. $4: key to begin after; $5: maximum number of keys
WITH RECURSIVE keys (fairness_key, number) AS (
    SELECT $4::text, 0
    UNION ALL
    SELECT (SELECT t.fairness_key FROM fairlead_tasks t
             WHERE coalesce(t.ready_seq, 0) > 0 AND t.queue = $1 AND t.partition = $2 AND t.priority = $3
               AND t.fairness_key <> '' AND t.fairness_key > k.fairness_key
             ORDER BY t.fairness_key LIMIT 1), k.number + 1
      FROM keys k
     WHERE k.fairness_key IS NOT NULL AND k.number < $5
)
SELECT k.fairness_key, (SELECT t.ready_seq FROM fairlead_tasks t
                         WHERE coalesce(t.ready_seq, 0) > 0 AND t.queue = $1 AND t.partition = $2 AND t.priority = $3
                           AND t.fairness_key <> '' AND t.fairness_key <= k.fairness_key
                         ORDER BY t.fairness_key DESC, t.ready_seq DESC LIMIT 1)
  FROM keys k
 WHERE k.number > 0 AND k.fairness_key IS NOT NULL

-- name: lanes
{live_lanes}
SELECT queue, partition, priority, ready_seq FROM lanes WHERE ready_seq IS NOT NULL

-- name: live_lanes
-- The beginning of lanes, oldest_ready and stuck: the first row of each lane that has rows. $1: [[queue, partition, priority,
-- mark], ...]: low-water marks of lanes. Walks the index from lane to lane, so that the cost does not grow with the number of tasks,
-- and over no row at or below a mark: each range ends before the next lane with a mark. The ranges are cut until each has
-- bounds of one column, because a scan to a row value reads on through all rows that are equal to it in the first column.
WITH RECURSIVE marks AS MATERIALIZED (
    SELECT *, lead(queue) OVER w AS end_queue, lead(partition) OVER w AS end_partition, lead(priority) OVER w AS end_priority
      FROM (SELECT '' AS queue, -1 AS partition, -1 AS priority, 0::bigint AS mark
            UNION ALL
            SELECT j ->> 0, (j ->> 1)::integer, (j ->> 2)::integer, (j ->> 3)::bigint
              FROM unnest(ARRAY(SELECT json_array_elements($1::json))) AS j) AS f  -- unnest: a low estimate, so no compilation
    WINDOW w AS (ORDER BY queue, partition, priority)
), lanes AS (
    SELECT queue, partition, priority, mark AS above, NULL::bigint AS ready_seq, end_queue, end_partition, end_priority
      FROM marks
    UNION ALL
    SELECT next.queue, next.partition::integer, next.priority::integer, 9223372036854775807, next.ready_seq,
           end_queue, end_partition, end_priority
      FROM lanes l
     CROSS JOIN LATERAL (
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE t.ready_seq IS NOT NULL AND t.queue = l.queue AND t.partition = l.partition AND t.priority = l.priority
               AND t.ready_seq > l.above
             ORDER BY t.ready_seq LIMIT 1)
           UNION ALL  -- the other priorities of the partition
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE t.ready_seq IS NOT NULL AND t.queue = l.queue AND t.partition = l.partition AND t.priority > l.priority
               AND t.priority < CASE WHEN l.queue = l.end_queue AND l.partition = l.end_partition THEN l.end_priority ELSE 32768 END
             ORDER BY t.priority, t.ready_seq LIMIT 1)
           UNION ALL  -- the other partitions of the queue
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE t.ready_seq IS NOT NULL AND t.queue = l.queue AND t.partition > l.partition
               AND t.partition < CASE WHEN l.queue = l.end_queue THEN l.end_partition ELSE 32768 END
             ORDER BY t.partition, t.priority, t.ready_seq LIMIT 1)
           UNION ALL
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE l.queue = l.end_queue AND l.partition < l.end_partition
               AND t.ready_seq IS NOT NULL AND t.queue = l.end_queue AND t.partition = l.end_partition
               AND t.priority < l.end_priority
             ORDER BY t.priority, t.ready_seq LIMIT 1)
           UNION ALL  -- the other queues
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE l.end_queue IS NULL AND t.ready_seq IS NOT NULL AND t.queue > l.queue
             ORDER BY t.queue, t.partition, t.priority, t.ready_seq LIMIT 1)
           UNION ALL
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE t.ready_seq IS NOT NULL AND t.queue > l.queue AND t.queue < l.end_queue
             ORDER BY t.queue, t.partition, t.priority, t.ready_seq LIMIT 1)
           UNION ALL
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE l.queue < l.end_queue AND t.ready_seq IS NOT NULL AND t.queue = l.end_queue AND t.partition < l.end_partition
             ORDER BY t.partition, t.priority, t.ready_seq LIMIT 1)
           UNION ALL
           (SELECT t.queue, t.partition, t.priority, t.ready_seq FROM fairlead_tasks t
             WHERE l.queue < l.end_queue AND t.ready_seq IS NOT NULL AND t.queue = l.end_queue
               AND t.partition = l.end_partition AND t.priority < l.end_priority
             ORDER BY t.priority, t.ready_seq LIMIT 1)
           LIMIT 1) AS next
)

-- name: lane_snapshot
-- The highest position drawn, the instant at which the server started, and the transactions that may have drawn positions.
SELECT coalesce(pg_sequence_last_value('fairlead_ready_seq'::regclass), 0),
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       ARRAY(SELECT DISTINCT virtualtransaction FROM pg_locks
              WHERE locktype = 'relation' AND relation = 'fairlead_tasks'::regclass
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock'))

-- name: claim
-- $1 ids ascending, $2 versions, $3 paths, $4 stuck_at, $5 policies, of which $2 to $5 have one value if all tasks share it;
-- $6 node, $7 now. Low-water marks of ordering keys (see low_water.py), none if no task has a key: $8 order_at, $9 ids,
-- $10 order_seq; $11: the start of the server on which the marks hold. A task is refused if an earlier one of its key is
-- unfinished, if a later one runs that began before this task was committed, or if one runs that left the order when it
-- failed. No mark is used if more than a hundred tasks have come above its order_seq.
UPDATE fairlead_tasks t
   SET state = 'PROCESSING', version = t.version + 1, attempt = t.attempt + 1, tries = t.tries + 1, node = $6,
       claimed_at = $7,
       trigger_path = ($3::text[])[least(width_bucket(t.id, $1::uuid[]), cardinality($3::text[]))],
       stuck_at = ($4::bigint[])[least(width_bucket(t.id, $1::uuid[]), cardinality($4::bigint[]))],
       policy = ($5::smallint[])[least(width_bucket(t.id, $1::uuid[]), cardinality($5::smallint[]))]
 WHERE t.id = ANY ((SELECT $1::uuid[])::uuid[])
   AND t.version = ($2::integer[])[least(width_bucket(t.id, $1::uuid[]), cardinality($2::integer[]))]
   AND t.state = 'SUBMITTED'
   AND EXISTS (SELECT 1 FROM fairlead_nodes WHERE fairlead_nodes.node = $6)
   AND (t.ordering_key IS NULL
        OR (SELECT NOT EXISTS (SELECT 1
                                 FROM (SELECT state, order_at, id FROM fairlead_tasks o
                                        WHERE o.queue = t.queue AND o.ordering_key = t.ordering_key
                                          AND o.order_at IS NOT NULL AND (o.order_at, o.id) >= (f.order_at, f.id)
                                        ORDER BY o.order_at, o.id LIMIT 32) AS first
                                WHERE state = 'PROCESSING' OR (order_at, id) < (t.order_at, t.id))
               AND NOT EXISTS (SELECT 1
                                 FROM (SELECT state, order_at, id FROM fairlead_tasks o
                                        WHERE o.queue = t.queue AND o.ordering_key = t.ordering_key
                                          AND o.order_seq > f.order_seq
                                        ORDER BY o.order_seq LIMIT 101) AS late
                                WHERE (order_at, id) < (f.order_at, f.id)
                                  AND (state = 'PROCESSING' OR (order_at, id) < (t.order_at, t.id)))
               AND NOT EXISTS (SELECT 1 FROM fairlead_tasks o
                                WHERE o.queue = t.queue AND o.ordering_key = t.ordering_key AND o.order_at IS NULL
                                  AND o.state = 'PROCESSING' OFFSET 0)
              FROM (SELECT ($8::bigint[])[n] AS order_at, ($9::uuid[])[n] AS id, ($10::bigint[])[n] AS order_seq
                      FROM (SELECT width_bucket(t.id, $1::uuid[]) AS n OFFSET 0) AS g
                     WHERE (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $11
                       AND (SELECT count(*) FROM (SELECT 1 FROM fairlead_tasks o
                                                   WHERE o.queue = t.queue AND o.ordering_key = t.ordering_key
                                                     AND o.order_seq > ($10::bigint[])[n]
                                                   ORDER BY o.order_seq LIMIT 101) AS late) < 101
                    UNION ALL
                    SELECT -9223372036854775808, '00000000-0000-0000-0000-000000000000', 9223372036854775807
                     LIMIT 1) AS f))
RETURNING {claimed}, order_at

-- name: complete_done
-- Appends the attempts and deletes the tasks of a batch that is DONE without results. $1 ids ascending, $2 versions, or one
-- that all tasks share, $3 started_at, $4 finished_at; $5 node. Returns the number of tasks that ended, and their ids if
-- some did not.
WITH gone AS (
    DELETE FROM fairlead_tasks t
     WHERE t.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND t.version = ($2::integer[])[least(width_bucket(t.id, $1::uuid[]), cardinality($2::integer[]))]
       AND t.state = 'PROCESSING' AND t.node = $5
    RETURNING t.id, length(t.payload) AS payload_bytes,
              ($3::bigint[])[width_bucket(t.id, $1::uuid[])] AS started_at,
              ($4::bigint[])[width_bucket(t.id, $1::uuid[])] AS finished_at, {run_of_t}
), kept AS (
    INSERT INTO fairlead_attempts (task_id, payload_bytes, started_at, finished_at, outcome, next_state, {run})
    SELECT id, payload_bytes, started_at, finished_at, 'done', 'DONE', {run} FROM gone
    RETURNING task_id
)
SELECT count(*), CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(task_id::text) END FROM kept

-- name: versions
-- $1: [[id, version, ...], ...]: ids ascending, and the rows in their order
WITH given AS MATERIALIZED (
    SELECT array_agg(id ORDER BY id, version) AS ids, jsonb_agg(j ORDER BY id, version) AS rows
      FROM jsonb_array_elements($1::jsonb) AS j,
           LATERAL (SELECT (j ->> 0)::uuid AS id, (j ->> 1)::integer AS version) AS k
)

-- name: record_attempts
-- $1: [[id, version, outcome, next_state, started_at, finished_at, error_type, error_text], ...]
-- $2: the node that must hold the tasks; NULL: any node. The tasks are locked here, so that later
-- statements of the transaction find them unchanged.
{versions}
INSERT INTO fairlead_attempts (task_id, payload_bytes, {ended}, {run})
SELECT t.id, length(t.payload), {ended_in_j 2}, {run_of_t}
  FROM fairlead_tasks t
 CROSS JOIN LATERAL (SELECT (SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) AS j OFFSET 0) AS f
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[]) AND t.version = (j ->> 1)::integer
   AND ($2::text IS NULL OR (t.state = 'PROCESSING' AND t.node = $2))
   FOR UPDATE OF t
RETURNING task_id::text

-- name: held
{versions}
SELECT t.id::text
  FROM fairlead_tasks t
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   AND t.state = 'PROCESSING' AND t.node = $2

-- name: delete_held
{versions}
DELETE FROM fairlead_tasks t
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   AND t.state = 'PROCESSING' AND t.node = $2

-- name: continue_held
-- $1: [[id, version, next_state, run_at, ready_at, ready_seq, tries_spent, resets_tries, error_type, error_text,
--       leaves_order], ...]
{versions}
UPDATE fairlead_tasks t
   SET version = t.version + 1, node = NULL, stuck_at = NULL, trigger_path = 'hook',
       (state, run_at, ready_at, triggered_at, ready_seq, due_at, due_seq, tries, order_at, error_type, error_text) = (
       SELECT j ->> 2, coalesce((j ->> 3)::bigint, t.run_at), (j ->> 4)::bigint, (j ->> 4)::bigint, (j ->> 5)::bigint,
              CASE WHEN j ->> 2 = 'WAITING' THEN coalesce((j ->> 3)::bigint, t.run_at) END,
              CASE WHEN j ->> 2 = 'WAITING' THEN nextval('fairlead_ready_seq') END,
              CASE WHEN (j ->> 7)::boolean THEN 0 ELSE t.tries - 1 + (j ->> 6)::integer END,
              CASE WHEN NOT (j ->> 10)::boolean THEN t.order_at END, j ->> 8, j ->> 9
         FROM (SELECT (SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) AS j OFFSET 0) AS f)
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   AND t.state = 'PROCESSING' AND t.node = $2
RETURNING t.queue, t.partition, t.priority, t.ready_seq, t.state, t.run_at

-- name: keep_result
INSERT INTO fairlead_results (task_id, finished_at, result) VALUES ($1::text::uuid, $2, $3) ON CONFLICT DO NOTHING

-- name: write_progress
-- $1: [[id, version, done, total, note, reported_at], ...] of tasks that this node ($2) holds, by id, so that two nodes cannot
-- deadlock.
{versions}
INSERT INTO fairlead_run_notes AS n (task_id, attempt, began_at, done, total, note, reported_at)
SELECT t.id, t.attempt, (j ->> 5)::bigint, (j ->> 2)::double precision, (j ->> 3)::double precision, j ->> 4, (j ->> 5)::bigint
  FROM fairlead_tasks t
 CROSS JOIN LATERAL (SELECT (SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) AS j OFFSET 0) AS f
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[]) AND t.version = (j ->> 1)::integer AND t.state = 'PROCESSING' AND t.node = $2
ON CONFLICT (task_id, attempt) DO UPDATE
   SET done = excluded.done, total = excluded.total, note = excluded.note, reported_at = excluded.reported_at
 WHERE excluded.reported_at >= coalesce(n.reported_at, 0)

-- name: keep_notes
-- $1: [[id, attempt, ended_at, done, total, note, reported_at, lines, dropped], ...] of runs that end in this transaction
INSERT INTO fairlead_run_notes AS n (task_id, attempt, began_at, done, total, note, reported_at, lines, dropped)
SELECT (j ->> 0)::uuid, (j ->> 1)::integer, (j ->> 2)::bigint, (j ->> 3)::double precision, (j ->> 4)::double precision,
       j ->> 5, (j ->> 6)::bigint, j ->> 7, (j ->> 8)::integer
  FROM unnest(ARRAY(SELECT jsonb_array_elements($1::jsonb))) AS j
ON CONFLICT (task_id, attempt) DO UPDATE
   SET done = CASE WHEN excluded.reported_at IS NULL THEN n.done ELSE excluded.done END,
       total = CASE WHEN excluded.reported_at IS NULL THEN n.total ELSE excluded.total END,
       note = CASE WHEN excluded.reported_at IS NULL THEN n.note ELSE excluded.note END,
       reported_at = coalesce(excluded.reported_at, n.reported_at), lines = excluded.lines, dropped = excluded.dropped

-- name: store_checkpoint
UPDATE fairlead_tasks SET checkpoint = $4
 WHERE id = $1::text::uuid AND version = $2 AND state = 'PROCESSING' AND node = $3
RETURNING id::text

-- name: progress
SELECT done, total, note, reported_at, attempt FROM fairlead_run_notes
 WHERE task_id = $1::text::uuid AND reported_at IS NOT NULL ORDER BY attempt DESC LIMIT 1

-- name: notes
SELECT attempt, done, total, note, reported_at, lines, dropped
  FROM fairlead_run_notes WHERE task_id = $1::text::uuid ORDER BY attempt DESC LIMIT $2

-- name: hand_back
-- $1: [[id, version], ...]
{versions}
UPDATE fairlead_tasks t
   SET state = 'SUBMITTED', version = t.version + 1, attempt = t.attempt - 1, tries = t.tries - 1, node = NULL,
       stuck_at = NULL, claimed_at = NULL
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   AND t.state = 'PROCESSING' AND t.node = $2
RETURNING t.queue, t.partition, t.priority, t.ready_seq

-- name: still_held
SELECT id::text
  FROM fairlead_tasks
 WHERE id = ANY (ARRAY(SELECT j::uuid FROM json_array_elements_text($1::json) AS j)::uuid[])
   AND state = 'PROCESSING' AND node = $2

-- name: note_held
-- As still_held; $3: [id, ...] to note for `running` in task_reads.sql, in a row that is dropped with the node
WITH noted AS (
    INSERT INTO fairlead_running (node, tasks) SELECT $2, $3 FROM fairlead_nodes WHERE node = $2
    ON CONFLICT (node) DO UPDATE SET tasks = excluded.tasks
)
{still_held}

-- name: due_mark
-- The beginning of due and next_due. Low-water mark of due times (see low_water.py): $1 due_at, $2 due_seq; $3: the start of the server
-- on which it holds. The late tasks have a second bound of due_seq, which lets the planner expect few of them. The others are
-- compared as rows, which lets it expect many, so that it reads them in their order.
WITH mark AS MATERIALIZED (
    SELECT CASE WHEN is_here THEN $1::bigint ELSE -9223372036854775808 END AS due_at,
           CASE WHEN is_here THEN $2::bigint ELSE 9223372036854775807 END AS due_seq
      FROM (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3 AS is_here) AS here
)

-- name: due
-- $4: now; $5: maximum number of tasks
{due_mark}
SELECT *
  FROM (SELECT id::text, version, run_at FROM fairlead_tasks
         WHERE due_seq > (SELECT due_seq FROM mark) AND due_seq < 9223372036854775807
           AND coalesce(due_at, 0) < (SELECT due_at FROM mark) AND coalesce(due_at, 0) <= $4
         ORDER BY due_at, fairlead_tasks.id LIMIT $5 FOR UPDATE SKIP LOCKED) AS late
UNION ALL
SELECT *
  FROM (SELECT id::text, version, run_at FROM fairlead_tasks
         WHERE (due_at, id) >= ((SELECT due_at FROM mark), '00000000-0000-0000-0000-000000000000') AND due_at <= $4
         ORDER BY due_at, fairlead_tasks.id LIMIT $5 FOR UPDATE SKIP LOCKED) AS others
 LIMIT $5

-- name: make_ready
-- $1: [[id, version, ready_seq], ...]; $2: now; $3: trigger path
{versions}
UPDATE fairlead_tasks t
   SET state = 'SUBMITTED', version = t.version + 1, ready_at = $2, triggered_at = $2, due_at = NULL,
       due_seq = NULL, node = NULL, stuck_at = NULL, trigger_path = $3,
       ready_seq = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 2)::bigint
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
RETURNING t.queue, t.partition, t.priority, t.ready_seq

-- name: next_due
{due_mark}
SELECT least((SELECT due_at FROM fairlead_tasks WHERE due_at >= (SELECT due_at FROM mark) ORDER BY due_at LIMIT 1),
             (SELECT min(coalesce(due_at, 0)) FROM fairlead_tasks
               WHERE due_seq > (SELECT due_seq FROM mark) AND due_seq < 9223372036854775807
                 AND coalesce(due_at, 0) < (SELECT due_at FROM mark)))

-- name: held_by
SELECT id::text, version, node,
       (SELECT count(*) FROM fairlead_attempts a WHERE a.task_id = fairlead_tasks.id AND a.outcome = 'lost')
  FROM fairlead_tasks
 WHERE state = 'PROCESSING' AND node IN (SELECT json_array_elements_text($1::json))
 LIMIT $2
   FOR UPDATE OF fairlead_tasks SKIP LOCKED

-- name: stuck
-- $2: now; $3: [[queue, partition, priority, position], ...]: lanes that are read from a later position
-- on; $4: maximum number of rows to read of all lanes, shared evenly; $5: true to read only the lanes of $3. Returns for each
-- lane the number of rows read, the last position read if there may be more rows, and its stuck tasks.
{live_lanes}
, begun AS MATERIALIZED (
    SELECT j ->> 0 AS queue, (j ->> 1)::integer AS partition, (j ->> 2)::integer AS priority, (j ->> 3)::bigint AS position
      FROM unnest(ARRAY(SELECT json_array_elements($3::json))) AS j
), read AS MATERIALIZED (
    SELECT l.queue, l.partition, l.priority, l.ready_seq, coalesce(b.position, -1) AS position
      FROM lanes l
      LEFT JOIN begun b ON b.queue = l.queue AND b.partition = l.partition AND b.priority = l.priority
     WHERE l.ready_seq IS NOT NULL AND (b.position IS NOT NULL OR NOT $5)
), share AS MATERIALIZED (
    SELECT greatest(1, $4::bigint / greatest(1, count(*))) AS most FROM read
)
SELECT l.queue, l.partition, l.priority, found.*
  FROM read l
 CROSS JOIN LATERAL (
       SELECT CASE WHEN count(*) = (SELECT most FROM share) THEN max(ready_seq) END AS position,
              array_agg(id::text) FILTER (WHERE is_stuck) AS ids, array_agg(policy) FILTER (WHERE is_stuck) AS policies,
              array_agg(stuck_at) FILTER (WHERE is_stuck) AS stuck_ats, count(*) AS count
         FROM (SELECT ready_seq, id, policy, stuck_at,
                      state = 'PROCESSING' AND stuck_at < $2 AND policy & 4 = 0 AS is_stuck  -- IGNORE_STUCK
                 FROM fairlead_tasks
                WHERE queue = l.queue AND partition = l.partition AND priority = l.priority AND ready_seq >= l.ready_seq
                  AND ready_seq > l.position
                ORDER BY ready_seq LIMIT (SELECT most FROM share)) AS page) AS found

-- name: note_events
-- $1: [[id, version], ...]; $2: kind, $3: at, $4: the new run_at or NULL, $5: actor. The tasks are locked here, so that
-- later statements of the transaction find them unchanged.
{versions}
INSERT INTO fairlead_events (task_id, version, kind, at, queue, name, fairness_key, weight, priority, run_at, actor)
SELECT t.id, t.version, $2::text, $3::bigint, t.queue, t.name, t.fairness_key, t.weight, t.priority,
       coalesce($4::bigint, t.run_at), $5::text
  FROM fairlead_tasks t
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   FOR UPDATE OF t

-- name: end_tasks
-- $1: [[id, version], ...]
{versions}
DELETE FROM fairlead_tasks t
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
RETURNING t.id::text

-- name: move_tasks
-- $1: [[id, version, ready_seq], ...]; $2: state, $3: run_at, $4: now when SUBMITTED else NULL, $5: true to reset tries
{versions}
UPDATE fairlead_tasks t
   SET state = $2::text, version = t.version + 1, run_at = $3::bigint, ready_at = $4::bigint, triggered_at = $4::bigint,
       ready_seq = CASE WHEN $2::text = 'SUBMITTED'
                        THEN ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 2)::bigint END,
       due_at = CASE WHEN $2::text = 'WAITING' THEN $3::bigint END,
       due_seq = CASE WHEN $2::text = 'WAITING' THEN nextval('fairlead_ready_seq') END, node = NULL, stuck_at = NULL,
       claimed_at = NULL, trigger_path = 'hook', tries = CASE WHEN $5::boolean THEN 0 ELSE tries END,
       (order_at, order_seq) = (
       SELECT CASE WHEN g.is_moved THEN $3::bigint ELSE order_at END,
              CASE WHEN g.is_moved THEN nextval('fairlead_ready_seq') ELSE order_seq END
         FROM (SELECT $2::text = 'WAITING' AND attempt = 0 AND order_at IS NOT NULL AS is_moved) AS g)
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
RETURNING t.id::text, t.queue, t.partition, t.priority, t.ready_seq

-- name: change_tasks
-- $1: [[id, version, ready_seq if SUBMITTED], ...]; $2: priority or NULL, $3: fairness_key or NULL, $4: now
{versions}
UPDATE fairlead_tasks t
   SET version = t.version + 1, priority = coalesce($2::smallint, priority), fairness_key = coalesce($3::text, fairness_key),
       triggered_at = CASE WHEN state = 'SUBMITTED' THEN $4::bigint END,
       ready_seq = CASE WHEN state = 'SUBMITTED'
                        THEN ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 2)::bigint END
 WHERE t.id = ANY ((SELECT ids FROM given)::uuid[])
   AND t.version = ((SELECT rows FROM given) -> (width_bucket(t.id, (SELECT ids FROM given)) - 1) ->> 1)::integer
   AND t.state IN ('WAITING', 'SUBMITTED')
RETURNING t.id::text, t.queue, t.partition, t.priority, t.ready_seq

-- name: error_task
-- policy & 2: SKIP_FAILED of ports/task_store.py
UPDATE fairlead_tasks
   SET state = 'ERROR', version = version + 1, ready_at = NULL, ready_seq = NULL, due_at = NULL, due_seq = NULL,
       claimed_at = NULL, node = NULL, stuck_at = NULL, error_type = $3::text, error_text = $4::text,
       order_at = CASE WHEN policy & 2 > 0 THEN NULL ELSE order_at END
 WHERE id = $1::text::uuid AND version = $2
RETURNING id::text

-- name: task
SELECT {task} FROM fairlead_tasks t WHERE t.id = $1::text::uuid

-- name: last_attempt
SELECT {history} FROM fairlead_attempts a
 WHERE a.task_id = $1::text::uuid ORDER BY a.attempt DESC, a.xid DESC, a.seq DESC LIMIT 1

-- name: ids_after
SELECT id::text
  FROM ((SELECT t.id FROM fairlead_tasks t WHERE t.id > $1::text::uuid ORDER BY t.id LIMIT $2)
        UNION
        (SELECT DISTINCT a.task_id FROM fairlead_attempts a WHERE a.task_id > (SELECT $1::text::uuid) ORDER BY a.task_id LIMIT $2)
       ) AS found (id)
 ORDER BY found.id

-- name: payload
SELECT payload, payload_format FROM fairlead_tasks WHERE id = $1::text::uuid

-- name: attempts
SELECT {history} FROM fairlead_attempts a WHERE a.task_id = $1::text::uuid ORDER BY a.attempt, a.xid, a.seq

-- name: result
SELECT result FROM fairlead_results WHERE task_id = $1::text::uuid

-- name: statuses
-- $1: [id, ...], each once. unnest: a low estimate, so that each id is searched by index.
SELECT g.id::text, coalesce(t.name, a.name), coalesce(t.state, a.next_state), coalesce(t.error_type, a.error_type),
       coalesce(t.error_text, a.error_text), CASE WHEN t.id IS NULL THEN r.result END
  FROM (SELECT (j #>> '{}')::uuid AS id FROM unnest(ARRAY(SELECT json_array_elements($1::json))) AS j) AS g
  LEFT JOIN LATERAL (SELECT id, name, state, error_type, error_text FROM fairlead_tasks WHERE id = g.id LIMIT 1) AS t ON true
  LEFT JOIN LATERAL (SELECT name, next_state, error_type, error_text FROM fairlead_attempts
                      WHERE task_id = g.id AND t.id IS NULL ORDER BY attempt DESC, xid DESC, seq DESC LIMIT 1) AS a ON true
  LEFT JOIN LATERAL (SELECT result FROM fairlead_results WHERE task_id = g.id AND t.id IS NULL LIMIT 1) AS r ON true
 WHERE t.id IS NOT NULL OR a.next_state IS NOT NULL

-- name: hold_readers
LOCK TABLE fairlead_readers IN SHARE MODE

-- name: clean_attempts
-- Deletes of the first $2 rows from position ($3, $4) to ($5, $6) on those that ended before $1. The rows to delete are
-- given by their places only: by position, the server would read all earlier ones. Returns the positions of the first
-- rows, which of them are gone, and the oldest open transaction, below which no row comes any more.
WITH first AS MATERIALIZED (
    SELECT ctid AS place, xid, seq
      FROM fairlead_attempts
     WHERE (xid, seq) >= (($3::bigint)::text::xid8, $4::bigint)
     ORDER BY fairlead_attempts.xid, seq LIMIT (SELECT $2::bigint)
), gone AS (
    DELETE FROM fairlead_attempts a
     WHERE a.ctid = ANY (ARRAY(SELECT place FROM first WHERE (xid, seq) <= (($5::bigint)::text::xid8, $6::bigint)))
       AND a.finished_at < $1
    RETURNING a.seq
)
SELECT ARRAY(SELECT xid::text::bigint FROM first), ARRAY(SELECT seq FROM first), ARRAY(SELECT seq FROM gone),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: clean_events
-- As clean_attempts.
WITH first AS MATERIALIZED (
    SELECT ctid AS place, xid, seq
      FROM fairlead_events
     WHERE (xid, seq) >= (($3::bigint)::text::xid8, $4::bigint)
     ORDER BY fairlead_events.xid, seq LIMIT (SELECT $2::bigint)
), gone AS (
    DELETE FROM fairlead_events e
     WHERE e.ctid = ANY (ARRAY(SELECT place FROM first WHERE (xid, seq) <= (($5::bigint)::text::xid8, $6::bigint)))
       AND e.at < $1
    RETURNING e.seq
)
SELECT ARRAY(SELECT xid::text::bigint FROM first), ARRAY(SELECT seq FROM first), ARRAY(SELECT seq FROM gone),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: clean_results
-- $3: instant before which all results were deleted
DELETE FROM fairlead_results
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fairlead_results
                          WHERE finished_at < $1 AND finished_at >= $3 ORDER BY finished_at LIMIT $2))
RETURNING finished_at

-- name: clean_run_notes
-- $3: instant before which all notes were deleted
DELETE FROM fairlead_run_notes
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fairlead_run_notes
                          WHERE began_at < $1 AND began_at >= $3 ORDER BY began_at LIMIT $2))
RETURNING began_at

-- name: clean_unique_keys
-- $3: instant before which all keys were deleted
DELETE FROM fairlead_unique_keys
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fairlead_unique_keys
                          WHERE is_ended AND kept_until < $1 AND kept_until >= $3 ORDER BY kept_until LIMIT $2))
RETURNING kept_until

-- name: oldest_ready
{live_lanes}
SELECT l.queue, min(t.ready_at)
  FROM lanes l
 CROSS JOIN LATERAL (SELECT ready_at
                       FROM fairlead_tasks
                      WHERE state = 'SUBMITTED' AND queue = l.queue AND partition = l.partition
                        AND priority = l.priority AND ready_seq >= l.ready_seq
                      ORDER BY ready_seq LIMIT 1) AS t
 WHERE l.ready_seq IS NOT NULL
 GROUP BY l.queue

-- name: queue_counts
SELECT queue, state, count(*), min(ready_at) FROM fairlead_tasks GROUP BY queue, state

-- name: queues
SELECT queue, partitions, paused, version FROM fairlead_queues ORDER BY queue

-- name: queues_mark
-- Another server that becomes the primary may use the last numbers again.
SELECT number, pg_postmaster_start_time()::text FROM fairlead_changes WHERE kind = 'queues'

-- name: change_queues
-- Every transaction that changes settings, weights or limits of queues begins with this statement, so that such
-- transactions cannot deadlock.
INSERT INTO fairlead_changes AS c (kind, number) VALUES ('queues', 1)
ON CONFLICT (kind) DO UPDATE SET number = c.number + 1

-- name: register_queues
-- $1: [[queue, partitions], ...]
INSERT INTO fairlead_queues AS q (queue, partitions)
SELECT j ->> 0, (j ->> 1)::integer FROM json_array_elements($1::json) AS j
ON CONFLICT (queue) DO UPDATE SET partitions = excluded.partitions, version = q.version + 1
 WHERE q.partitions < excluded.partitions

-- name: resize_queue
-- $3: version of the settings that the caller has read
UPDATE fairlead_queues SET partitions = $2, version = version + 1 WHERE queue = $1 AND version = $3 RETURNING queue

-- name: pause
UPDATE fairlead_queues SET paused = $2, version = version + 1 WHERE queue = $1 RETURNING queue

-- name: register_node
INSERT INTO fairlead_nodes (node, started_at, queues, names, digest, slots, version, python)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (node) DO UPDATE
   SET queues = excluded.queues, names = excluded.names, digest = excluded.digest, slots = excluded.slots,
       version = excluded.version, python = excluded.python

-- name: seen_lock
-- The beginning of the heartbeats: on which start of the server $1 holds its lock. Only here, where the server itself sees the
-- lock, does a record come to say that a node held it.
WITH seen_lock AS (
    SELECT CASE WHEN NOT pg_try_advisory_xact_lock_shared(hashtextextended('fairlead node ' || $1, 'fairlead_tasks'::regclass::oid::bigint))
                THEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint END AS server
)

-- name: first_heartbeat
-- Follows register_node, which allows one transaction at a time for a node, so that the node has one row.
{seen_lock}
, earlier AS (
    DELETE FROM fairlead_heartbeats WHERE node = $1 AND heartbeat_at <> $2
)
INSERT INTO fairlead_heartbeats (node, heartbeat_at, locked_on) SELECT $1, $2::bigint, server FROM seen_lock ON CONFLICT DO NOTHING

-- name: heartbeat
-- $3: the heartbeat that this node has sent last, so that no replaced one is read
{seen_lock}
UPDATE fairlead_heartbeats SET heartbeat_at = $2, locked_on = (SELECT server FROM seen_lock)
 WHERE node = $1 AND heartbeat_at >= $3 RETURNING node

-- name: last_heartbeats
-- The beginning of silent_nodes and nodes. $1: [[node, heartbeat_at], ...], as this process has read them last, so that no
-- replaced ones are read. A heartbeat before these comes from a clock that was set back.
WITH read AS MATERIALIZED (
    SELECT j ->> 0 AS node, (j ->> 1)::bigint AS heartbeat_at FROM json_array_elements($1::json) AS j
), last AS (
    SELECT n.*, h.heartbeat_at
      FROM fairlead_nodes n
      LEFT JOIN read r ON r.node = n.node
     CROSS JOIN LATERAL ((SELECT heartbeat_at FROM fairlead_heartbeats
                           WHERE node = n.node AND heartbeat_at >= coalesce(r.heartbeat_at, -9223372036854775808) LIMIT 1)
                         UNION ALL
                         (SELECT heartbeat_at FROM fairlead_heartbeats
                           WHERE node = n.node AND heartbeat_at < r.heartbeat_at LIMIT 1)
                         LIMIT 1) AS h
)

-- name: silent_nodes
{last_heartbeats}
SELECT node FROM last WHERE heartbeat_at < $2

-- name: drop_node
DELETE FROM fairlead_nodes WHERE node = $1

-- name: drop_heartbeat
-- Follows drop_node, which waits for a node that registers, so that this statement sees the heartbeat of that node.
WITH held AS (DELETE FROM fairlead_running WHERE node = $1)
DELETE FROM fairlead_heartbeats WHERE node = $1

-- name: nodes
-- $2: [digest, ...] of queues and names that the caller knows; these are returned as NULL
{last_heartbeats}
SELECT node, started_at, heartbeat_at, digest, CASE WHEN digest NOT IN (SELECT json_array_elements_text($2::json)) THEN queues END,
       CASE WHEN digest NOT IN (SELECT json_array_elements_text($2::json)) THEN names END, slots, version, python
  FROM last
 ORDER BY started_at

-- name: lease_clock
-- Returns the time, and a text that another server, or the server after a restart, does not return.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_postmaster_start_time()::text

-- name: change_leases
-- Returns the number of the change that begins. Every transaction that changes leases begins with this statement, so that
-- changes commit in the order of their numbers.
INSERT INTO fairlead_changes AS c (kind, number) VALUES ('leases', 1)
ON CONFLICT (kind) DO UPDATE SET number = c.number + 1
RETURNING number

-- name: end_holders
-- Ends holders that expired before $1, or expire after $2 because the clock was set back. A renewal at the same time is
-- either seen here, or finds its row gone.
DELETE FROM fairlead_holders WHERE expires_at < $1 OR expires_at > $2 RETURNING owner

-- name: free_leases
-- $1: [owner, ...]; $2: number of the change
UPDATE fairlead_leases SET owner = '', changed = $2 WHERE owner IN (SELECT json_array_elements_text($1::json))

-- name: acquire_leases
-- $1: [name, ...]; $2: owner; $3: number of the change
INSERT INTO fairlead_leases AS l (name, owner, range_id, changed) SELECT name, $2, 1, $3 FROM json_array_elements_text($1::json) AS asked (name)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, range_id = l.range_id + 1, changed = excluded.changed
 WHERE l.owner = ''
RETURNING name, range_id

-- name: hold_leases
-- Follows change_leases, which allows one transaction at a time to add a holder.
WITH held AS (
    UPDATE fairlead_holders SET expires_at = greatest(expires_at, $2) WHERE owner = $1 RETURNING owner
)
INSERT INTO fairlead_holders (owner, expires_at) SELECT $1, $2 WHERE NOT EXISTS (SELECT 1 FROM held)

-- name: renew_leases
UPDATE fairlead_holders SET expires_at = $2 WHERE owner = $1 AND expires_at >= $3 RETURNING owner

-- name: release_leases
-- $1: owner; $2: [name, ...]; $3: number of the change
UPDATE fairlead_leases SET owner = '', changed = $3 WHERE owner = $1 AND name IN (SELECT json_array_elements_text($2::json))

-- name: lease_changes
-- Returns the holders that expire from $2 to $3, with NULL in place of a lease, and the leases changed after number $1.
SELECT NULL AS name, owner, 0 AS range_id, 0 AS changed FROM fairlead_holders WHERE expires_at BETWEEN $2 AND $3
UNION ALL
SELECT name, owner, range_id, changed
  FROM fairlead_leases
 WHERE changed > $1 AND (SELECT max(changed) FROM fairlead_leases) > $1  -- no scan of the table without changes

-- name: read_ledger
-- $3: the version that this process has read or written last, so that no replaced ones are read
SELECT ledger, version FROM fairlead_permits
 WHERE limit_name = $1 AND shard = $2 AND version >= $3 AND version > 0

-- name: new_ledger
-- Version 0, which no write replaces, lets one node make the first ledger.
WITH first AS (
    INSERT INTO fairlead_permits (limit_name, shard, version, ledger) VALUES ($1, $2, 0, '')
    ON CONFLICT (limit_name, shard, version) DO NOTHING RETURNING version
)
INSERT INTO fairlead_permits (limit_name, shard, version, ledger) SELECT $1, $2, 1, $3 FROM first RETURNING version

-- name: change_ledger
UPDATE fairlead_permits SET version = version + 1, ledger = $3 WHERE limit_name = $1 AND shard = $2 AND version = $4 RETURNING version

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: bound_pauses
-- $1: milliseconds, as text
SELECT set_config('idle_in_transaction_session_timeout', $1, true)

-- name: unfinished
-- $1: JSON array of queues. Returns the number of tasks left to run or retry, and of tasks in ERROR.
SELECT count(*) FILTER (WHERE state IN ('SUBMITTED', 'PROCESSING') OR (state = 'WAITING' AND attempt > 0)),
       count(*) FILTER (WHERE state = 'ERROR')
  FROM fairlead_tasks WHERE queue IN (SELECT json_array_elements_text($1::json))

-- name: has_ready
-- $2: JSON array of queues. Returns whether one has a task that is SUBMITTED or PROCESSING.
{live_lanes}
SELECT EXISTS (SELECT 1 FROM lanes WHERE ready_seq IS NOT NULL AND queue IN (SELECT json_array_elements_text($2::json)))

-- name: has_retry
-- $4: JSON array of queues; $5, $6: due_at and id of the waiting task to begin after, NULL for the
-- mark. Reads 100 tasks, few enough for the index. Returns whether one of them is a retry, and where to go on if there may
-- be more.
{due_mark}
SELECT coalesce(bool_or(attempt > 0 AND queue IN (SELECT json_array_elements_text($4::json))), false)
       OR EXISTS (SELECT 1 FROM fairlead_tasks
                   WHERE due_seq > (SELECT due_seq FROM mark) AND due_seq < 9223372036854775807
                     AND coalesce(due_at, 0) < (SELECT due_at FROM mark)
                     AND attempt > 0 AND queue IN (SELECT json_array_elements_text($4::json))),
       CASE WHEN count(*) = 100 THEN max(due_at) END, (array_agg(id::text ORDER BY due_at DESC, id DESC))[1]
  FROM (SELECT due_at, id, attempt, queue FROM fairlead_tasks
         WHERE due_at IS NOT NULL AND (due_at, id) > (coalesce($5::bigint, (SELECT due_at FROM mark)),
                                                    coalesce($6::text::uuid, '00000000-0000-0000-0000-000000000000'))
         ORDER BY due_at, fairlead_tasks.id LIMIT 100) AS waiting

-- name: ahead
-- Counts the tasks before this one, up to $2: with a better priority, or with the same and an earlier position.
SELECT count(*)
  FROM fairlead_tasks t
 CROSS JOIN LATERAL ((SELECT 1 FROM fairlead_tasks a
                       WHERE a.ready_seq IS NOT NULL AND a.queue = t.queue AND a.partition = t.partition AND a.state = 'SUBMITTED'
                         AND a.priority < t.priority LIMIT $2::bigint)
                     UNION ALL
                     (SELECT 1 FROM fairlead_tasks a
                       WHERE a.ready_seq IS NOT NULL AND a.queue = t.queue AND a.partition = t.partition AND a.state = 'SUBMITTED'
                         AND a.priority = t.priority AND a.ready_seq < t.ready_seq LIMIT $2::bigint)
                     LIMIT $2::bigint) AS ahead
 WHERE t.id = $1::uuid

-- name: weights
SELECT fairness_key, weight FROM fairlead_weights WHERE queue = $1 ORDER BY fairness_key

-- name: limits
SELECT fairness_key, slots FROM fairlead_limits WHERE queue = $1 ORDER BY fairness_key

-- name: settings_changed
UPDATE fairlead_queues SET version = version + 1 WHERE queue = $1 RETURNING queue

-- name: set_weights
-- $2: [fairness_key, ...], each once
INSERT INTO fairlead_weights (queue, fairness_key, weight)
SELECT $1, k, $3::float8 FROM json_array_elements_text($2::json) AS k
ON CONFLICT (queue, fairness_key) DO UPDATE SET weight = excluded.weight, policy = NULL
RETURNING fairness_key

-- name: clear_weights
-- $2: [fairness_key, ...]
DELETE FROM fairlead_weights
 WHERE queue = $1 AND fairness_key IN (SELECT k FROM json_array_elements_text($2::json) AS k)
RETURNING fairness_key

-- name: set_limits
-- $2: [fairness_key, ...], each once
INSERT INTO fairlead_limits (queue, fairness_key, slots)
SELECT $1, k, $3::integer FROM json_array_elements_text($2::json) AS k
ON CONFLICT (queue, fairness_key) DO UPDATE SET slots = excluded.slots, policy = NULL
RETURNING fairness_key

-- name: clear_limits
-- $2: [fairness_key, ...]
DELETE FROM fairlead_limits
 WHERE queue = $1 AND fairness_key IN (SELECT k FROM json_array_elements_text($2::json) AS k)
RETURNING fairness_key

-- name: heaviest_keys
-- Returns tasks, weight and share of the fairness keys that have tasks to run, and the number of all such keys. The
-- tenant of a key is the text before the first slash that is not its first character.
WITH named AS (
    SELECT t.fairness_key, count(*) AS tasks, coalesce(max(w.weight), max(t.weight)) AS weight,
           left(t.fairness_key, strpos(substr(t.fairness_key || '/', 2), '/')) AS tenant
      FROM fairlead_tasks t
      LEFT JOIN fairlead_weights w ON w.queue = t.queue AND w.fairness_key = t.fairness_key
     WHERE t.queue = $1 AND t.state = 'SUBMITTED'
     GROUP BY t.fairness_key
), keys AS (
    SELECT n.*, CASE WHEN fairness_key = tenant THEN 1.0 ELSE weight END AS own FROM named n
), tenants AS (
    SELECT k.tenant, sum(k.own) AS own,
           coalesce(max(w.weight), max(CASE WHEN k.fairness_key = k.tenant THEN k.weight END), 1.0) AS weight
      FROM keys k
      LEFT JOIN fairlead_weights w ON w.queue = $1 AND w.fairness_key = k.tenant
     GROUP BY k.tenant
)
SELECT k.fairness_key, k.tasks, k.weight, t.weight / (SELECT sum(weight) FROM tenants) * k.own / t.own, count(*) OVER ()
  FROM keys k
  JOIN tenants t ON t.tenant = k.tenant
 ORDER BY k.tasks DESC, k.fairness_key
 LIMIT $2

-- name: ordered
-- $1: [[queue, ordering_key, order_at, id, order_seq], ...], with the mark of each key (see low_water.py); $2: maximum
-- number of tasks of each ordering key, in order; $3: the start of the server on which the marks hold
SELECT t.ready_seq, t.id::text, t.version, t.queue, t.partition, t.name, t.priority, t.fairness_key, t.weight, t.ordering_key,
       t.order_at, t.state
  FROM json_array_elements($1::json) AS j
 CROSS JOIN LATERAL (SELECT (j ->> 2)::bigint AS order_at, (j ->> 3)::uuid AS id, (j ->> 4)::bigint AS order_seq
                      WHERE (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3
                        AND (SELECT count(*) FROM (SELECT 1 FROM fairlead_tasks o
                                                    WHERE o.queue = j ->> 0 AND o.ordering_key = j ->> 1
                                                      AND o.order_seq > (j ->> 4)::bigint
                                                    ORDER BY o.order_seq LIMIT 101) AS late) < 101
                     UNION ALL
                     SELECT -9223372036854775808, '00000000-0000-0000-0000-000000000000', 9223372036854775807
                      LIMIT 1) AS f
 CROSS JOIN LATERAL ((SELECT * FROM fairlead_tasks o
                       WHERE o.queue = j ->> 0 AND o.ordering_key = j ->> 1
                         AND o.order_at IS NOT NULL AND (o.order_at, o.id) >= (f.order_at, f.id)
                       ORDER BY o.order_at, o.id LIMIT $2)
                     UNION ALL
                     SELECT *
                       FROM (SELECT * FROM fairlead_tasks o
                              WHERE o.queue = j ->> 0 AND o.ordering_key = j ->> 1 AND o.order_seq > f.order_seq
                              ORDER BY o.order_seq LIMIT 101) AS late
                      WHERE (order_at, id) < (f.order_at, f.id)
                      ORDER BY order_at, id LIMIT $2) AS t
 ORDER BY t.queue, t.ordering_key, t.order_at, t.id

-- name: changed
-- $1: [[id, version], ...]
SELECT j ->> 0
  FROM json_array_elements($1::json) AS j
 WHERE (SELECT t.version FROM fairlead_tasks t WHERE t.id = (j ->> 0)::uuid) IS DISTINCT FROM (j ->> 1)::integer
