-- Statements of the SQLite store. ?1, ?2 ... are the parameters in order. A batch is one JSON array, so SQLite runs one
-- statement however many tasks the batch has. Names in braces stand for lists of columns (see backends/sql/columns.py) or for
-- other statements.

-- name: next_seqs
UPDATE fairlead_sequence SET value = value + ?1 RETURNING value - ?1

-- name: claim_unique_keys
-- ?1: [[queue, unique_key, id, kept_until], ...]
INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, kept_until)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1) WHERE true
ON CONFLICT DO NOTHING
RETURNING queue, unique_key, task_id

-- name: unique_key_owners
-- ?1: [[queue, unique_key], ...]; ?2: now. The last column says that the window of an ended task has passed.
SELECT k.queue, k.unique_key, k.task_id, is_ended AND kept_until <= ?2
  FROM json_each(?1) j
  CROSS JOIN fairlead_unique_keys k ON k.queue = j.value ->> 0 AND k.unique_key = j.value ->> 1

-- name: free_unique_keys
-- ?1: [[queue, unique_key], ...]; ?2: now
DELETE FROM fairlead_unique_keys
 WHERE (queue, unique_key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND is_ended AND kept_until <= ?2

-- name: insert_task
INSERT INTO fairlead_tasks (seq, state, ready_at, triggered_at, ready_seq, trigger_path, order_at, {new})
VALUES (?1, ?2, ?3, ?3, ?4, 'hook', ?5, {values 6})

-- name: ready
-- Merges the tasks without a fairness key, from the index by key, and the others, from the index by lane.
SELECT {ready}
  FROM fairlead_tasks t
 WHERE state = 'SUBMITTED' AND queue = ?1 AND partition = ?2 AND priority = ?3 AND fairness_key = '' AND ready_seq > ?4
UNION ALL
SELECT {ready}
  FROM fairlead_tasks t
 WHERE state = 'SUBMITTED' AND queue = ?1 AND partition = ?2 AND priority = ?3 AND fairness_key <> '' AND ready_seq > ?4
 ORDER BY ready_seq
 LIMIT ?5

-- name: ready_of
-- ?4: [[fairness_key, position], ...]; ?5: maximum number of tasks of each key
SELECT {ready}
  FROM json_each(?4) j
 CROSS JOIN fairlead_tasks t
    ON t.seq IN (SELECT o.seq FROM fairlead_tasks o
                  WHERE o.state = 'SUBMITTED' AND o.queue = ?1 AND o.partition = ?2 AND o.priority = ?3
                    AND o.fairness_key = j.value ->> 0 AND o.ready_seq > j.value ->> 1
                  ORDER BY o.ready_seq LIMIT ?5)
 ORDER BY t.ready_seq

-- name: ready_without
-- ?6: maximum number of tasks. The last column says that there may be more; ?5 is for stores without an index of these tasks.
SELECT {ready}, ?5 IS NULL
  FROM fairlead_tasks t
 WHERE state = 'SUBMITTED' AND queue = ?1 AND partition = ?2 AND priority = ?3 AND fairness_key = '' AND ready_seq > ?4
 ORDER BY ready_seq
 LIMIT ?6

-- name: ready_keys
-- Walks the index from key to key. ?4: key to begin after; ?5: maximum number of keys
WITH RECURSIVE keys (fairness_key, number) AS (
    SELECT ?4, 0
    UNION ALL
    SELECT (SELECT t.fairness_key FROM fairlead_tasks t
             WHERE t.ready_seq IS NOT NULL AND t.queue = ?1 AND t.partition = ?2 AND t.priority = ?3
               AND t.fairness_key > k.fairness_key
             ORDER BY t.fairness_key LIMIT 1), k.number + 1
      FROM keys k
     WHERE k.fairness_key IS NOT NULL AND k.number < ?5
)
SELECT k.fairness_key, (SELECT t.ready_seq FROM fairlead_tasks t
                         WHERE t.ready_seq IS NOT NULL AND t.queue = ?1 AND t.partition = ?2 AND t.priority = ?3
                           AND t.fairness_key = k.fairness_key
                         ORDER BY t.ready_seq DESC LIMIT 1)
  FROM keys k
 WHERE k.number > 0 AND k.fairness_key IS NOT NULL

-- name: walk
-- The beginning of lanes and oldest_ready. Walks the index from lane to lane, so that the cost does not grow with the number
-- of tasks. The next lane is found by single columns, because SQLite reads the whole lane to find a greater row value.
WITH RECURSIVE lanes (queue, partition, priority) AS (
    SELECT queue, partition, priority
      FROM fairlead_tasks
     WHERE seq = (SELECT seq FROM fairlead_tasks
                   WHERE ready_seq IS NOT NULL
                   ORDER BY queue, partition, priority LIMIT 1)
    UNION ALL
    SELECT t.queue, t.partition, t.priority
      FROM lanes l
      JOIN fairlead_tasks t
        ON t.seq = coalesce((SELECT seq FROM fairlead_tasks
                              WHERE ready_seq IS NOT NULL AND queue = l.queue AND partition = l.partition
                                AND priority > l.priority
                              ORDER BY priority LIMIT 1),
                            (SELECT seq FROM fairlead_tasks
                              WHERE ready_seq IS NOT NULL AND queue = l.queue AND partition > l.partition
                              ORDER BY partition, priority LIMIT 1),
                            (SELECT seq FROM fairlead_tasks
                              WHERE ready_seq IS NOT NULL AND queue > l.queue
                              ORDER BY queue, partition, priority LIMIT 1))
)

-- name: lanes
{walk}
SELECT queue, partition, priority FROM lanes

-- name: claim
-- ?1: [[id, version], ...]; ?4: trigger path; ?5: stuck_at; ?6: policy
UPDATE fairlead_tasks
   SET state = 'PROCESSING', version = fairlead_tasks.version + 1, attempt = attempt + 1, tries = tries + 1, node = ?2,
       claimed_at = ?3, trigger_path = ?4, stuck_at = ?5, policy = ?6
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS version FROM json_each(?1)) AS w
 WHERE fairlead_tasks.id = w.id AND fairlead_tasks.version = w.version AND state = 'SUBMITTED'
   AND EXISTS (SELECT 1 FROM fairlead_nodes WHERE node = ?2)
   AND (fairlead_tasks.ordering_key IS NULL
        OR (NOT EXISTS (SELECT 1 FROM fairlead_tasks o  -- no earlier task of the ordering key
                         WHERE o.queue = fairlead_tasks.queue AND o.ordering_key = fairlead_tasks.ordering_key
                           AND o.order_at < fairlead_tasks.order_at)
            AND NOT EXISTS (SELECT 1                    -- the same, by id; SQLite would read all tasks for a row value
                              FROM fairlead_tasks o
                             WHERE o.queue = fairlead_tasks.queue AND o.ordering_key = fairlead_tasks.ordering_key
                               AND o.order_at = fairlead_tasks.order_at AND o.id < fairlead_tasks.id)
            AND NOT EXISTS (SELECT 1                    -- no later task that began before this task was committed
                              FROM (SELECT o.state FROM fairlead_tasks o
                                     WHERE o.queue = fairlead_tasks.queue AND o.ordering_key = fairlead_tasks.ordering_key
                                       AND o.order_at IS NOT NULL
                                     ORDER BY o.order_at, o.id LIMIT 32) AS first
                             WHERE first.state = 'PROCESSING')
            AND NOT EXISTS (SELECT 1                    -- no running task that left the order when it failed
                              FROM fairlead_tasks o
                             WHERE o.queue = fairlead_tasks.queue AND o.ordering_key = fairlead_tasks.ordering_key
                               AND o.order_at IS NULL AND o.state = 'PROCESSING')))
