-- Statements that record the migrations applied to a SQLite file. No `lock` is needed, because a transaction begins as the
-- only writer.

-- name: create
CREATE TABLE IF NOT EXISTS fairlead_schema (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL
)

-- name: exists
-- ?1 table
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1

-- name: applied
SELECT version, name FROM fairlead_schema ORDER BY version

-- name: add
-- ?1 version, ?2 name, ?3 applied at
INSERT INTO fairlead_schema (version, name, applied_at) VALUES (?1, ?2, ?3)
