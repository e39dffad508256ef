-- Statements about sessions, not about tasks.

-- name: restore
-- Undoes what a handler may have changed in its session: its role, settings, cursors, channels, temporary tables, advisory
-- locks and prepared statements. Statements that a driver has prepared stay. The encoding is set again, because a pooler
-- may have another one in its sessions.
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES;
DO $$
DECLARE
    one text;
BEGIN
    PERFORM pg_advisory_unlock_all();
    FOR one IN SELECT name FROM pg_prepared_statements WHERE from_sql LOOP
        EXECUTE format('DEALLOCATE %I', one);
    END LOOP;
END $$;
SET client_encoding TO 'UTF8'

-- name: connections
-- Returns the connections of Fairlead with this role, those of all roles and how many there may be, those of this role
-- and how many it may have (-1: as many as the server allows).
SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND application_name = 'fairlead'),
       (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
       (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user)