RETURNING {claimed}

-- name: note_claim
INSERT INTO fairlead_claims (node, stuck_at, seqs) VALUES (?1, ?2, ?3) RETURNING batch

-- name: drop_claims
-- ?2: [batch, ...] to keep. Keeps all batches that contain a task the node still holds, because `held_by` must find that task.
DELETE FROM fairlead_claims
 WHERE node = ?1 AND batch NOT IN (SELECT value FROM json_each(?2))
   AND NOT EXISTS (SELECT 1 FROM json_each(seqs) j CROSS JOIN fairlead_tasks t ON t.seq = j.value
                    WHERE t.state = 'PROCESSING' AND t.node = ?1)

-- name: record_done
-- ?1: [[seq, version, started_at, finished_at], ...] of tasks that this node (?2) holds
INSERT INTO fairlead_attempts (task_id, payload_bytes, started_at, finished_at, outcome, next_state, {run})
SELECT t.id, length(t.payload), j.value ->> 2, j.value ->> 3, 'done', 'DONE', {run_of_t}
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.seq = j.value ->> 0
 WHERE t.version = j.value ->> 1 AND t.state = 'PROCESSING' AND t.node = ?2

-- name: delete_done
-- ?1: [seq, ...] of tasks that `record_done` found held by the node, in the same transaction
DELETE FROM fairlead_tasks WHERE seq IN (SELECT value FROM json_each(?1))

