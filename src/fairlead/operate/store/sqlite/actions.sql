-- Statements of the bulk actions on SQLite. A transaction begins as the only writer.

-- name: add
INSERT INTO fairlead_actions (verb, change, filter, tenants, most, actor, asked_at, state)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'waiting')
RETURNING id, verb, change, filter, tenants, most, actor, asked_at, state, is_stopping, version, performer, expires_at, cursor,
       looked, changed, refused, error, ended_at

-- name: action
SELECT id, verb, change, filter, tenants, most, actor, asked_at, state, is_stopping, version, performer, expires_at, cursor,
       looked, changed, refused, error, ended_at
  FROM fairlead_actions WHERE id = ?1

-- name: actions
-- ?1: id before which to begin, or NULL; ?2: limit; ?3: JSON array of tenants, or NULL for all
SELECT id, verb, change, filter, tenants, most, actor, asked_at, state, is_stopping, version, performer, expires_at, cursor,
       looked, changed, refused, error, ended_at
  FROM fairlead_actions
 WHERE (?1 IS NULL OR id < ?1)
   AND (?3 IS NULL
        OR (tenants IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM json_each(tenants) AS t WHERE t.value NOT IN (SELECT value FROM json_each(?3)))))
 ORDER BY id DESC
 LIMIT ?2

-- name: unperformed
SELECT id, verb, change, filter, tenants, most, actor, asked_at, state, is_stopping, version, performer, expires_at, cursor,
       looked, changed, refused, error, ended_at
  FROM fairlead_actions
 WHERE state IN ('waiting', 'running') AND (state = 'waiting' OR expires_at <= ?1)
 ORDER BY id
 LIMIT ?2

-- name: hold
-- ?2: version, or NULL for any
SELECT id, verb, change, filter, tenants, most, actor, asked_at, state, is_stopping, version, performer, expires_at, cursor,
       looked, changed, refused, error, ended_at
  FROM fairlead_actions WHERE id = ?1 AND (?2 IS NULL OR version = ?2)

-- name: save
UPDATE fairlead_actions
   SET state = ?2, is_stopping = ?3, version = ?4, performer = ?5, expires_at = ?6, cursor = ?7, looked = ?8,
       changed = ?9, refused = ?10, error = ?11, ended_at = ?12
 WHERE id = ?1

-- name: has_old
SELECT 1 FROM fairlead_actions WHERE ended_at < ?1 LIMIT 1

-- name: clean
DELETE FROM fairlead_actions
 WHERE id IN (SELECT id FROM fairlead_actions WHERE ended_at < ?1 ORDER BY id LIMIT ?2)
RETURNING id
