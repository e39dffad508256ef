-- Statements about the stage of bulk submit on PostgreSQL. $1, $2 ... are the parameters in order; $1 is the submission_id unless
-- a comment says otherwise.

-- name: take_slot
-- $1: class of advisory locks, $2: number of slots. Lock a free slot until the end of the transaction and return its number;
-- return no row if no slot is free.
SELECT slot FROM generate_series(1, $2) AS slot WHERE pg_try_advisory_xact_lock($1, slot) LIMIT 1

-- name: publish_rejects
-- $2: attempts whose rows are published
UPDATE fairlead_bulk_rejects SET published = true WHERE submission_id = $1 AND attempt = ANY ($2::uuid[])

-- name: claim_keys
-- $1 job number; $2 attempts, with the first row $3 and the end row $4 (exclusive) of each; $5 now. Insert the keys in sorted
-- order, so that two transactions with the same keys do not deadlock. Of several rows with one key, the first row gets the key.
INSERT INTO fairlead_unique_keys (queue, unique_key, task_id, submitted_at)
SELECT s.queue, s.unique_key, s.id, $5::bigint
  FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) AS p (attempt, first, last)
  JOIN fairlead_bulk_stage s ON s.job = $1 AND s.attempt = p.attempt AND s.ordinal >= p.first AND s.ordinal < p.last
 WHERE s.unique_key IS NOT NULL
 ORDER BY s.queue, s.unique_key, s.id
ON CONFLICT DO NOTHING

-- name: insert_piece
-- $1 job number, $2 attempt, $3 first row, $4 end row (exclusive), $5 now. Insert the tasks without a unique key, and those
-- that got their unique key in claim_keys.
WITH given AS (
    SELECT *, coalesce(run_at, $5) AS start_at, coalesce(run_at, $5) <= $5 AS is_due
      FROM fairlead_bulk_stage s
     WHERE job = $1 AND attempt = $2::text::uuid AND ordinal >= $3 AND ordinal < $4
       AND (unique_key IS NULL
            OR EXISTS (SELECT 1 FROM fairlead_unique_keys k
                        WHERE k.queue = s.queue AND k.unique_key = s.unique_key AND k.task_id = s.id))
     ORDER BY ordinal
), inserted AS (
    INSERT INTO fairlead_tasks (id, queue, partition, name, state, priority, fairness_key, weight, ordering_key, unique_key,
           keep_result, submitted_at, run_at, ready_at, triggered_at, ready_seq, due_at, due_seq, context, payload_format,
           payload, order_at, order_seq)
    SELECT id, queue, partition, name, CASE WHEN is_due THEN 'SUBMITTED' ELSE 'WAITING' END, priority, fairness_key,
           weight, ordering_key, unique_key, keep_result, $5, start_at, CASE WHEN is_due THEN $5 END,
           CASE WHEN is_due THEN $5 END, CASE WHEN is_due THEN nextval('fairlead_ready_seq') END,
           CASE WHEN NOT is_due THEN start_at END, CASE WHEN NOT is_due THEN nextval('fairlead_ready_seq') END, context,
           payload_format, payload,
           CASE WHEN ordering_key IS NOT NULL THEN start_at END,
           CASE WHEN ordering_key IS NOT NULL THEN nextval('fairlead_ready_seq') END
      FROM given
    RETURNING queue, partition, priority, ready_seq, due_at
)
SELECT queue, partition, priority, min(ready_seq), min(due_at), count(*) FROM inserted GROUP BY queue, partition, priority

-- name: count_piece
SELECT count(*) FROM fairlead_bulk_stage WHERE job = $1 AND attempt = $2::text::uuid AND ordinal >= $3 AND ordinal < $4

-- name: drop_stage
-- $1 job number
DELETE FROM fairlead_bulk_stage WHERE job = $1

-- name: drop_rejects
DELETE FROM fairlead_bulk_rejects WHERE submission_id = $1 AND NOT published