-- name: record_attempts
-- ?1: [[id, version, outcome, next_state, started_at, finished_at, error_type, error_text], ...]
-- ?2: the node that must hold the tasks; NULL: any node
INSERT INTO fairlead_attempts (task_id, payload_bytes, {ended}, {run})
SELECT t.id, length(t.payload), {ended_in_j 2}, {run_of_t}
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
 WHERE t.version = j.value ->> 1 AND (?2 IS NULL OR (t.state = 'PROCESSING' AND t.node = ?2))

-- name: held
SELECT t.id
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
 WHERE t.version = j.value ->> 1 AND t.state = 'PROCESSING' AND t.node = ?2

-- name: delete_held
DELETE FROM fairlead_tasks
 WHERE seq IN (SELECT t.seq
                 FROM json_each(?1) j
                 CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
                WHERE t.version = j.value ->> 1 AND t.state = 'PROCESSING' AND t.node = ?2)

-- name: continue_held
-- ?1: [[id, version, next_state, run_at, ready_at, ready_seq, tries_spent, resets_tries, error_type, error_text,
--       leaves_order], ...]
UPDATE fairlead_tasks
   SET state = f.next_state, version = fairlead_tasks.version + 1, run_at = coalesce(f.run_at, fairlead_tasks.run_at),
       ready_at = f.ready_at, triggered_at = f.ready_at, ready_seq = f.ready_seq, node = NULL, stuck_at = NULL,
       tries = CASE WHEN f.resets_tries THEN 0 ELSE tries - 1 + f.tries_spent END,
       order_at = CASE WHEN f.leaves_order THEN NULL ELSE order_at END,
       trigger_path = 'hook', error_type = f.error_type, error_text = f.error_text
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS version, value ->> 2 AS next_state, value ->> 3 AS run_at,
               value ->> 4 AS ready_at, value ->> 5 AS ready_seq, value ->> 6 AS tries_spent, value ->> 7 AS resets_tries,
               value ->> 8 AS error_type, value ->> 9 AS error_text, value ->> 10 AS leaves_order
          FROM json_each(?1)) AS f
 WHERE fairlead_tasks.id = f.id AND fairlead_tasks.version = f.version AND state = 'PROCESSING' AND node = ?2
RETURNING queue, partition, priority, ready_seq, state, run_at

-- name: keep_result
INSERT INTO fairlead_results (task_id, finished_at, result) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING

-- name: write_progress
-- ?1: [[id, version, done, total, note, reported_at], ...] of tasks that this node (?2) holds
INSERT INTO fairlead_run_notes (task_id, attempt, began_at, done, total, note, reported_at)
SELECT t.id, t.attempt, j.value ->> 5, j.value ->> 2, j.value ->> 3, j.value ->> 4, j.value ->> 5
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
 WHERE t.version = j.value ->> 1 AND t.state = 'PROCESSING' AND t.node = ?2
ON CONFLICT (task_id, attempt) DO UPDATE
   SET done = excluded.done, total = excluded.total, note = excluded.note, reported_at = excluded.reported_at
 WHERE excluded.reported_at >= coalesce(fairlead_run_notes.reported_at, 0)

-- name: keep_notes
-- ?1: [[id, attempt, ended_at, done, total, note, reported_at, lines, dropped], ...] of runs that end in this transaction
INSERT INTO fairlead_run_notes (task_id, attempt, began_at, done, total, note, reported_at, lines, dropped)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8
  FROM json_each(?1) WHERE true
ON CONFLICT (task_id, attempt) DO UPDATE
   SET done = CASE WHEN excluded.reported_at IS NULL THEN fairlead_run_notes.done ELSE excluded.done END,
       total = CASE WHEN excluded.reported_at IS NULL THEN fairlead_run_notes.total ELSE excluded.total END,
       note = CASE WHEN excluded.reported_at IS NULL THEN fairlead_run_notes.note ELSE excluded.note END,
       reported_at = coalesce(excluded.reported_at, fairlead_run_notes.reported_at),
       lines = excluded.lines, dropped = excluded.dropped

-- name: store_checkpoint
UPDATE fairlead_tasks SET checkpoint = ?4 WHERE id = ?1 AND version = ?2 AND state = 'PROCESSING' AND node = ?3 RETURNING id

