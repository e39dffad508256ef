-- Statements of the periodic tasks on PostgreSQL.

-- name: register
-- $1 to $6: name, task, queue, cron, timezone, catch_up; $7: now; $8: the clock that nodes share; $9: the node
INSERT INTO fairlead_periodics AS p (name, task, queue, cron, timezone, catch_up, registered_at, passed_at, declared_at, declared_by)
VALUES ($1, $2, $3, $4, $5, $6, $7::bigint, $7::bigint, $8, $9)
ON CONFLICT (name) DO UPDATE
   SET task = excluded.task,
       queue = excluded.queue,
       cron = excluded.cron,
       timezone = excluded.timezone,
       catch_up = excluded.catch_up,
       version = p.version + 1,
       passed_at = CASE WHEN (p.cron, p.timezone) = (excluded.cron, excluded.timezone) THEN p.passed_at
                        ELSE greatest(p.passed_at, excluded.passed_at) END,
       declared_at = excluded.declared_at,
       declared_by = excluded.declared_by

-- name: declare
-- Renew the declarations. $1: [name, ...]; $2: the clock that nodes share; $3: the node; $4: greatest declared_at to renew,
-- because a more recent declaration needs no renewal
UPDATE fairlead_periodics SET declared_at = $2, declared_by = $3
 WHERE name = ANY (ARRAY(SELECT p.name
                           FROM json_array_elements_text($1::json) AS j
                          CROSS JOIN LATERAL (SELECT name FROM fairlead_periodics
                                               WHERE name = j AND declared_at <= $4 FOR UPDATE SKIP LOCKED) AS p))

-- name: pass
-- Record that all slots up to $3 are submitted or skipped. $1: name; $2: expected version; $4: last submitted slot, or NULL
UPDATE fairlead_periodics
   SET version = version + 1, passed_at = $3, last_slot_at = coalesce($4::bigint, last_slot_at)
 WHERE name = $1 AND version = $2 AND NOT paused
RETURNING name

-- name: pause
-- $2: whether paused; $3: now. Slots of the pause are skipped.
UPDATE fairlead_periodics
   SET version = version + 1,
       passed_at = CASE WHEN paused AND NOT $2::boolean THEN greatest(passed_at, $3::bigint) ELSE passed_at END,
       paused = $2::boolean
 WHERE name = $1
RETURNING name

-- name: remove
DELETE FROM fairlead_periodics WHERE name = $1 AND declared_at = $2 RETURNING name

-- name: records
SELECT name, task, queue, cron, timezone, catch_up, paused, version, registered_at, passed_at, last_slot_at, declared_at,
       declared_by
  FROM fairlead_periodics ORDER BY name

-- name: free_key
-- Frees the key of a task in ERROR, which neither waits nor runs, for the next slot.
DELETE FROM fairlead_unique_keys
 WHERE queue = $1 AND unique_key = $2
   AND EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = fairlead_unique_keys.task_id AND t.state = 'ERROR')
