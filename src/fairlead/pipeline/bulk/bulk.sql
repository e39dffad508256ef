-- Statements of bulk submit, on PostgreSQL and SQLite, where $1 becomes ?1. A submission is a row of fairlead_bulk_jobs from
-- the commit of its tasks on.

-- name: stage
-- $1: id of an attempt of a task of Spark, $2: number of the piece in the attempt, $3: now, $4: tasks in MessagePack
INSERT INTO fairlead_bulk_stage (attempt, piece, staged_at, tasks) VALUES ($1, $2, $3, $4)

-- name: staged
SELECT tasks FROM fairlead_bulk_stage WHERE attempt = $1 AND piece = $2

-- name: drop_attempt
DELETE FROM fairlead_bulk_stage WHERE attempt = $1

-- name: one_publisher
-- PostgreSQL: let submissions publish one after the other until the end of the transaction, so that two of them with the same
-- unique keys do not deadlock. SQLite has one writer anyway.
SELECT 1 FROM (SELECT pg_advisory_xact_lock(1717659506)) AS held

-- name: job
SELECT content, inserted, duplicates FROM fairlead_bulk_jobs WHERE submission_id = $1

-- name: insert_job
INSERT INTO fairlead_bulk_jobs (submission_id, content, inserted, duplicates, published_at) VALUES ($1, $2, $3, $4, $5)

-- name: sweep_stage
-- $1: pieces that were staged before this time
DELETE FROM fairlead_bulk_stage WHERE staged_at < $1

-- name: sweep_jobs
-- $1: submissions that were published before this time
DELETE FROM fairlead_bulk_jobs WHERE published_at < $1