-- name: progress
SELECT done, total, note, reported_at, attempt FROM fairlead_run_notes
 WHERE task_id = ?1 AND reported_at IS NOT NULL ORDER BY attempt DESC LIMIT 1

-- name: notes
SELECT attempt, done, total, note, reported_at, lines, dropped
  FROM fairlead_run_notes WHERE task_id = ?1 ORDER BY attempt DESC LIMIT ?2

-- name: hand_back
-- ?1: [[id, version], ...]
UPDATE fairlead_tasks
   SET state = 'SUBMITTED', version = fairlead_tasks.version + 1, attempt = attempt - 1, tries = tries - 1, node = NULL,
       stuck_at = NULL, claimed_at = NULL
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS version FROM json_each(?1)) AS h
 WHERE fairlead_tasks.id = h.id AND fairlead_tasks.version = h.version AND state = 'PROCESSING' AND node = ?2
RETURNING queue, partition, priority, ready_seq

-- name: still_held
SELECT t.id
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value
 WHERE t.state = 'PROCESSING' AND t.node = ?2

-- name: due
SELECT id, version, run_at FROM fairlead_tasks WHERE state = 'WAITING' AND run_at <= ?1 ORDER BY run_at, seq LIMIT ?2

-- name: make_ready
-- ?1: [[id, version, ready_seq], ...]; ?2: now; ?3: trigger path
UPDATE fairlead_tasks
   SET state = 'SUBMITTED', version = fairlead_tasks.version + 1, ready_at = ?2, triggered_at = ?2, ready_seq = d.ready_seq,
       node = NULL, stuck_at = NULL, trigger_path = ?3
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS version, value ->> 2 AS ready_seq FROM json_each(?1)) AS d
 WHERE fairlead_tasks.id = d.id AND fairlead_tasks.version = d.version
RETURNING queue, partition, priority, ready_seq

-- name: next_due
SELECT min(run_at) FROM fairlead_tasks WHERE state = 'WAITING'

-- name: held_by
-- DISTINCT here and in `stuck`, because a task that a node claims twice is in two batches of claims.
SELECT DISTINCT t.id, t.version, t.node,
       (SELECT count(*) FROM fairlead_attempts a WHERE a.task_id = t.id AND a.outcome = 'lost')
  FROM fairlead_claims g, json_each(g.seqs) j
  CROSS JOIN fairlead_tasks t ON t.seq = j.value
 WHERE g.node IN (SELECT value FROM json_each(?1)) AND t.state = 'PROCESSING' AND t.node = g.node
 LIMIT ?2

-- name: stuck
SELECT DISTINCT t.id, t.policy
  FROM fairlead_claims g, json_each(g.seqs) j
  CROSS JOIN fairlead_tasks t ON t.seq = j.value
 WHERE g.stuck_at < ?1 AND t.state = 'PROCESSING' AND t.stuck_at < ?1
   AND t.policy & 4 = 0  -- IGNORE_STUCK
 LIMIT ?2

-- name: note_events
-- ?1: [[id, version], ...]; ?2: kind, ?3: at, ?4: the new run_at or NULL, ?5: actor
INSERT INTO fairlead_events (task_id, version, kind, at, queue, name, fairness_key, weight, priority, run_at, actor)
SELECT t.id, t.version, ?2, ?3, t.queue, t.name, t.fairness_key, t.weight, t.priority, coalesce(?4, t.run_at), ?5
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
 WHERE t.version = j.value ->> 1

-- name: end_tasks
-- ?1: [[id, version], ...]
DELETE FROM fairlead_tasks
 WHERE seq IN (SELECT t.seq
                 FROM json_each(?1) j
                 CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
                WHERE t.version = j.value ->> 1)
RETURNING id

-- name: move_tasks
-- ?1: [[id, version, ready_seq], ...]; ?2: state, ?3: run_at, ?4: now when SUBMITTED else NULL, ?5: 1 to reset tries
WITH given AS MATERIALIZED (  -- else SQLite reads all tasks for each given one
    SELECT t.seq, j.value ->> 2 AS ready_seq
      FROM json_each(?1) j
      CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
     WHERE t.version = j.value ->> 1)
UPDATE fairlead_tasks
   SET state = ?2, version = fairlead_tasks.version + 1, run_at = ?3, ready_at = ?4, triggered_at = ?4,
       ready_seq = CASE WHEN ?2 = 'SUBMITTED' THEN given.ready_seq END, node = NULL, stuck_at = NULL, claimed_at = NULL,
       trigger_path = 'hook', tries = CASE WHEN ?5 THEN 0 ELSE tries END,
       order_at = CASE WHEN ?2 = 'WAITING' AND attempt = 0 AND order_at IS NOT NULL THEN ?3 ELSE order_at END
  FROM given
 WHERE fairlead_tasks.seq = given.seq
