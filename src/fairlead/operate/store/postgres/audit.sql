-- Statements of the audit log on PostgreSQL.

-- name: add
INSERT INTO fairlead_audit (at, actor, verb, outcome, task_id, queue, fairness_key, tenant, subject, action, details)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: entries
-- $1: id before which to begin, or NULL; $2: limit; $9: JSON array of tenants, or NULL for all
SELECT at, actor, verb, outcome, task_id, queue, fairness_key, subject, action, details, id
  FROM fairlead_audit
 WHERE ($1::bigint IS NULL OR id < $1::bigint) AND ($3::text IS NULL OR actor = $3::text)
   AND ($4::text IS NULL OR verb = $4::text) AND ($5::text IS NULL OR task_id = $5::text)
   AND ($6::text IS NULL OR queue = $6::text) AND ($7::text IS NULL OR fairness_key = $7::text)
   AND ($8::bigint IS NULL OR action = $8::bigint)
   AND ($9::text IS NULL OR tenant IN (SELECT json_array_elements_text($9::text::json)))
 ORDER BY id DESC
 LIMIT $2

-- name: has_old
SELECT 1 FROM (SELECT at FROM fairlead_audit ORDER BY id LIMIT 1) AS oldest WHERE at < $1

-- name: clean
DELETE FROM fairlead_audit
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fairlead_audit ORDER BY id LIMIT $2)) AND at < $1
RETURNING id
