-- Statements that record the migrations applied to a PostgreSQL database.

-- name: isolate
-- After the lock, each statement must see what the previous holder has committed, whatever the default isolation is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE

-- name: lock
-- An advisory lock, so that one process migrates at a time, in all schemas; in ASCII the key spells "fairlead".
SELECT pg_advisory_xact_lock(7377293604775354724)

-- name: create
CREATE TABLE IF NOT EXISTS fairlead_schema (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL
)

-- name: exists
-- $1 table
SELECT 1 WHERE to_regclass($1::text) IS NOT NULL

-- name: hidden
-- Returns the role, and a schema of its search_path that has the tables and that it may not use.
SELECT current_user::text, n.nspname::text
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'fairlead_schema' AND NOT has_schema_privilege(n.oid, 'USAGE')
   AND EXISTS (SELECT 1 FROM unnest(string_to_array(current_setting('search_path'), ',')) AS part
                WHERE n.nspname = trim(both ' "' FROM replace(part, '$user', current_user)))
 LIMIT 1

-- name: applied
SELECT version, name FROM fairlead_schema ORDER BY version

-- name: add
-- $1 version, $2 name, $3 applied at
INSERT INTO fairlead_schema (version, name, applied_at) VALUES ($1, $2, $3)