RETURNING id, queue, partition, priority, ready_seq

-- name: change_tasks
-- ?1: [[id, version, ready_seq if SUBMITTED], ...]; ?2: priority or NULL, ?3: fairness_key or NULL, ?4: now
WITH given AS MATERIALIZED (  -- else SQLite reads all tasks for each given one
    SELECT t.seq, j.value ->> 2 AS ready_seq
      FROM json_each(?1) j
      CROSS JOIN fairlead_tasks t ON t.id = j.value ->> 0
     WHERE t.version = j.value ->> 1 AND t.state IN ('WAITING', 'SUBMITTED'))
UPDATE fairlead_tasks
   SET version = fairlead_tasks.version + 1, priority = coalesce(?2, priority), fairness_key = coalesce(?3, fairness_key),
       triggered_at = CASE WHEN state = 'SUBMITTED' THEN ?4 END,
       ready_seq = CASE WHEN state = 'SUBMITTED' THEN given.ready_seq END
  FROM given
 WHERE fairlead_tasks.seq = given.seq
RETURNING id, queue, partition, priority, fairlead_tasks.ready_seq

-- name: error_task
-- policy & 2: SKIP_FAILED of ports/task_store.py
UPDATE fairlead_tasks
   SET state = 'ERROR', version = version + 1, ready_at = NULL, ready_seq = NULL, claimed_at = NULL,
       node = NULL, stuck_at = NULL, error_type = ?3, error_text = ?4,
       order_at = CASE WHEN policy & 2 > 0 THEN NULL ELSE order_at END
 WHERE id = ?1 AND version = ?2
RETURNING id

-- name: task
SELECT {task} FROM fairlead_tasks t WHERE t.id = ?1

-- name: last_attempt
SELECT {history} FROM fairlead_attempts a WHERE a.task_id = ?1 ORDER BY a.attempt DESC, a.seq DESC LIMIT 1

-- name: ids_after
SELECT id FROM (SELECT id FROM fairlead_tasks WHERE id > ?1 ORDER BY id LIMIT ?2)
UNION
SELECT task_id FROM (SELECT DISTINCT task_id FROM fairlead_attempts WHERE task_id > ?1 ORDER BY task_id LIMIT ?2)
 ORDER BY 1

-- name: payload
SELECT payload, payload_format FROM fairlead_tasks WHERE id = ?1

-- name: attempts
SELECT {history} FROM fairlead_attempts a WHERE a.task_id = ?1 ORDER BY a.seq

-- name: result
SELECT result FROM fairlead_results WHERE task_id = ?1

-- name: statuses
-- ?1: [id, ...], each once
SELECT j.value, coalesce(t.name, a.name), coalesce(t.state, a.next_state), coalesce(t.error_type, a.error_type),
       coalesce(t.error_text, a.error_text), CASE WHEN t.id IS NULL THEN r.result END
  FROM json_each(?1) j
  LEFT JOIN fairlead_tasks t ON t.id = j.value
  LEFT JOIN fairlead_attempts a
    ON t.id IS NULL AND a.seq = (SELECT seq FROM fairlead_attempts WHERE task_id = j.value ORDER BY attempt DESC, seq DESC LIMIT 1)
  LEFT JOIN fairlead_results r ON r.task_id = j.value
 WHERE t.id IS NOT NULL OR a.seq IS NOT NULL

-- name: clean_attempts
-- Keeps rows that a reader has not read, and for a lake rows that were not compared yet.
DELETE FROM fairlead_attempts
 WHERE seq IN (SELECT seq FROM fairlead_attempts ORDER BY seq LIMIT ?2) AND finished_at < ?1
   AND NOT EXISTS (SELECT 1 FROM fairlead_readers r
                    WHERE r.kind <> 'events'
                      AND fairlead_attempts.seq > CASE r.kind WHEN 'lake' THEN coalesce(r.checked_seq, 0) ELSE r.seq END)
RETURNING seq

-- name: clean_events
DELETE FROM fairlead_events
 WHERE seq IN (SELECT seq FROM fairlead_events ORDER BY seq LIMIT ?2) AND at < ?1
   AND NOT EXISTS (SELECT 1 FROM fairlead_readers r WHERE r.kind = 'events' AND fairlead_events.seq > r.seq)
RETURNING seq

