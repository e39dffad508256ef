-- Statements about the jobs of bulk submit, on PostgreSQL and SQLite. On SQLite, $1 becomes ?1, and FOR UPDATE is left out: a
-- transaction there is the only writer. $1 is the submission_id unless a comment says otherwise. An epoch is a random text that
-- identifies one run of a job.

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
SELECT number, epoch, state, publish, opened_at, touched_at, parts, staged, published_through, inserted, duplicates, rejected,
       declared, content
  FROM fairlead_bulk_jobs WHERE submission_id = $1

-- name: lock_job
SELECT number, epoch, state, publish, opened_at, touched_at, parts, staged, published_through, inserted, duplicates, rejected,
       declared, content
  FROM fairlead_bulk_jobs WHERE submission_id = $1 FOR UPDATE

-- name: touch_job
-- $2 now
UPDATE fairlead_bulk_jobs SET touched_at = $2 WHERE submission_id = $1

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
 WHERE NOT swept AND touched_at < CASE state WHEN 'publishing' THEN CAST($2 AS bigint) ELSE CAST($1 AS bigint) END
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

-- name: insert_reject
-- $8: whether the rows of the attempt are published
INSERT INTO fairlead_bulk_rejects (submission_id, attempt, part, ordinal, column_name, reason, value, published)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
