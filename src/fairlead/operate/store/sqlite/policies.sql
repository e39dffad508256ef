-- Statements of the policies on SQLite. A transaction begins as the only writer.

-- name: lock
UPDATE fairlead_queues SET version = version + 1 WHERE queue = ?1 RETURNING queue

-- name: lock_some
-- ?1: a queue, or '' for all
UPDATE fairlead_queues SET version = version + 1 WHERE ?1 = '' OR queue = ?1

-- name: is_switched
SELECT 1 FROM fairlead_policy_switches WHERE queue IN (?1, '') AND (?2 = '' OR mode = ?2)

-- name: active
SELECT version FROM fairlead_policies WHERE queue = ?1 AND state = 'active'

-- name: end
UPDATE fairlead_policies
   SET state = ?2, judged_at = coalesce(judged_at, ?3), verdict = coalesce(?4, verdict)
 WHERE version = ?1

-- name: end_some
-- ?1: a queue, or '' for all
UPDATE fairlead_policies
   SET state = 'rolled_back', judged_at = coalesce(judged_at, ?2), verdict = ?3
 WHERE state = 'active' AND (?1 = '' OR queue = ?1)

-- name: insert
INSERT INTO fairlead_policies (queue, author, why, computed_at, input_from, input_to, input_rows, raw, guarded, reasons,
                               due, raw_limits, limits, limit_reasons, is_canary, judged_at, verdict, state, supersedes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, 'active', ?18)
RETURNING version

-- name: drop_old
DELETE FROM fairlead_policies
 WHERE queue = ?1
   AND version <= (SELECT version FROM fairlead_policies WHERE queue = ?1 ORDER BY version DESC LIMIT 1 OFFSET ?2)

-- name: clear_weights
-- ?1: a queue, or '' for all
DELETE FROM fairlead_weights WHERE policy IS NOT NULL AND (?1 = '' OR queue = ?1)

-- name: clear_limits
-- ?1: a queue, or '' for all
DELETE FROM fairlead_limits WHERE policy IS NOT NULL AND (?1 = '' OR queue = ?1)

-- name: put_weights
-- ?1: queue; ?2: version; ?3: [[fairness key, weight], ...]. Weights that a person has set stay.
INSERT INTO fairlead_weights (queue, fairness_key, weight, policy)
SELECT ?1, j.value ->> 0, j.value ->> 1, ?2 FROM json_each(?3) AS j WHERE true
ON CONFLICT (queue, fairness_key) DO NOTHING

-- name: put_limits
-- ?1: queue; ?2: version; ?3: [[fairness key, slots], ...]. Limits that a person has set stay.
INSERT INTO fairlead_limits (queue, fairness_key, slots, policy)
SELECT ?1, j.value ->> 0, j.value ->> 1, ?2 FROM json_each(?3) AS j WHERE true
ON CONFLICT (queue, fairness_key) DO NOTHING

-- name: judge
UPDATE fairlead_policies SET judged_at = ?2, verdict = ?3 WHERE version = ?1 AND state = 'active'

-- name: set_switch
INSERT INTO fairlead_policy_switches (queue, mode, author, why, at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (queue) DO UPDATE
   SET mode = excluded.mode, author = excluded.author, why = excluded.why, at = excluded.at

-- name: clear_switch
DELETE FROM fairlead_policy_switches WHERE queue = ?1 RETURNING queue

-- name: switches
SELECT queue, mode, author, why, at FROM fairlead_policy_switches ORDER BY queue

-- name: weights
SELECT fairness_key, weight, policy FROM fairlead_weights WHERE queue = ?1 ORDER BY fairness_key

-- name: limits_by_person
SELECT fairness_key, slots FROM fairlead_limits WHERE queue = ?1 AND policy IS NULL ORDER BY fairness_key

-- name: policy
SELECT * FROM fairlead_policies WHERE version = ?1

-- name: policies
-- ?1: a queue, or NULL for all
SELECT * FROM fairlead_policies WHERE ?1 IS NULL OR queue = ?1 ORDER BY version DESC LIMIT ?2

-- name: newest
SELECT p.* FROM fairlead_policies p
 WHERE p.version = (SELECT max(o.version) FROM fairlead_policies o WHERE o.queue = p.queue)