-- name: clean_results
DELETE FROM fairlead_results
 WHERE task_id IN (SELECT task_id FROM fairlead_results WHERE finished_at < ?1 ORDER BY finished_at LIMIT ?2)
RETURNING task_id

-- name: clean_run_notes
DELETE FROM fairlead_run_notes
 WHERE (task_id, attempt) IN (SELECT task_id, attempt FROM fairlead_run_notes WHERE began_at < ?1 ORDER BY began_at LIMIT ?2)
RETURNING task_id

-- name: clean_unique_keys
DELETE FROM fairlead_unique_keys
 WHERE (queue, unique_key) IN (SELECT queue, unique_key FROM fairlead_unique_keys
                                WHERE is_ended AND kept_until < ?1
                                ORDER BY kept_until LIMIT ?2)
RETURNING task_id

-- name: oldest_ready
{walk}
SELECT l.queue, min((SELECT ready_at
                       FROM (SELECT ready_seq, ready_at
                               FROM fairlead_tasks
                              WHERE state = 'SUBMITTED' AND queue = l.queue AND partition = l.partition
                                AND priority = l.priority AND fairness_key = '' AND ready_seq > 0
                              UNION ALL
                             SELECT ready_seq, ready_at
                               FROM fairlead_tasks
                              WHERE state = 'SUBMITTED' AND queue = l.queue AND partition = l.partition
                                AND priority = l.priority AND fairness_key <> '' AND ready_seq > 0
                              ORDER BY ready_seq LIMIT 1))) AS oldest
  FROM lanes l
 GROUP BY l.queue
HAVING oldest IS NOT NULL

-- name: queue_counts
SELECT queue, state, count(*), min(ready_at) FROM fairlead_tasks GROUP BY queue, state

-- name: queues
SELECT queue, partitions, paused, version FROM fairlead_queues ORDER BY queue

-- name: queues_mark
SELECT number FROM fairlead_changes WHERE kind = 'queues'

-- name: change_queues
-- Every transaction that changes settings, weights or limits of queues begins with this statement, so that such
-- transactions cannot deadlock.
INSERT INTO fairlead_changes AS c (kind, number) VALUES ('queues', 1)
ON CONFLICT (kind) DO UPDATE SET number = c.number + 1

-- name: register_queues
-- ?1: [[queue, partitions], ...]
INSERT INTO fairlead_queues AS q (queue, partitions) SELECT value ->> 0, value ->> 1 FROM json_each(?1) WHERE true
ON CONFLICT (queue) DO UPDATE SET partitions = excluded.partitions, version = q.version + 1
 WHERE q.partitions < excluded.partitions

-- name: resize_queue
-- ?3: version of the settings that the caller has read
UPDATE fairlead_queues SET partitions = ?2, version = version + 1 WHERE queue = ?1 AND version = ?3 RETURNING queue

-- name: pause
UPDATE fairlead_queues SET paused = ?2, version = version + 1 WHERE queue = ?1 RETURNING queue

-- name: register_node
INSERT INTO fairlead_nodes (node, started_at, heartbeat_at, queues, names, digest, slots, version, python)
VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (node) DO UPDATE
   SET heartbeat_at = excluded.heartbeat_at, queues = excluded.queues, names = excluded.names, digest = excluded.digest,
       slots = excluded.slots, version = excluded.version, python = excluded.python

-- name: heartbeat
UPDATE fairlead_nodes SET heartbeat_at = ?2 WHERE node = ?1 RETURNING node

-- name: silent_nodes
SELECT node FROM fairlead_nodes WHERE heartbeat_at < ?1

-- name: drop_node
DELETE FROM fairlead_nodes WHERE node = ?1

-- name: nodes
-- ?1: [digest, ...] of queues and names that the caller knows; these are returned as NULL
SELECT node, started_at, heartbeat_at, digest, CASE WHEN digest NOT IN (SELECT value FROM json_each(?1)) THEN queues END,
       CASE WHEN digest NOT IN (SELECT value FROM json_each(?1)) THEN names END, slots, version, python
  FROM fairlead_nodes
 ORDER BY started_at

-- name: change_leases
-- Returns the number of the change that begins. Every transaction that changes leases begins with this statement, so that
-- changes commit in the order of their numbers.
INSERT INTO fairlead_changes AS c (kind, number) VALUES ('leases', 1)
ON CONFLICT (kind) DO UPDATE SET number = c.number + 1
RETURNING number

