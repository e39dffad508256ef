-- Statements of the audit log on SQLite.

-- name: add
INSERT INTO fairlead_audit (at, actor, verb, outcome, task_id, queue, fairness_key, tenant, subject, action, details)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- name: entries
-- ?1: id before which to begin, or NULL; ?2: limit; ?9: JSON array of tenants, or NULL for all
SELECT at, actor, verb, outcome, task_id, queue, fairness_key, subject, action, details, id
  FROM fairlead_audit
 WHERE (?1 IS NULL OR id < ?1) AND (?3 IS NULL OR actor = ?3)
   AND (?4 IS NULL OR verb = ?4) AND (?5 IS NULL OR task_id = ?5)
   AND (?6 IS NULL OR queue = ?6) AND (?7 IS NULL OR fairness_key = ?7)
   AND (?8 IS NULL OR action = ?8)
   AND (?9 IS NULL OR tenant IN (SELECT value FROM json_each(?9)))
 ORDER BY id DESC
 LIMIT ?2

-- name: has_old
SELECT 1 FROM (SELECT at FROM fairlead_audit ORDER BY id LIMIT 1) AS oldest WHERE at < ?1

-- name: clean
DELETE FROM fairlead_audit
 WHERE id IN (SELECT id FROM fairlead_audit ORDER BY id LIMIT ?2) AND at < ?1
RETURNING id
