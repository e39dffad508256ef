-- Statements of bulk submit on PostgreSQL. $1, $2 ... are the parameters in order; $1 is the submission_id unless
-- a comment says otherwise. Statements about jobs have the same names and parameters in sqlite.sql. An epoch is a random text
-- that identifies one run of a job.

-- name: open_job
-- $2 epoch, $3 now, $4 atomic or chunked, $5 digest that the submitter gave. Keep the parts of a job that is being published; do
-- not change a committed job.
INSERT INTO fairlead_bulk_jobs AS j (submission_id, epoch, state, publish, opened_at, touched_at, declared)
VALUES ($1, $2, 'open', $4, $3, $3, $5)
ON CONFLICT (submission_id) DO UPDATE
   SET epoch = excluded.epoch, touched_at = excluded.touched_at,
       opened_at = CASE WHEN j.epoch = excluded.epoch THEN j.opened_at ELSE excluded.opened_at END,
       state = CASE WHEN j.state = 'publishing' THEN j.state ELSE 'open' END,
       publish = CASE WHEN j.state = 'publishing' THEN j.publish ELSE excluded.publish END,
       declared = CASE WHEN j.state = 'publishing' THEN j.declared ELSE excluded.declared END,
       swept = j.swept AND j.state = 'publishing'
 WHERE j.state <> 'committed'

-- name: job
SELECT number, epoch, state, publish, opened_at, parts, staged, published_through, inserted, duplicates, rejected, declared,
       content
  FROM fairlead_bulk_jobs WHERE submission_id = $1

-- name: lock_job
SELECT number, epoch, state, publish, opened_at, parts, staged, published_through, inserted, duplicates, rejected, declared,
       content
  FROM fairlead_bulk_jobs WHERE submission_id = $1 FOR UPDATE

-- name: touch_job
-- $2 epoch, $3 now. Lock the row of the job, and return it unless a later run has taken over the job. The time is renewed once
-- a minute, so that few replaced rows are in the way of the next statement beside a transaction that stays open.
WITH job AS MATERIALIZED (
    SELECT ctid AS place, number, touched_at FROM fairlead_bulk_jobs WHERE submission_id = $1 AND epoch = $2 FOR UPDATE
), touched AS (
    UPDATE fairlead_bulk_jobs SET touched_at = $3
     WHERE ctid = ANY (ARRAY(SELECT place FROM job WHERE $3 NOT BETWEEN touched_at AND touched_at + 60000000))
)
SELECT number FROM job

-- name: begin_publishing
-- $2 parts, $3 rows staged, $4 rows rejected, $5 now, $6 count and digest of the rows
UPDATE fairlead_bulk_jobs SET state = 'publishing', parts = $2, staged = $3, rejected = $4, touched_at = $5,
       content = $6
 WHERE submission_id = $1

-- name: advance
-- $2 last row handled so far, $3 inserted, $4 duplicates, $5 now
UPDATE fairlead_bulk_jobs
   SET published_through = $2, inserted = inserted + $3, duplicates = duplicates + $4, touched_at = $5,
       state = CASE WHEN $2 = staged THEN 'committed' ELSE state END
 WHERE submission_id = $1

-- name: abort_job
-- $2 epoch, $3 now
UPDATE fairlead_bulk_jobs SET state = 'aborted', touched_at = $3
 WHERE submission_id = $1 AND epoch = $2 AND state = 'open' RETURNING number

-- name: abandoned_jobs
-- $1: return jobs that were last changed before this time; $2: the same limit for jobs of which some chunks are published
SELECT submission_id, number FROM fairlead_bulk_jobs
 WHERE NOT swept AND touched_at < CASE state WHEN 'publishing' THEN $2::bigint ELSE $1::bigint END
 ORDER BY touched_at LIMIT 100
   FOR UPDATE SKIP LOCKED

-- name: sweep_job
-- The new epoch stops a run that is still alive from publishing rows that are deleted here.
UPDATE fairlead_bulk_jobs SET swept = true, epoch = '', state = CASE state WHEN 'open' THEN 'aborted' ELSE state END
 WHERE submission_id = $1

-- name: delete_old_jobs
-- $1: delete jobs that were last changed before this time
DELETE FROM fairlead_bulk_jobs WHERE swept AND state <> 'publishing' AND touched_at < $1 RETURNING submission_id

-- name: delete_rejects
DELETE FROM fairlead_bulk_rejects WHERE submission_id = $1

-- name: take_slot
-- $1: class of advisory locks, $2: number of slots. Lock a free slot until the end of the transaction and return its number;
-- return no row if no slot is free.
SELECT slot FROM generate_series(1, $2) AS slot WHERE pg_try_advisory_xact_lock($1, slot) LIMIT 1

-- name: insert_reject
INSERT INTO fairlead_bulk_rejects (submission_id, attempt, part, ordinal, column_name, reason, value)
VALUES ($1, $2, $3, $4, $5, $6, $7)

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
