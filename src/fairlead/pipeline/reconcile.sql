-- Statement of `reconcile`, for DuckDB. A position is (xid, seq).

-- name: totals
-- Totals of the attempts of a store after one position and up to another: those in the lake, and erased ones, once each, that
-- are not there too.
WITH found AS (
    SELECT store_id, xid, seq, version, started_at, finished_at, false AS is_erased FROM {bronze.attempts}
    UNION ALL
    SELECT DISTINCT store_id, xid, seq, version, started_at, finished_at, true FROM {bronze.ledger}
), counted AS (
    SELECT version, seq, epoch_us(started_at) AS started, epoch_us(finished_at) AS finished
      FROM found
     WHERE store_id = $store_id AND xid BETWEEN $after_xid AND $until_xid
       AND (xid, seq) > ($after_xid, $after_seq) AND (xid, seq) <= ($until_xid, $until_seq)
   QUALIFY NOT is_erased OR count(*) FILTER (NOT is_erased) OVER (PARTITION BY xid, seq) = 0
)
SELECT count(*) AS rows, coalesce(sum(finished - started), 0) AS busy_us,
       coalesce(sum((finished % $modulus * 31 + seq % $modulus * 17 + version) % $modulus), 0) AS fingerprint
  FROM counted
