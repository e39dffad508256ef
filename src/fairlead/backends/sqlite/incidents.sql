-- Statements of the incidents on SQLite.

-- name: note_errors
-- ?1: [id, ...] of tasks that this transaction has moved to ERROR; ?2: now
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT 'error', t.id, t.version, t.queue, t.name, ?2, ?2, substr(coalesce(t.error_type || ': ', '') || coalesce(t.error_text, ''), 1, 1000), ?2
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value
 WHERE t.state = 'ERROR'
ON CONFLICT DO NOTHING

-- name: drop_errors
-- ?1: [[id, version], ...]
DELETE FROM fairlead_incidents
 WHERE kind = 'error' AND (subject, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))

-- name: report
-- ?1: [[kind, subject, version, queue, name, since, details], ...]; ?2: now; ?3: an incident that was reported
-- last before this instant begins anew
INSERT INTO fairlead_incidents (kind, subject, version, queue, name, since, seen_at, details, deliver_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?2, value ->> 6, ?2
  FROM json_each(?1)
 WHERE true
ON CONFLICT (kind, subject, version) DO UPDATE SET seen_at = excluded.seen_at, details = excluded.details,
       since = CASE WHEN fairlead_incidents.seen_at < ?3 THEN excluded.since ELSE fairlead_incidents.since END

-- name: claim
UPDATE fairlead_incidents SET deliver_at = ?2, deliveries = deliveries + 1
 WHERE id IN (SELECT id FROM fairlead_incidents
               WHERE delivered_at IS NULL AND deliver_at <= ?1
               ORDER BY deliver_at, id LIMIT ?3)
RETURNING {incident}

-- name: tasks_of
SELECT {task}
  FROM json_each(?1) j
  CROSS JOIN fairlead_tasks t ON t.id = j.value

-- name: delete
DELETE FROM fairlead_incidents WHERE id IN (SELECT value FROM json_each(?1))

-- name: delivered
UPDATE fairlead_incidents SET delivered_at = ?2 WHERE id IN (SELECT value FROM json_each(?1)) AND delivered_at IS NULL

-- name: retry
-- ?1: [[id, deliver_at], ...]
UPDATE fairlead_incidents SET deliver_at = r.deliver_at
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS deliver_at FROM json_each(?1)) AS r
 WHERE fairlead_incidents.id = r.id AND delivered_at IS NULL

-- name: page
SELECT id FROM fairlead_incidents WHERE id > ?1 ORDER BY id LIMIT ?2

-- name: sweep
-- ?1: [id, ...]; ?2: instant before which an incident without a task is over
DELETE FROM fairlead_incidents
 WHERE id IN (SELECT value FROM json_each(?1))
   AND CASE kind
       WHEN 'error' THEN NOT EXISTS (SELECT 1 FROM fairlead_tasks t WHERE t.id = subject AND t.version = fairlead_incidents.version)
       ELSE delivered_at IS NOT NULL AND seen_at < ?2
       END

-- name: counts
SELECT kind, queue, name, count(*) FROM fairlead_incidents WHERE kind = 'error' OR seen_at >= ?1 GROUP BY kind, queue, name

-- name: undelivered
-- In the order of their index, so that those that were delivered, and those beyond the limit, are not read.
SELECT {incident}
  FROM (SELECT * FROM fairlead_incidents WHERE delivered_at IS NULL ORDER BY deliver_at, id LIMIT ?1) AS first
 ORDER BY id

-- name: open
-- ?1: [kind, ...]; ?2: maximum number, of each kind and of all; ?3: instant of the earliest last report
SELECT i.id, i.kind, i.subject, i.details, i.since, i.queue, i.name, i.version, i.deliveries, i.delivered_at
  FROM json_each(?1) j
 CROSS JOIN fairlead_incidents i
    ON i.id IN (SELECT id FROM fairlead_incidents WHERE kind = j.value ORDER BY subject DESC LIMIT ?2)
 WHERE i.seen_at >= ?3
 ORDER BY i.id DESC
 LIMIT ?2

-- name: latest
SELECT {incident}
  FROM fairlead_incidents WHERE id < ?1 AND (kind = 'error' OR seen_at >= ?3) ORDER BY id DESC LIMIT ?2