-- name: end_holders
-- Ends holders that expired before ?1, or expire after ?2 because the clock was set back. A renewal at the same time is
-- either seen here, or finds its row gone.
DELETE FROM fairlead_holders WHERE expires_at < ?1 OR expires_at > ?2 RETURNING owner

-- name: free_leases
-- ?1: [owner, ...]; ?2: number of the change
UPDATE fairlead_leases SET owner = '', changed = ?2 WHERE owner IN (SELECT value FROM json_each(?1))

-- name: acquire_leases
-- ?1: [name, ...]; ?2: owner; ?3: number of the change
INSERT INTO fairlead_leases AS l (name, owner, range_id, changed) SELECT value, ?2, 1, ?3 FROM json_each(?1) WHERE true
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, range_id = l.range_id + 1, changed = excluded.changed
 WHERE l.owner = ''
RETURNING name, range_id

-- name: hold_leases
INSERT INTO fairlead_holders AS h (owner, expires_at) VALUES (?1, ?2)
ON CONFLICT (owner) DO UPDATE SET expires_at = max(h.expires_at, excluded.expires_at)

-- name: renew_leases
UPDATE fairlead_holders SET expires_at = ?2 WHERE owner = ?1 AND expires_at >= ?3 RETURNING owner

-- name: release_leases
-- ?1: owner; ?2: [name, ...]; ?3: number of the change
UPDATE fairlead_leases SET owner = '', changed = ?3 WHERE owner = ?1 AND name IN (SELECT value FROM json_each(?2))

-- name: lease_changes
-- Returns the holders that expire from ?2 to ?3, with NULL in place of a lease, and the leases changed after number ?1.
SELECT NULL AS name, owner, 0 AS range_id, 0 AS changed FROM fairlead_holders WHERE expires_at BETWEEN ?2 AND ?3
UNION ALL
SELECT name, owner, range_id, changed
  FROM fairlead_leases
 WHERE changed > ?1 AND (SELECT max(changed) FROM fairlead_leases) > ?1  -- no scan of the table without changes

-- name: read_ledger
SELECT ledger, version FROM fairlead_permits WHERE limit_name = ?1 AND shard = ?2 AND version >= ?3

-- name: new_ledger
INSERT INTO fairlead_permits (limit_name, shard, version, ledger) VALUES (?1, ?2, 1, ?3) ON CONFLICT (limit_name, shard) DO NOTHING RETURNING version

-- name: change_ledger
UPDATE fairlead_permits SET version = version + 1, ledger = ?3 WHERE limit_name = ?1 AND shard = ?2 AND version = ?4 RETURNING version

-- name: changes
SELECT changes()

-- name: unfinished
-- ?1: JSON array of queues. Returns the number of tasks left to run or retry, and of tasks in ERROR.
SELECT coalesce(sum(state IN ('SUBMITTED', 'PROCESSING') OR (state = 'WAITING' AND attempt > 0)), 0),
       coalesce(sum(state = 'ERROR'), 0)
  FROM fairlead_tasks WHERE queue IN (SELECT value FROM json_each(?1))

-- name: has_ready
-- ?1: JSON array of queues. Returns whether one has a task that is SUBMITTED or PROCESSING.
SELECT EXISTS (SELECT 1 FROM fairlead_tasks WHERE ready_seq IS NOT NULL AND queue IN (SELECT value FROM json_each(?1)))

-- name: has_retry
-- ?1: as has_ready. Reads waiting tasks in the order of their times: retries are among the first.
SELECT EXISTS (SELECT 1 FROM fairlead_tasks INDEXED BY fairlead_tasks_due
                WHERE state = 'WAITING' AND attempt > 0 AND queue IN (SELECT value FROM json_each(?1))
                ORDER BY run_at)

-- name: ahead
-- Counts the tasks before this one, up to ?2: with a better priority, or with the same and an earlier position.
SELECT count(*)
  FROM (SELECT 1 FROM fairlead_tasks t CROSS JOIN fairlead_tasks a
         WHERE t.id = ?1 AND a.ready_seq IS NOT NULL AND a.queue = t.queue AND a.partition = t.partition AND a.state = 'SUBMITTED'
           AND a.priority < t.priority
        UNION ALL
        SELECT 1 FROM fairlead_tasks t CROSS JOIN fairlead_tasks a
         WHERE t.id = ?1 AND a.ready_seq IS NOT NULL AND a.queue = t.queue AND a.partition = t.partition AND a.state = 'SUBMITTED'
           AND a.priority = t.priority AND a.fairness_key = '' AND a.ready_seq < t.ready_seq
        UNION ALL
        SELECT 1 FROM fairlead_tasks t CROSS JOIN fairlead_tasks a
         WHERE t.id = ?1 AND a.ready_seq IS NOT NULL AND a.queue = t.queue AND a.partition = t.partition AND a.state = 'SUBMITTED'
           AND a.priority = t.priority AND a.fairness_key <> '' AND a.ready_seq < t.ready_seq
         LIMIT ?2)

