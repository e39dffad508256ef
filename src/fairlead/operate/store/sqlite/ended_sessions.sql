-- Statements of the console's ended sessions on SQLite.

-- name: add
INSERT INTO fairlead_ended_sessions (session, ends_at) VALUES (?1, ?2) ON CONFLICT (session) DO NOTHING

-- name: has
SELECT 1 FROM fairlead_ended_sessions WHERE session = ?1

-- name: clean
DELETE FROM fairlead_ended_sessions WHERE ends_at <= ?1
