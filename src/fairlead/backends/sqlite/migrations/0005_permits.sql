-- Cluster-wide limits: which node holds how many permits of a limit; see core/permits.py.

CREATE TABLE fairlead_permits (
    limit_name text   PRIMARY KEY,
    version    bigint NOT NULL,  -- raised by each write, which names the one it has read
    ledger       text   NOT NULL   -- JSON
);