-- name: weights
SELECT fairness_key, weight FROM fairlead_weights WHERE queue = ?1 ORDER BY fairness_key

-- name: limits
SELECT fairness_key, slots FROM fairlead_limits WHERE queue = ?1 ORDER BY fairness_key

-- name: settings_changed
UPDATE fairlead_queues SET version = version + 1 WHERE queue = ?1 RETURNING queue

-- name: set_weights
-- ?2: [fairness_key, ...], each once
INSERT INTO fairlead_weights (queue, fairness_key, weight)
SELECT ?1, value, ?3 FROM json_each(?2) WHERE true
ON CONFLICT (queue, fairness_key) DO UPDATE SET weight = excluded.weight, policy = NULL
RETURNING fairness_key

-- name: clear_weights
-- ?2: [fairness_key, ...]
DELETE FROM fairlead_weights WHERE queue = ?1 AND fairness_key IN (SELECT value FROM json_each(?2))
RETURNING fairness_key

-- name: set_limits
-- ?2: [fairness_key, ...], each once
INSERT INTO fairlead_limits (queue, fairness_key, slots)
SELECT ?1, value, ?3 FROM json_each(?2) WHERE true
ON CONFLICT (queue, fairness_key) DO UPDATE SET slots = excluded.slots, policy = NULL
RETURNING fairness_key

-- name: clear_limits
-- ?2: [fairness_key, ...]
DELETE FROM fairlead_limits WHERE queue = ?1 AND fairness_key IN (SELECT value FROM json_each(?2))
RETURNING fairness_key

-- name: heaviest_keys
-- Returns tasks, weight and share of the fairness keys that have tasks to run, and the number of all such keys. The
-- tenant of a key is the text before the first slash that is not its first character.
WITH named AS (
    SELECT t.fairness_key, count(*) AS tasks, coalesce(max(w.weight), max(t.weight)) AS weight,
           substr(t.fairness_key, 1, instr(substr(t.fairness_key || '/', 2), '/')) AS tenant
      FROM fairlead_tasks t
      LEFT JOIN fairlead_weights w ON w.queue = t.queue AND w.fairness_key = t.fairness_key
     WHERE t.ready_seq IS NOT NULL AND t.queue = ?1 AND t.state = 'SUBMITTED'
     GROUP BY t.fairness_key
), keys AS (
    SELECT n.*, CASE WHEN fairness_key = tenant THEN 1.0 ELSE weight END AS own FROM named n
), tenants AS (
    SELECT k.tenant, sum(k.own) AS own,
           coalesce(max(w.weight), max(CASE WHEN k.fairness_key = k.tenant THEN k.weight END), 1.0) AS weight
      FROM keys k
      LEFT JOIN fairlead_weights w ON w.queue = ?1 AND w.fairness_key = k.tenant
     GROUP BY k.tenant
)
SELECT k.fairness_key, k.tasks, k.weight, t.weight / (SELECT sum(weight) FROM tenants) * k.own / t.own, count(*) OVER ()
  FROM keys k
  JOIN tenants t ON t.tenant = k.tenant
 ORDER BY k.tasks DESC, k.fairness_key
 LIMIT ?2

-- name: ordered
-- ?1: [[queue, ordering_key], ...]; ?2: maximum number of tasks of each ordering key, in order
SELECT t.ready_seq, t.id, t.version, t.queue, t.partition, t.name, t.priority, t.fairness_key, t.weight, t.ordering_key,
       t.order_at, t.state
  FROM json_each(?1) j
 CROSS JOIN fairlead_tasks t
    ON t.seq IN (SELECT o.seq FROM fairlead_tasks o
                  WHERE o.queue = j.value ->> 0 AND o.ordering_key = j.value ->> 1 AND o.order_at IS NOT NULL
                  ORDER BY o.order_at, o.id LIMIT ?2)
 ORDER BY t.queue, t.ordering_key, t.order_at, t.id

-- name: changed
-- ?1: [[id, version], ...]
SELECT j.value ->> 0
  FROM json_each(?1) j
 WHERE (SELECT t.version FROM fairlead_tasks t WHERE t.id = j.value ->> 0) IS NOT j.value ->> 1
