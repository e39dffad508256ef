-- Statements about sessions, not about tasks.

-- name: restore
-- Undoes what a handler may have changed in its session: its role, settings, cursors, channels, temporary tables and
-- advisory locks. The encoding is set again, because a pooler may have another one in its sessions. Returns a row for each
-- statement that the handler has prepared; those that a driver has prepared stay. The function of pg_prepared_statements is
-- called directly, because the view takes longer to plan.
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES;
SET client_encoding TO 'UTF8'; SELECT pg_advisory_unlock_all();
SELECT FROM pg_prepared_statement() WHERE from_sql

-- name: deallocate
-- Ends the statements that a handler has prepared. A block costs as much as all of `restore`, so it is sent only when needed.
DO $$
DECLARE
    one text;
BEGIN
    FOR one IN SELECT name FROM pg_prepared_statements WHERE from_sql LOOP
        EXECUTE format('DEALLOCATE %I', one);
    END LOOP;
END $$

-- name: memory
-- Returns work_mem and temp_file_limit in bytes (-1: no limit). The view pg_settings would need a temporary file.
SELECT pg_size_bytes(current_setting('work_mem')), pg_size_bytes(current_setting('temp_file_limit'))

-- name: connections
-- Returns the connections of Fairlead with this role, those of all roles and how many there may be, those of this role
-- and how many it may have (-1: as many as the server allows).
SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND application_name = 'fairlead'),
       (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
       (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user)
