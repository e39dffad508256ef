-- Statements of the periodic tasks on PostgreSQL. Each write of a record raises its number. Frequent statements begin at the
-- last number that the process has read, so that they read no replaced rows beside a transaction that stays open.

-- name: lock
-- Allows one transaction at a time to add records, so that each name has one row.
SELECT pg_advisory_xact_lock(hashtextextended('fairlead periodic tasks ' || 'fairlead_periodics'::regclass::oid, 0))

-- name: register
-- Follows lock. $1 to $6: name, task, queue, cron, timezone, catch_up; $7: now; $8: the clock that nodes share; $9: the node
WITH changed AS (
    UPDATE fairlead_periodics AS p
       SET number = p.number + 1,
           task = $2,
           queue = $3,
           cron = $4,
           timezone = $5,
           catch_up = $6,
           version = p.version + 1,
           passed_at = CASE WHEN (p.cron, p.timezone) = ($4::text, $5::text) THEN p.passed_at ELSE greatest(p.passed_at, $7::bigint) END,
           declared_at = $8,
           declared_by = $9
     WHERE name = $1
    RETURNING name
)
INSERT INTO fairlead_periodics (name, number, task, queue, cron, timezone, catch_up, registered_at, passed_at, declared_at, declared_by)
SELECT $1, 1, $2, $3, $4, $5, $6, $7::bigint, $7::bigint, $8, $9 WHERE NOT EXISTS (SELECT 1 FROM changed)

-- name: declare
-- Renew the declarations. $1: [[name, number], ...]; $2: the clock that nodes share; $3: the node; $4: greatest declared_at to
-- renew, because a more recent declaration needs no renewal
UPDATE fairlead_periodics SET number = number + 1, declared_at = $2, declared_by = $3
 WHERE ctid = ANY (ARRAY(SELECT p.place
                           FROM json_array_elements($1::json) AS j
                          CROSS JOIN LATERAL (SELECT ctid AS place FROM fairlead_periodics
                                               WHERE name = j ->> 0 AND number >= (j ->> 1)::bigint AND declared_at <= $4
                                                 FOR UPDATE SKIP LOCKED) AS p))

-- name: pass
-- Record that all slots up to $3 are submitted or skipped. $1: name; $2: expected version; $4: last submitted slot, or NULL;
-- $5: the number that this process has read last
UPDATE fairlead_periodics
   SET number = number + 1, version = version + 1, passed_at = $3, last_slot_at = coalesce($4::bigint, last_slot_at)
 WHERE name = $1 AND number >= $5 AND version = $2 AND NOT paused
RETURNING name

-- name: pause
-- $2: whether paused; $3: now. Slots of the pause are skipped.
UPDATE fairlead_periodics
   SET number = number + 1,
       version = version + 1,
       passed_at = CASE WHEN paused AND NOT $2::boolean THEN greatest(passed_at, $3::bigint) ELSE passed_at END,
       paused = $2::boolean
 WHERE name = $1
RETURNING name

-- name: remove
DELETE FROM fairlead_periodics WHERE name = $1 AND declared_at = $2 RETURNING name

-- name: records
-- $1: [[name, number], ...], as this process has read them last. Another server, or a record that was removed and added again,
-- may have a lower number. Names that are not known are between these.
WITH known AS MATERIALIZED (
    SELECT name, number, lead(name) OVER (ORDER BY name) AS next
      FROM (SELECT '' AS name, 0::bigint AS number
            UNION ALL
            SELECT j ->> 0, (j ->> 1)::bigint FROM unnest(ARRAY(SELECT json_array_elements($1::json))) AS j) AS given
)
SELECT p.name, task, queue, cron, timezone, catch_up, paused, version, registered_at, passed_at, last_slot_at, declared_at,
       declared_by, p.number
  FROM known k
 CROSS JOIN LATERAL ((SELECT * FROM ((SELECT * FROM fairlead_periodics WHERE name = k.name AND number >= k.number LIMIT 1)
                                     UNION ALL
                                     (SELECT * FROM fairlead_periodics WHERE name = k.name AND number < k.number LIMIT 1)
                                     LIMIT 1) AS one)
                     UNION ALL
                     (SELECT * FROM fairlead_periodics WHERE name > k.name AND name < k.next OFFSET 0)
                     UNION ALL
                     (SELECT * FROM fairlead_periodics WHERE k.next IS NULL AND name > k.name OFFSET 0)) AS p
 ORDER BY p.name

-- name: free_key
-- Frees the key of a task in ERROR, which neither waits nor runs, for the next slot.
DELETE FROM fairlead_unique_keys
 WHERE queue = $1 AND unique_key = $2
   AND EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = fairlead_unique_keys.task_id AND t.state = 'ERROR')
