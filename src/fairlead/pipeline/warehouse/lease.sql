-- The lease of a lake whose catalog is in PostgreSQL: an advisory lock of an open transaction, named by `application_name`.
-- The key contains the catalog's table, so that each schema has its own lease. PostgreSQL releases the lock when the
-- connection ends, and by keepalives half a minute after the machine at its other end is gone.

-- name: begin
SELECT set_config('application_name', :holder, true), set_config('idle_in_transaction_session_timeout', '0', true),
       set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '4', true)

-- name: take
SELECT pg_try_advisory_xact_lock(hashtextextended('fairlead lake', 'iceberg_tables'::regclass::oid::bigint))

-- name: wait
SELECT pg_advisory_xact_lock(hashtextextended('fairlead lake', 'iceberg_tables'::regclass::oid::bigint))

-- name: holder
SELECT application_name
  FROM pg_locks AS held JOIN pg_stat_activity USING (pid)
 WHERE locktype = 'advisory' AND granted AND objsubid = 1
   AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (classid::bigint << 32 | objid::bigint)
       = hashtextextended('fairlead lake', 'iceberg_tables'::regclass::oid::bigint)
